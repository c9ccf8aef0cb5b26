"""What ranks exchange in a training step: bytes counted on the wire, against the formulae of docs/SCALING.md.

    python benchmarks/exchange.py --out docs/results/exchange.json

Every row is a few steps of the real training loop (bf16) by processes in a network of their own, so the counter of its
bytes is what they sent. How many they are does not depend on the hardware; how long they take does, and is not
measured. Needs Linux, and no root. `gathers`: all-gathers of weights per step; `largest`: bytes of the largest one.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

NETWORK = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
ROWS = [(engine, ranks) for engine in ("DDP", "FSDP2") for ranks in (2, 4)]
STEPS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_s16")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--row", metavar="ENGINE", help="this one alone, as one of its processes")
    options = parser.parse_args()
    if options.row is not None:
        measured(options.row, options.model)
        return
    rows = [by_processes(engine, ranks, options.model) for engine, ranks in ROWS]
    if options.out is not None:
        from vitreous.training.environment import environment

        about = {"environment": environment(), "model": options.model, "steps": STEPS}
        options.out.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


def by_processes(engine: str, ranks: int, model: str) -> dict[str, Any]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [*NETWORK, *torchrun, __file__, "--row", engine, "--model", model]
    there = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ended = subprocess.run(command, env=there, check=True, capture_output=True)
    found: dict[str, Any] = json.loads(ended.stdout)
    print(found, flush=True)
    return found


def measured(engine: str, model: str) -> None:
    """The first process prints what one of them sends in a step."""
    import torch

    from one_step import loop_on
    from vitreous import create_model
    from vitreous.batch import Batch
    from vitreous.training.devices import World
    from vitreous.training.ranks import shard

    torch.manual_seed(0)
    world, ids = World.join("cpu"), torch.arange(8)
    objective = create_model(model, num_classes=1000, picture_px=32).train()
    parameters = sum(p.numel() for p in objective.parameters())
    if engine == "FSDP2":
        shard(objective, world, half=True, compiled=False)
    batch = Batch(views=(torch.randn(8, 3, 32, 32),), targets={"label": ids}, ids=ids, keys=ids)
    loop = loop_on(objective, batch, compiled=False)
    loop.step()
    world.wait()
    before = sent()
    with counting_gathers() as gathers:
        for _ in range(STEPS):
            loop.step()
        world.wait()
    if world.is_first:
        row = {"engine": engine, "ranks": world.size, "parameters": parameters}
        row |= {"bytes": round((sent() - before) / STEPS / world.size)}
        row |= {"gathers": len(gathers) // STEPS, "largest": max(gathers, default=0)}
        print(json.dumps(row))
    world.wait()


def sent() -> int:
    """Bytes in this network so far."""
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split()[9])


def counting_gathers() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Gathers(TorchDispatchMode):
        """The bytes of each all-gather's result."""

        def __enter__(self) -> list[int]:
            self.found: list[int] = []
            super().__enter__()
            return self.found

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "allgather_base" in str(function):
                self.found.append(args[0].nbytes)
            return function(*args, **(kwargs or {}))

    return Gathers()


if __name__ == "__main__":
    main()
