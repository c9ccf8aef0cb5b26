"""Swin, ConvNeXt and PVT v2, ours against timm's, side by side in one process on one GPU.

    python benchmarks/pyramids.py --profile --out docs/results/pyramids.json

Both have the same weights and are checked to have equal loss in float32. Then each takes training steps in turn
(forward, backward, fused AdamW; bf16, torch.compile), and predicts in turn (weights in bf16), and the medians of the
rounds are compared. Ours is the step of the real training loop, with its gradient norm and its watch for NaN.
`--profile` adds where the time of one step goes; `--kernels off` runs ours in the plain torch form, and `kernels_used`
says what a step of ours really launched. A family that fails leaves a line that says so, and the others go on.
Compilation takes longest: `--rounds 0` only fills the compilers' caches, which several processes can do at a time, each
for one of `--families` and one of `--what`.
"""

import argparse
import copy
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from one_step import seconds, step_of, their_step
from vitreous import create_model
from vitreous.cli import one_line_errors
from vitreous.nn import kernels
from vitreous.training.environment import environment
from vitreous.weights import formats
from vitreous.weights.formats import Given
from vitreous.weights.peers import imported

PAIRS = {"swin_t": "swin_tiny_patch4_window7_224", "convnext_t": "convnext_tiny", "pvt_v2_b2": "pvt_v2_b2"}
OUR_KERNELS = {"attend", "attend_backward", "sum_offsets", "convolve", "sum_products"}
SHOWN = 30  # kernels of a profile
Step = Callable[[], None]


def pair(name: str, device: torch.device) -> dict[str, nn.Module]:
    """Ours and theirs with the same random weights."""
    torch.manual_seed(0)
    theirs = imported("timm").create_model(PAIRS[name], num_classes=1000, drop_path_rate=0.0)
    head = next(module for module in reversed(list(theirs.modules())) if isinstance(module, nn.Linear))
    nn.init.normal_(head.weight, std=0.02)
    ours = create_model(name, num_classes=1000)
    document = {"architecture": PAIRS[name], "pretrained_cfg": {"input_size": [3, 224, 224]}}
    given = Given(theirs.state_dict(), {"config.json": document}, PAIRS[name])
    _, weights, report = formats.read(given, formats.recognised(given))
    assert report.is_exact, report.mismatch()
    ours.load_state_dict(weights)
    return {"ours": ours.to(device), "timm": theirs.to(device)}


@torch.no_grad()
def losses(models: dict[str, nn.Module], images: Tensor, labels: Tensor) -> dict[str, float]:
    """In float32, where a difference would be one of mathematics, and in bf16, where kernels of ours take over."""
    calls = {"ours": lambda: models["ours"].predict(images).logits, "timm": lambda: models["timm"](images)}
    found = {}
    for who, call in calls.items():
        found[f"{who}_loss"] = round(float(F.cross_entropy(call(), labels)), 6)
        with torch.autocast(images.device.type, torch.bfloat16):
            found[f"{who}_loss_bf16"] = round(float(F.cross_entropy(call().float(), labels)), 6)
    return found


def training_steps(models: dict[str, nn.Module], images: Tensor, labels: Tensor, compiled: bool) -> dict[str, Step]:
    for model in models.values():
        model.train()
    return {
        "ours": step_of(models["ours"], images, labels, compiled),
        "timm": their_step(models["timm"], images, labels, compiled),
    }


def inference_steps(models: dict[str, nn.Module], images: Tensor, compiled: bool) -> dict[str, Step]:
    ours, theirs = (copy.deepcopy(model).eval().to(torch.bfloat16) for model in models.values())
    calls: dict[str, Callable[[Tensor], object]] = {"ours": lambda x: ours.predict(x).logits, "timm": theirs}
    images = images.to(torch.bfloat16)

    def step_by(call: Callable[[Tensor], object]) -> Step:
        call = torch.compile(call, dynamic=False) if compiled else call

        @torch.inference_mode()
        def step() -> None:
            call(images)

        return step

    return {who: step_by(call) for who, call in calls.items()}


