"""A whole training step, ours against timm's, side by side in one process on one GPU.

    python benchmarks/train_step.py --out docs/results/train_step.json

First both are checked to have equal parameters and, on the same weights and pictures, equal loss. Then each takes
steps in turn (forward, backward, fused AdamW; bf16, torch.compile), and the medians of the rounds are compared.
Ours is the step of the real training loop, with its gradient norm and its watch for NaN.
"""

import argparse
import json
import statistics
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from torch import Tensor

from one_step import seconds, step_of, their_step
from vitreous import create_model
from vitreous.cli import one_line_errors
from vitreous.models.flops import flops
from vitreous.training.environment import environment
from vitreous.weights import formats
from vitreous.weights.formats import Given
from vitreous.weights.timm import Timm

PAIRS = {"vit_b16": "vit_base_patch16_224", "vit_l16": "vit_large_patch16_224", "vit_s16": "vit_small_patch16_224"}


def check_equal(ours: torch.nn.Module, theirs: torch.nn.Module, images: Tensor, labels: Tensor) -> dict[str, float]:
    counts = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    assert counts[0] == counts[1], counts
    with torch.no_grad():  # float32, so that a difference would be one of mathematics
        mine = F.cross_entropy(ours.predict(images).logits, labels)
        other = F.cross_entropy(theirs(images), labels)
    assert abs(float(mine - other)) < 1e-4, (mine, other)
    return {"parameters": counts[0], "our_loss": float(mine), "their_loss": float(other)}


def compare(name: str, batch_size: int, compiled: bool, rounds: int, device: torch.device) -> dict[str, object]:
    torch.manual_seed(0)
    theirs = timm.create_model(PAIRS[name], num_classes=1000).to(device)
    torch.nn.init.normal_(theirs.head.weight, std=0.02)
    ours = create_model(name, num_classes=1000).to(device)
    _, weights, report = formats.read(Given(theirs.state_dict(), {}, PAIRS[name]), Timm())
    assert report.is_exact, report.mismatch()
    ours.load_state_dict(weights)
    images = torch.randn(batch_size, 3, 224, 224, device=device)
    labels = torch.randint(1000, (batch_size,), device=device)
    result: dict[str, object] = {"model": name, "batch_size": batch_size, "compiled": compiled}
    result |= check_equal(ours, theirs, images[:8], labels[:8])
    steps = {"ours": step_of(ours, images, labels, compiled), "timm": their_step(theirs, images, labels, compiled)}
    times: dict[str, list[float]] = {"ours": [], "timm": []}
    for step in steps.values():
        seconds(step, 4, device)  # compilation and warm-up
    if not rounds:
        return result
    for _ in range(rounds):
        for who, step in steps.items():
            times[who].append(seconds(step, 6, device))
    medians = {who: statistics.median(values) for who, values in times.items()}
    work = 3 * flops(ours.encoder) * batch_size
    for who, median in medians.items():
        result[f"{who}_images_s"] = round(batch_size / median, 1)
        result[f"{who}_tflops"] = round(work / median / 1e12, 1)
    result["ratio"] = round(medians["timm"] / medians["ours"], 4)  # above 1: ours is faster
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["vit_b16", "vit_l16"], choices=list(PAIRS))
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--rounds", type=int, default=5, help="0: only fill the compiler's cache")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    results = []
    for name in options.models:
        results.append(compare(name, options.batch_size, not options.eager, options.rounds, device))
        print(json.dumps(results[-1]), flush=True)
        if options.out:
            options.out.write_text(json.dumps({"environment": environment(), "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
