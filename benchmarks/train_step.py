"""A whole training step, ours against timm's, side by side in one process on one GPU; and what each lever gives.

    python benchmarks/train_step.py --out docs/results/train_step.json
    python benchmarks/train_step.py --levers --out levers.json
    python benchmarks/train_step.py --chosen levers.json --out docs/results/train_step.json

First both are checked to have equal parameters and, on the same weights and pictures, equal loss. Then each takes
steps in turn (forward, backward, fused AdamW; bf16, torch.compile), and the medians of the rounds are compared: timm as
it is compiled by default, and with mode="reduce-overhead", which launches CUDA graphs. Ours is the step of the real
training loop as one CUDA graph, with its gradient norm and its watch for NaN. Beside each stands its share of what one
large matrix product reaches in the same run.

`--levers` takes ViT-B/16 at batch 256 without any lever, and then with each by itself, in turn with the step without
it; a lever that fails, or changes loss or gradient beyond what bf16 does, says so. `--chosen` has the rows against timm
take those that gained. Rows come in the order of what we want to know most, until the time is up; every row is written
at once, and the same command on the same commit goes on with the rows that are missing. What fails is reported in its
place, and the rest goes on; without timm ours is measured alone.
"""

import argparse
import copy
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from one_step import loop_on, matrix_tflops, seconds, their_step
from side_by_side import noted, ready, there
from vitreous import create_model
from vitreous.batch import Batch
from vitreous.cli import one_line_errors
from vitreous.models.flops import TRAINING_FACTOR, flops
from vitreous.nn import kernels
from vitreous.tasks.classify import Classify
from vitreous.training.averages import AverageSettings
from vitreous.training.environment import environment
from vitreous.training.graph import WARM_UP_STEPS
from vitreous.weights import formats
from vitreous.weights.formats import Given
from vitreous.weights.peers import imported
from vitreous.weights.timm import Timm

PAIRS = {"vit_b16": "vit_base_patch16_224", "vit_l16": "vit_large_patch16_224", "vit_s16": "vit_small_patch16_224"}
# In the order of what we want to know most.
ROWS = (
    *(("vit_b16", 256), ("vit_b16", 32), ("vit_s16", 256), ("vit_b16", 64), ("vit_s16", 32), ("vit_l16", 256)),
    *(("vit_b16", 8), ("vit_s16", 8), ("vit_b16", 16), ("vit_s16", 64), ("vit_s16", 16)),
    *(("vit_l16", 32), ("vit_l16", 8), ("vit_l16", 64), ("vit_l16", 16)),
)
TINY = {"embed_dim": 192, "num_heads": 3, "depth": 12}
OUR_TINY = {"width": 192, "heads": 3, "mlp_width": 768, "depth": 12}
PEERS = {"timm": None, "timm reduce-overhead": "reduce-overhead"}
LEVERS = ("gelu", "attention", "gelu+attention", "flash", "graph", "adamw", "fp8", "fp8+gelu+attention", "autotune")
GAIN = 1.003  # from which a lever counts as one: rounds differ by less
CLOSE = 0.1  # of loss and gradient: what rounding in bf16 comes to over 12 blocks; fp8 is judged by its loss curve
Step = Callable[[], None]


def labelled(batch_size: int, device: torch.device) -> Batch:
    ids = torch.arange(batch_size, device=device)
    images = torch.randn(batch_size, 3, 224, 224, device=device)
    return Batch(
        views=(images,), targets={"label": torch.randint(1000, (batch_size,), device=device)}, ids=ids, keys=ids
    )


def our_model(name: str, device: torch.device, tiny: bool = False) -> Classify:
    torch.manual_seed(0)
    ours = create_model(name, num_classes=1000, **(OUR_TINY if tiny else {}))
    torch.nn.init.normal_(ours.head.weight, std=0.02)
    return ours.to(device)


def pair(name: str, device: torch.device, tiny: bool = False) -> tuple[Classify, torch.nn.Module]:
    """Ours and timm's, with the same weights."""
    timm, ours = imported("timm"), our_model(name, device, tiny)
    theirs = timm.create_model(PAIRS[name], num_classes=1000, **(TINY if tiny else {}))
    torch.nn.init.normal_(theirs.head.weight, std=0.02)
    _, weights, report = formats.read(Given(theirs.state_dict(), {}, PAIRS[name]), Timm())
    assert report.is_exact, report.mismatch()
    ours.load_state_dict(weights)
    return ours, theirs.to(device)


def check_equal(ours: Classify, theirs: torch.nn.Module, batch: Batch) -> dict[str, float]:
    counts = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    assert counts[0] == counts[1], counts
    images, labels = batch.images[:8], batch.targets["label"][:8]
    # Float32, so that a difference would be one of mathematics.
    with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=False):
        mine = F.cross_entropy(ours.predict(images).logits, labels)
        other = F.cross_entropy(theirs(images), labels)
    assert abs(float(mine - other)) < 1e-4, (mine, other)
    return {"parameters": counts[0], "our_loss": float(mine), "their_loss": float(other)}


