"""Models of a billion parameters on one GPU: FSDP2 with one rank against the plain step, then ViT-H/14 and ViT-G/14.

    python benchmarks/large.py --out docs/results/large.json

1. equal: the same small ViT takes the same steps plainly and sharded over one rank. In float32 losses must be equal
   bit for bit; in bf16 they differ by what gathering a block's norms in bfloat16 rounds off.
2. train: each model takes steps of the real training loop (bf16, fused AdamW, gradient norm, watch for NaN), its blocks
   sharded and compiled: batch, peak memory, pictures per second, and the share of the chip's arithmetic that they use
   (PEAK, of its data sheet; `ceiling`, what one large product reaches here). A batch that does not fit is halved.

What is done is written at once, and nothing new is begun after `--seconds`.
On a CPU: --device cpu --eager --models vit_ti16 --picture-px 32 --batches 4 --steps 2
"""

import argparse
import gc
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import torch
from torch import Tensor

from one_step import loop_on, seconds
from vitreous import create_model
from vitreous.batch import Batch
from vitreous.cli import one_line_errors
from vitreous.models.flops import training_flops
from vitreous.objectives.base import Objective
from vitreous.training.devices import Precision, World
from vitreous.training.environment import environment
from vitreous.training.loop import Loop
from vitreous.training.ranks import shard

PEAK = 989e12  # FLOP/s of an H200 in bf16, without sparsity


def batch_of(size: int, side_px: int, device: torch.device) -> Batch:
    made = torch.Generator(device).manual_seed(1)
    images = torch.randn(size, 3, side_px, side_px, device=device, generator=made)
    ids = torch.arange(size, device=device)
    return Batch(views=(images,), targets={"label": ids % 1000}, ids=ids, keys=ids)


def objective_of(name: str, side_px: int, device: torch.device, recompute: bool = False) -> Objective:
    torch.manual_seed(0)
    with device:  # two billion numbers are drawn sooner there
        objective = create_model(name, num_classes=1000, picture_px=side_px)
    objective.encoder.checkpointing = recompute
    return objective.to(device).train()


def losses_of(loop: Loop, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        loop.step()
        found.append(loop.meter.read()["loss"])
    return found


def equal(
    world: World, precision: Precision, name: str = "vit_ti16", side_px: int = 64, steps: int = 10
) -> dict[str, Any]:
    batch, found = batch_of(16, side_px, world.device), []
    for is_sharded in (False, True):
        objective = objective_of(name, side_px, world.device)
        if is_sharded:
            shard(objective, world, half=precision == "bf16", compiled=False)
        found.append(losses_of(loop_on(objective, batch, False, precision), steps))
    difference = max(abs(one - other) for one, other in zip(*found, strict=True))
    result = {"model": name, "precision": precision, "steps": steps, "last_loss": found[0][-1]}
    return result | {"largest_difference": difference, "bit_equal": found[0] == found[1]}


def train(world: World, name: str, size: int, options: argparse.Namespace, recompute: bool = False) -> dict[str, Any]:
    device, side_px = world.device, options.picture_px
    objective = objective_of(name, side_px, device, recompute)
    numbers = sum(p.numel() for p in objective.parameters())
    work = training_flops(objective.encoder) * size
    shard(objective, world, half=True, compiled=not options.eager)
    loop = loop_on(objective, batch_of(size, side_px, device), compiled=not options.eager)
    began = time.perf_counter()
    first = losses_of(loop, 1)[0]
    first_s = time.perf_counter() - began
    seconds(loop.step, 2, device)
    times = [seconds(loop.step, 1, device) for _ in range(options.steps)]
    last = losses_of(loop, 1)[0]
    median = statistics.median(times)
    result: dict[str, Any] = {"model": name, "parameters": numbers, "picture_px": side_px, "batch_size": size}
    result |= {"compiled": not options.eager, "recompute": recompute, "first_step_s": round(first_s, 1)}
    result |= {"step_s": round(median, 4), "images_s": round(size / median, 1), "losses": [first, last]}
    result |= {"tflops": round(work / median / 1e12, 1), "mfu": round(work / median / PEAK, 4)}
    if device.type == "cuda":
        result["peak_memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
        result["reserved_gib"] = round(torch.cuda.max_memory_reserved() / 2**30, 1)
    return result


def train_what_fits(world: World, name: str, size: int, *rest: Any) -> dict[str, Any]:
    while True:
        try:
            return train(world, name, size, *rest)
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            size //= 2
        clear()


def clear() -> None:
    """Of the model before: compiled blocks are part of cycles."""
    gc.collect()
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def ceiling(device: torch.device, side: int = 8192, times: int = 20) -> float:
    """TFLOP/s of one large product in bf16."""
    side = side if device.type == "cuda" else 256
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    out: list[Tensor] = [a @ b]
    return round(2 * side**3 / seconds(lambda: out.__setitem__(0, a @ b), times, device) / 1e12, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["vit_h14", "vit_g14"])
    parser.add_argument("--batches", nargs="+", type=int, default=[256, 96], help="one for each model")
    parser.add_argument("--recompute-batch", type=int, default=0, help="the last model too with activations recomputed")
    parser.add_argument("--picture-px", type=int, default=224)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--eager", action="store_true", help="do not compile the blocks")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    world = World.join(options.device)
    began = time.monotonic()
    jobs: dict[str, Callable[[], Any]] = {
        "equal_fp32": lambda: equal(world, "fp32"),
        "equal_bf16": lambda: equal(world, "bf16"),
        "ceiling_tflops": lambda: ceiling(world.device),
    }
    for name, size in zip(options.models, options.batches, strict=True):
        jobs[name] = lambda name=name, size=size: train_what_fits(world, name, size, options)
    if options.recompute_batch:
        largest = options.models[-1]
        jobs[f"{largest}_recompute"] = lambda: train_what_fits(world, largest, options.recompute_batch, options, True)
    found: dict[str, Any] = {"environment": environment(), "peak_tflops": PEAK / 1e12}
    for name, job in jobs.items():
        if time.monotonic() - began > options.seconds:
            found[name] = "not begun: the time was up"
            continue
        try:
            found[name] = job()
        except Exception as error:  # the others are still worth having
            found[name] = f"failed: {type(error).__name__}: {error}"
        clear()
        print(f"{time.monotonic() - began:.0f} s {name}: {json.dumps(found[name])}", flush=True)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