def measured(steps: dict[str, Step], options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for who, step in steps.items():
        began = time.perf_counter()
        seconds(step, 1, device)
        found[f"{who}_first_step_s"] = round(time.perf_counter() - began, 1)  # most of it is compilation
        seconds(step, 2, device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            seconds(step, 1, device)
            found[f"{who}_peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    if not options.rounds:
        return found
    times: dict[str, list[float]] = {who: [] for who in steps}
    for _ in range(options.rounds):
        for who, step in steps.items():
            times[who].append(seconds(step, options.steps, device))
    medians = {who: statistics.median(values) for who, values in times.items()}
    for who, median in medians.items():
        found[f"{who}_ms"] = round(1000 * median, 3)
        found[f"{who}_images_s"] = round(options.batch_size / median, 1)
    found["ratio"] = round(medians["timm"] / medians["ours"], 4)  # above 1: ours is faster
    profiles = {who: profiled(step, device) for who, step in steps.items()}
    found["kernels_used"] = sorted(OUR_KERNELS & {one["name"] for one in profiles["ours"]})
    if options.profile:
        found["profile"] = {who: rows[:SHOWN] for who, rows in profiles.items()}
    return found


def profiled(step: Step, device: torch.device) -> list[dict[str, Any]]:
    """The kernels (on a CPU, the operators) of one step by the time they take."""
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as found:
        seconds(step, 1, device)
    events = found.key_averages()
    rows = [
        {"ms": (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1000, "times": event.count}
        | {"name": event.key[:110]}
        for event in events
    ]
    rows.sort(key=lambda row: -row["ms"])
    whole = {"ms": sum(row["ms"] for row in rows), "times": sum(row["times"] for row in rows), "name": "all"}
    return [row | {"ms": round(row["ms"], 4)} for row in [whole, *rows]]


def compare(name: str, options: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    images = torch.randn(options.batch_size, 3, 224, 224, device=device)
    labels = torch.randint(1000, (options.batch_size,), device=device)
    models = pair(name, device)
    said = losses(models, images[:8], labels[:8])
    makers: dict[str, Callable[[], dict[str, Step]]] = {
        "training": lambda: training_steps(models, images, labels, not options.eager),
        "inference": lambda: inference_steps(models, images, not options.eager),
    }
    rows = []
    for what in options.what:
        row = {"model": name, "what": what, "batch_size": options.batch_size, "kernels": options.kernels}
        rows.append(survived(row | said, lambda what=what: measured(makers[what](), options, device)))
        show(rows[-1])
    return rows


def survived(row: dict[str, Any], work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return row | work()
    except Exception as error:  # whatever it is, the others are still to be measured
        return row | {"error": f"{type(error).__name__}: {error}"[:2000]}
    finally:
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()


def show(row: dict[str, Any]) -> None:
    print(json.dumps({name: value for name, value in row.items() if name != "profile"}), flush=True)
    for who, rows in row.get("profile", {}).items():
        print(f"  {who}:")
        for one in rows:
            print(f"    {one['ms']:9.3f} ms {one['times']:5} x {one['name']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=list(PAIRS), choices=list(PAIRS))
    parser.add_argument("--what", nargs="+", default=["training", "inference"], choices=["training", "inference"])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6, help="per round")
    parser.add_argument("--rounds", type=int, default=5, help="0: only fill the compilers' caches")
    parser.add_argument("--kernels", choices=["on", "off"], default="on")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kernels.enabled = kernels.enabled and options.kernels == "on"
    results: list[dict[str, Any]] = []
    for name in options.families:
        try:
            results += compare(name, options, device)
        except Exception as error:
            results.append({"model": name, "error": f"{type(error).__name__}: {error}"[:2000]})
            show(results[-1])
        if options.out:
            options.out.write_text(json.dumps({"environment": environment(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