# ---- levers


@contextmanager
def switched(levers: set[str]) -> Iterator[None]:
    before = dict(kernels.PAY)
    kernels.PAY.update({name: name in levers for name in kernels.PAY})
    try:
        yield
    finally:
        kernels.PAY.update(before)


@contextmanager
def pulled(levers: set[str]) -> Iterator[None]:
    """Inside, a step is built with these, and captured."""
    torch.compiler.reset()  # what was compiled otherwise; graphs that were captured stay
    inductor: Any = torch._inductor.config
    tuned = inductor.patch(max_autotune_gemm=True, max_autotune_gemm_backends="ATEN,TRITON")
    # On Hopper torch takes cuDNN's attention by itself. A cache of compiled graphs would not see which it is to take.
    first = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]
    with (
        switched(levers),
        tuned if "autotune" in levers else nullcontext(),
        sdpa_kernel(first, set_priority=True) if "flash" in levers else nullcontext(),
        inductor.patch(force_disable_caches=True) if "flash" in levers else nullcontext(),
    ):
        yield


def step_with(levers: set[str], objective: Classify, batch: Batch, compiled: bool = True) -> Step:
    """Warm, and where the device is a GPU captured as one graph, unless "no graph" is asked for."""
    on_gpu, has_more = batch.images.is_cuda, "clip and average" in levers
    with pulled(levers):
        loop = loop_on(
            copy.deepcopy(objective),
            batch,
            compiled,
            "fp8" if "fp8" in levers else "bf16",
            graph=on_gpu and "no graph" not in levers,
            clip=1.0 if has_more else None,
            average=AverageSettings(kind="ema") if has_more else None,
        )
        for _ in range(WARM_UP_STEPS + 2):
            loop.run_step()
        if on_gpu:
            torch.cuda.synchronize()
    assert int(loop.first_bad_step) < 0, "the loss is not finite"

    def step() -> None:
        with switched(levers):  # for one that is not captured
            loop.run_step()

    return step


def change(levers: set[str], objective: Classify, batch: Batch) -> float:
    """By which share loss and gradient of one step differ from the plain step's: the larger of both."""
    found = []
    few = Batch(
        views=(batch.images[:16],),
        targets={"label": batch.targets["label"][:16]},
        ids=batch.ids[:16],
        keys=batch.keys[:16],
    )
    for pull in (levers, set[str]()):
        with pulled(pull):
            loop = loop_on(copy.deepcopy(objective), few, False, "fp8" if "fp8" in pull else "bf16")
            loop._backward(few, torch.zeros((), device=batch.images.device))
        found.append([loop.meter.read()["loss"], torch.cat([g.flatten() for g in loop.optimizer.gradients()])])
    (loss, gradient), (plain_loss, plain_gradient) = found
    return max(abs(loss - plain_loss) / plain_loss, float((gradient - plain_gradient).norm() / plain_gradient.norm()))


def sides_of(lever: str) -> tuple[set[str], set[str]]:
    """With the lever, and without it."""
    if lever == "graph":
        return set(), {"no graph"}
    if lever == "adamw":
        return {"adamw", "clip and average"}, {"clip and average"}
    return set(lever.split("+")), set()


