"""How time and memory of a plain ViT grow with tokens, batch, width and depth: measured, fitted, drawn.

    python benchmarks/growth.py --out docs/results/growth

One of the four is changed at a time, the others stay as in the base. Time is that of a forward pass without gradients,
and of a forward and backward pass; memory is what these need beyond weights and gradients: on a GPU the most that was
allocated at once, on a CPU what is kept for the backward pass. Exponents are slopes of least squares through the
logarithms: over all points, and over the last three, where what grows fastest shows. For comparison, the exponent of
the arithmetic (`models/flops`) over the same points.

`--small` is the form for two cores and some minutes; without it, a GPU is wanted.
"""

import argparse
import gc
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator
from torch import Tensor

from vitreous.cli import one_line_errors
from vitreous.display.figures import SERIES, drawing, figure, save
from vitreous.models import ViTSettings
from vitreous.models.flops import flops
from vitreous.models.vit import ViT
from vitreous.nn.graphed import Graphed
from vitreous.training.environment import environment

PATCH = 8
LAST = 3  # points
KINDS = ("forward", "training")


@dataclass(frozen=True)
class Size:
    """What is changed. Heads are of 64 channels, so that width changes their number."""

    tokens: int = 256  # patches, with no class token: mean pooling
    batch: int = 32
    width: int = 768
    depth: int = 6

    def encoder(self) -> ViT:
        rows = 2 ** (int(math.log2(self.tokens)) // 2)
        side = (PATCH * rows, PATCH * (self.tokens // rows))
        heads, mlp_width = max(1, self.width // 64), 4 * self.width
        settings = ViTSettings.of(
            picture_px=side, patch=PATCH, width=self.width, depth=self.depth, heads=heads, mlp_width=mlp_width
        )
        return settings.changed(num_prefix=0, pool="mean", positions="sincos").build()


BASES = {"full": Size(), "small": Size(tokens=64, batch=4, width=128, depth=2)}
VALUES: dict[str, dict[str, tuple[int, ...]]] = {
    "full": {
        "tokens": (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
        "batch": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
        "width": (128, 256, 512, 1024, 2048, 4096),
        "depth": (1, 2, 4, 8, 16, 32, 64),
    },
    "small": {
        "tokens": (64, 128, 256, 512, 1024, 2048, 4096),
        "batch": (1, 2, 4, 8, 16, 32),
        "width": (64, 128, 256, 512, 1024),
        "depth": (1, 2, 4, 8, 16),
    },
}
# The batch at which tokens are tried: with that of the base, the longest sequences would take minutes.
TOKEN_BATCH = {"full": 4, "small": 1}


def measured(size: Size, device: torch.device, seconds: float) -> dict[str, float]:
    torch.manual_seed(0)
    encoder = size.encoder().to(device)
    images = torch.randn(size.batch, 3, *encoder.picture_px, device=device)
    found: dict[str, float] = {"flops": flops(encoder) * size.batch}
    half = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    recorded = Graphed(encoder, lambda encoder, images: encoder(images).pooled)

    def forward() -> None:
        with torch.no_grad(), half:
            recorded(images)

    def training() -> None:
        with half:
            encoder(images).pooled.float().square().mean().backward()

    training()  # gradients are there from now on
    for kind, work in zip(KINDS, (forward, training), strict=True):
        encoder.train(kind == "training")
        found[f"{kind}_mib"] = memory(work, encoder, device)
        found[f"{kind}_ms"] = 1000 * timed(work, device, seconds)
    return found


def timed(work: Callable[[], None], device: torch.device, seconds: float) -> float:
    """The median of as many as fit into the time, and three at least."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for _ in range(3 if device.type == "cuda" else 1):
        work()
    times: list[float] = []
    ends = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < ends:
        wait()
        began = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def memory(work: Callable[[], None], model: ViT, device: torch.device) -> float:
    """MiB"""
    if device.type == "cuda":
        work()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    kept: dict[int, int] = {}
    weights = {one.untyped_storage().data_ptr() for one in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        work()
    return sum(kept.values()) / 2**20


def exponent(values: list[float], found: list[float]) -> float:
    """Of found ~ values ** exponent."""
    return round(float(np.polyfit(np.log(values), np.log(found), 1)[0]), 3)


def sweep(what: str, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    kind = "small" if options.small else "full"
    base = BASES[kind] if what != "tokens" else replace(BASES[kind], batch=TOKEN_BATCH[kind])
    rows: list[dict[str, float]] = []
    for value in VALUES[kind][what]:
        size = replace(base, **{what: value})
        try:
            rows.append({what: value, **measured(size, device, options.seconds)})
        except torch.OutOfMemoryError:
            print(f"{what} {value}: no memory for it", flush=True)
            break
        finally:
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
        print(what, {name: round(number, 3) for name, number in rows[-1].items()}, flush=True)
    names = [name for name in rows[0] if name != what and all(row[name] > 0 for row in rows)]
    values = [row[what] for row in rows]
    fitted = {
        name: {
            "all": exponent(values, [row[name] for row in rows]),
            "last": exponent(values[-LAST:], [row[name] for row in rows[-LAST:]]),
        }
        for name in names
    }
    return {"what": what, "base": vars(base), "rows": rows, "exponents": fitted}


@drawing
def draw(sweeps: list[dict[str, Any]], on_gpu: bool) -> Any:
    made = figure(3 * len(sweeps), 5.2)
    axes = made.subplots(2, len(sweeps), squeeze=False)
    memory_label = "MiB at most" if on_gpu else "MiB kept for the backward pass"
    for column, found in enumerate(sweeps):
        for row, (unit, label) in enumerate((("ms", "ms per pass"), ("mib", memory_label))):
            _lines(axes[row, column], found, unit)
            if column == 0:
                axes[row, column].set_ylabel(label)
            if row == 1:
                axes[row, column].set_xlabel(found["what"])
    return made


def _lines(axis: Axes, found: dict[str, Any], unit: str) -> None:
    """Points, and the line through the last of them."""
    what, rows = found["what"], found["rows"]
    values = np.array([row[what] for row in rows], dtype=float)
    for kind, colour in zip(KINDS, SERIES, strict=False):
        name = f"{kind}_{unit}"
        if name not in found["exponents"]:
            continue
        numbers, slope = np.array([row[name] for row in rows]), found["exponents"][name]["last"]
        axis.plot(values, numbers, "o", color=colour, markersize=4, label=f"{kind}: {what}$^{{{slope:.2f}}}$")
        last = slice(-LAST, None)
        middle = np.exp(np.log(numbers[last]).mean() - slope * np.log(values[last]).mean())
        axis.plot(values, middle * values**slope, "--", color=colour, linewidth=1)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    lowest = min(row[f"{kind}_{unit}"] for row in rows for kind in KINDS if row[f"{kind}_{unit}"] > 0)
    axis.set_ylim(bottom=lowest / 2)
    axis.xaxis.set_major_locator(FixedLocator(list(values[:: 2 if len(values) > 6 else 1])))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.legend(loc="upper left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", nargs="+", default=list(VALUES["full"]), choices=list(VALUES["full"]))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.5, help="per point and kind of pass, at least")
    parser.add_argument("--out", type=Path, metavar="FILE", help="without its ending: .png, .svg, .json")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() and not options.small else "cpu")
    report: dict[str, Any] = {"environment": environment(), "device": device.type, "sweeps": []}
    for what in options.sweeps:
        report["sweeps"].append(sweep(what, options, device))
        print(what, "exponents", report["sweeps"][-1]["exponents"], flush=True)
        if options.out:
            options.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
            save(draw(report["sweeps"], device.type == "cuda"), options.out)


if __name__ == "__main__":
    with one_line_errors():
        main()
