"""What looking inside costs: a forward pass that catches the class token's row in all layers, over a plain one.

    python benchmarks/inspection.py --out docs/results/inspection.json

Both run in turn in one process, on the same model and pictures, without gradients; the median of the rounds' ratios
counts, and should be at most 1.10 wherever the device is kept busy (on a GPU, a batch of one is not: there the
launches of small kernels count). "plain again" is the plain pass a second time: how far it is from 1 is the noise.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from vitreous import create_model
from vitreous.cli import one_line_errors
from vitreous.inspection.attention import attention
from vitreous.inspection.rollout import rollout
from vitreous.training.environment import environment


def seconds(work: Callable[[], object], times: int, device: torch.device) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    for _ in range(times):
        work()
    wait()
    return (time.perf_counter() - began) / times


def measure(
    name: str, device: torch.device, *, batch_size: int, half: bool, rounds: int, times: int
) -> dict[str, object]:
    torch.manual_seed(0)
    encoder = create_model(name, num_classes=10).encoder.eval().to(device)
    images = torch.randn(batch_size, 3, *encoder.picture_px, device=device)
    if half:
        encoder, images = encoder.to(torch.bfloat16), images.to(torch.bfloat16)
    ways = {
        "plain": lambda: encoder(images),
        "plain again": lambda: encoder(images),
        "class row": lambda: attention(encoder, images),
        "rollout": lambda: rollout(encoder, images),
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    with torch.no_grad():
        for work in ways.values():
            seconds(work, 2, device)
        for _ in range(rounds):
            for way, work in ways.items():
                found[way].append(seconds(work, times, device))
    ratios = {
        way: round(statistics.median(a / b for a, b in zip(found[way], found["plain"], strict=True)), 4)
        for way in ways
        if way != "plain"
    }
    shown = {"model": name, "device": device.type, "dtype": str(images.dtype), "batch_size": batch_size}
    return shown | {"plain_s": round(statistics.median(found["plain"]), 5), "ratios": ratios, "rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_s16")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cases = [("cpu", {"batch_size": size, "half": False, "times": times}) for size, times in ((1, 5), (8, 1))]
    if torch.cuda.is_available():
        cases += [
            ("cuda", {"batch_size": size, "half": half, "times": 10}) for size in (1, 64, 256) for half in (False, True)
        ]
    results = []
    for device, case in cases:
        results.append(measure(options.model, torch.device(device), rounds=options.rounds, **case))
        print(json.dumps(results[-1]), flush=True)
        if options.out:
            options.out.write_text(json.dumps({"environment": environment(), "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
