"""What the kernels of detection cost, each beside its plain form, as ratios within one process.

    python benchmarks/detection_kernels.py --out docs/results/detection_kernels.json

Assignment: on the device beside the way through the host (copy, SciPy, copy), costs like those of DETR (100 queries)
and Deformable DETR (300), six decoder layers in one call. Deformable attention: forward and backward at the sizes of an
encoder layer and a decoder layer on a canvas of 640 px. With --tiny it runs on a CPU, to see that it runs.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.nn.assignment import assign
from vitreous.nn.kernels.deformable import weighted_samples, weighted_samples_torch
from vitreous.training.environment import environment


def milliseconds(work: Callable[[], object], device: str, rounds: int) -> float:
    """The median of several rounds, the host's part included."""
    times = []
    for number in range(rounds + 3):
        if device == "cuda":
            torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        if number >= 3:
            times.append(time.perf_counter() - begun)
    return 1000 * statistics.median(times)


def through_the_host(cost: Tensor, valid: Tensor) -> Tensor:
    from scipy.optimize import linear_sum_assignment

    found = torch.full(valid.shape, -1)
    for sample, (one, used) in enumerate(zip(cost.cpu().double().numpy(), valid.cpu().numpy(), strict=True)):
        queries, targets = linear_sum_assignment(one[:, used])
        found[sample, torch.from_numpy(used.nonzero()[0][targets])] = torch.from_numpy(queries)
    return found.to(cost.device)


def assignment(queries: int, targets: int, samples: int, device: str, rounds: int) -> dict[str, Any]:
    chance = torch.Generator().manual_seed(0)
    cost = torch.randn(6 * samples, queries, targets, generator=chance).to(device)
    valid = (torch.rand(6 * samples, targets, generator=chance) < 0.5).to(device)
    row: dict[str, Any] = {"what": "assignment", "queries": queries, "targets": targets, "samples": 6 * samples}
    row["device_ms"] = milliseconds(lambda: assign(cost, valid), device, rounds)
    try:
        row["host_ms"] = milliseconds(lambda: through_the_host(cost, valid), device, rounds)
    except ImportError:
        return row
    return row | {"ratio": row["host_ms"] / row["device_ms"]}


def deformable(queries: int | None, samples: int, dtype: torch.dtype, device: str, rounds: int) -> dict[str, Any]:
    """Without a number of queries: an encoder layer, in which every token asks."""
    chance = torch.Generator().manual_seed(0)
    side = 640 if device == "cuda" else 64
    shapes = [(side // stride, side // stride) for stride in (8, 16, 32, 64)]
    tokens = sum(h * w for h, w in shapes)
    size = (samples, queries or tokens, 8, 4, 4)
    values = torch.randn(samples, tokens, 8, 32, generator=chance).to(device, dtype).requires_grad_()
    places = torch.rand(*size, 2, generator=chance).to(device).requires_grad_()
    weights = torch.rand(size, generator=chance).to(device).requires_grad_()
    grad = torch.randn(samples, size[1], 256, generator=chance).to(device, dtype)
    row: dict[str, Any] = {"what": "deformable", "queries": size[1], "samples": samples, "dtype": str(dtype)}
    for name, form in (("fused", weighted_samples), ("plain", weighted_samples_torch)):

        def forward(form: Callable[..., Tensor] = form) -> Tensor:
            return form(values, shapes, places, weights)

        row[f"{name}_forward_ms"] = milliseconds(lambda f=forward: f(), device, rounds)  # type: ignore[misc]
        both = milliseconds(lambda f=forward: torch.autograd.grad(f(), (values, places, weights), grad), device, rounds)  # type: ignore[misc]
        row[f"{name}_both_ms"] = both
    return row | {
        "ratio_forward": row["plain_forward_ms"] / row["fused_forward_ms"],
        "ratio_both": row["plain_both_ms"] / row["fused_both_ms"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = "cpu" if options.tiny else "cuda"
    rows = []
    for queries, targets, samples in ((100, 20, 8), (100, 60, 32), (300, 60, 8), (300, 100, 32)):
        rows.append(assignment(queries, targets, 1 if options.tiny else samples, device, options.rounds))
    for dtype in (torch.float32, torch.bfloat16):
        for count in (None, 300):
            for samples in (1,) if options.tiny else (8, 32):
                rows.append(deformable(count, samples, dtype, device, options.rounds))
    for row in rows:
        print({name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()})
    if options.out:
        options.out.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