def lever_rows(options: argparse.Namespace, until: float, device: torch.device) -> Iterator[dict[str, Any]]:
    objective = our_model("vit_b16", device, options.tiny)
    batch = labelled(4 if options.tiny else 256, device)
    plain: dict[str, Step] = {}
    longest = 0.0
    for lever in LEVERS:
        if time.monotonic() + longest > until:
            return
        began = time.monotonic()
        row: dict[str, Any] = {"lever": lever, "model": "vit_b16", "batch_size": len(batch)}
        levers, others = sides_of(lever)
        try:
            row["changes_by"] = round(change(levers, objective, batch), 5)
            if not row["changes_by"] < CLOSE and "fp8" not in lever:
                raise AssertionError(f"loss or gradient differ by {row['changes_by']:.1%}")
            named = "+".join(sorted(others))
            if named not in plain:
                plain[named] = step_with(others, objective, batch, not options.eager)
            sides = {"with": step_with(levers, objective, batch, not options.eager), "without": plain[named]}
            medians = in_turn(sides, options.rounds, options.times, device)
            row |= {f"{side}_ms": round(1000 * median, 3) for side, median in medians.items()}
            row["gain"] = round(medians["without"] / medians["with"], 4)
        except Exception as error:  # the others are still to be measured
            row["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
        row["took_s"] = round(time.monotonic() - began, 1)
        longest = max(longest, row["took_s"])
        yield row


def gaining(found: Path) -> set[str]:
    """Of the levers that stand for a kernel, those that gained; where none was measured, those that are switched on."""
    if not found.is_file():
        return switched_on()
    gains = {row["lever"]: row.get("gain", 0.0) for row in json.loads(found.read_text())["levers"]}
    return {name for name in kernels.PAY if gains.get(name, 0.0) > GAIN}


def switched_on() -> set[str]:
    return {name for name, is_on in kernels.PAY.items() if is_on}


def in_turn(steps: dict[str, Step], rounds: int, times: int, device: torch.device) -> dict[str, float]:
    """The median seconds of each, over rounds in which each has its turn."""
    found: dict[str, list[float]] = {who: [] for who in steps}
    for _ in range(rounds):
        for who, step in steps.items():
            found[who].append(seconds(step, times, device))
    return {who: statistics.median(values) for who, values in found.items()}


# ---- against timm


def compare(
    name: str, batch_size: int, levers: set[str], options: argparse.Namespace, ceiling: float | None
) -> dict[str, Any]:
    rounds, times, compiled = options.rounds, options.times, not options.eager
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gc.collect()
    torch.cuda.empty_cache()
    row: dict[str, Any] = {"model": name, "batch_size": batch_size, "levers": sorted(levers), "compiled": compiled}
    ours, theirs = our_model(name, device, options.tiny), None
    if there("timm", row):
        ours, theirs = pair(name, device, options.tiny)
    batch = labelled(batch_size, device)
    images, labels = batch.images, batch.targets["label"]
    makers = {"ours": lambda: step_with(levers, ours, batch, compiled)}
    if theirs is not None:
        with noted(row, "unequal"):
            row |= check_equal(ours, theirs, batch)
        for peer, mode in PEERS.items():
            if mode is None or (compiled and images.is_cuda):
                makers[peer] = partial(their_step, copy.deepcopy(theirs), images, labels, compiled, mode)
    row["errors"] = {}
    steps = ready(makers, row["errors"], device)
    if not rounds:
        return row
    work = TRAINING_FACTOR * flops(ours.encoder) * batch_size
    medians = in_turn(steps, rounds, max(times, min(60, 2048 // batch_size)) if batch.images.is_cuda else times, device)
    for who, median in medians.items():
        row[f"{who}, images/s"] = round(batch_size / median, 1)
        row[f"{who}, TFLOP/s"] = round(work / median / 1e12, 1)
        if ceiling is not None:
            row[f"{who}, share of ceiling"] = round(work / median / 1e12 / ceiling, 3)
    for peer in medians.keys() - {"ours"}:
        if "ours" in medians:
            row[f"ratio to {peer}"] = round(medians[peer] / medians["ours"], 4)  # above 1: ours is faster
    return row


def before(out: Path | None, where: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of an earlier call, of the same code on the same machine."""
    if out is None or not out.is_file():
        return []
    found = json.loads(out.read_text())
    is_same = all(
        found["environment"][key] == where[key] for key in ("commit", "uncommitted_changes", "gpus", "versions")
    )
    return found["rows"] if is_same else []


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(PAIRS), default=list(PAIRS))
    parser.add_argument("--batch-size", type=int, nargs="+", help="these alone")
    parser.add_argument("--levers", action="store_true", help="each by itself, and not against timm")
    parser.add_argument("--chosen", type=Path, help="what --levers wrote: those that gain are on")
    parser.add_argument("--on", nargs="+", default=[], help="levers that are on: gelu, attention, fp8 ...")
    parser.add_argument("--seconds", type=float, default=540.0, help="after which no row begins")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--rounds", type=int, default=5, help="0: only fill the compiler's cache")
    parser.add_argument("--times", type=int, default=6, help="steps of a round, at least")
    parser.add_argument("--tiny", action="store_true", help="tiny models, to try the script")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    options, began = parsed(), time.monotonic()
    until, device = began + options.seconds, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ceiling = matrix_tflops() if device.type == "cuda" else None
    found: dict[str, Any] = {"environment": environment(), "ceiling_tflops": ceiling, "levers": [], "rows": []}

    def keep(kind: str, row: dict[str, Any]) -> None:
        found[kind].append(row)
        print(json.dumps(row), flush=True)
        if options.out:
            options.out.write_text(json.dumps(found, indent=2) + "\n")

    if options.levers:
        for row in lever_rows(options, until, device):
            keep("levers", row)
        if all("failed" in row for row in found["levers"]):
            sys.exit(1)
        return
    levers = set(options.on) or (gaining(options.chosen) if options.chosen else switched_on())
    print(f"rows have: {', '.join(sorted(levers)) or 'no lever'}", flush=True)
    sizes = [row for row in ROWS if row[0] in options.models]
    if options.batch_size:
        sizes = [(name, size) for name in options.models for size in options.batch_size]
    for row in before(options.out, found["environment"]):
        if set(row["levers"]) == levers:
            keep("rows", row)
    done, longest = {(row["model"], row["batch_size"]) for row in found["rows"]}, 0.0
    for name, size in sizes:
        if (name, size) in done:
            continue
        if time.monotonic() + longest > until:
            break
        start = time.monotonic()
        row = compare(name, size, levers, options, ceiling)
        longest = max(longest, time.monotonic() - start)
        keep("rows", row | {"took_s": round(time.monotonic() - start, 1)})
    if all("ours" in row["errors"] for row in found["rows"]):
        sys.exit(1)


if __name__ == "__main__":
    with one_line_errors():
        main()
