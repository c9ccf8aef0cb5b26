"""Each kernel of Swin, ConvNeXt and PVT v2 alone, at the shapes of a batch of 256 pictures of 224 px, in bf16.

    python benchmarks/kernels.py --out kernels.json

Per shape: the time of the way forward and of the way back, of ours and of the plain torch form, and how fast ours would
read and write if it touched every value once. `--choices` tries other divisions of the work than the ones we chose.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.cli import one_line_errors
from vitreous.models.swin import WindowAttention
from vitreous.nn import channels_last, kernels, window_attention
from vitreous.nn.channels_last import depthwise
from vitreous.training.environment import environment

TIMES = 10
Work = Callable[[], object]


def milliseconds(work: Work) -> float:
    """The median of several runs, each after one of the same kind."""
    work()
    work()
    found = []
    for _ in range(TIMES):
        if not torch.cuda.is_available():
            start = time.perf_counter()
            work()
            found.append(1000 * (time.perf_counter() - start))
            continue
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        work()
        ended.record()
        ended.synchronize()
        found.append(began.elapsed_time(ended))
    return sorted(found)[TIMES // 2]


def convolution(side: int, channels: int, kernel: int, gelu: bool, batch: int) -> tuple[dict[str, Work], float]:
    x, grad = (torch.randn(batch, side, side, channels, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    conv = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=channels).cuda()
    half = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=channels).cuda().bfloat16()
    filters = torch.cat([conv.weight.detach().flatten(1).T, conv.bias.detach()[None]])
    works = {
        "forward": lambda: channels_last.convolve(x, filters, gelu),
        "backward": lambda: channels_last.convolve_backward(x, filters, grad, gelu),
    }
    return works | plain(lambda leaf: depthwise(leaf, half, gelu), x, grad, half), 2 * x.numel()


def windows(side: int, heads: int, shifted: bool, batch: int) -> tuple[dict[str, Work], float]:
    width = 32 * heads
    x = torch.randn(batch, side, side, 3 * width, device="cuda", dtype=torch.bfloat16)
    grad = torch.randn(batch, side, side, width, device="cuda", dtype=torch.bfloat16)
    attention = WindowAttention(width, heads, 7, shifted).cuda().bfloat16()
    attention.project_in = attention.project_out = nn.Identity()
    cut = attention.windows((side, side))
    sizes = (*cut.size, *cut.shift, 7, 7)
    table = attention.bias_table.table.detach().float()
    works = {
        "forward": lambda: window_attention.attend(x, table, sizes),
        "backward": lambda: window_attention.attend_backward(x, table, grad, sizes),
    }
    return works | plain(attention, x, grad, attention), 4 * grad.numel()


def plain(form: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor, module: nn.Module) -> dict[str, Work]:
    """The torch form: the way forward, and both ways."""

    def both() -> None:
        leaf = x.detach().requires_grad_()
        torch.autograd.grad(form(leaf), [leaf, *module.parameters()], grad)

    def switched(work: Work) -> Work:
        def off() -> None:
            kernels.enabled = False
            try:
                work()
            finally:
                kernels.enabled = True

        return off

    return {"plain_forward": switched(torch.no_grad()(lambda: form(x))), "plain_both": switched(both)}


def row(name: str, made: tuple[dict[str, Work], float], only_ours: bool = False) -> dict[str, Any]:
    works, values = made
    found: dict[str, Any] = {"kernel": name}
    for what, work in works.items():
        if only_ours and what.startswith("plain"):
            continue
        try:
            found[f"{what}_ms"] = round(milliseconds(work), 4)
        except Exception as error:  # the others are still to be measured
            found[f"{what}_error"] = f"{type(error).__name__}: {error}"[:300]
    if "forward_ms" in found:
        found["forward_gb_s"] = round(2 * values / found["forward_ms"] / 1e6)
    print(json.dumps(found), flush=True)
    return found


def chosen(batch: int) -> list[dict[str, Any]]:
    rows = []
    for side, channels in ((56, 96), (28, 192), (14, 384), (7, 768)):
        rows.append(row(f"7 x 7, {side} px, {channels}", convolution(side, channels, 7, False, batch)))
    for side, channels in ((56, 512), (28, 1024), (14, 1280), (7, 2048)):
        rows.append(row(f"3 x 3 and GELU, {side} px, {channels}", convolution(side, channels, 3, True, batch)))
    for side, heads in ((56, 3), (28, 6), (14, 12), (7, 24)):
        rows.append(row(f"windows, {side} px, {heads} heads, shifted", windows(side, heads, True, batch)))
    rows.append(row("windows, 56 px, 3 heads", windows(56, 3, False, batch)))
    return rows


def choices(batch: int) -> list[dict[str, Any]]:
    from vitreous.nn.kernels import depthwise as of_depthwise
    from vitreous.nn.kernels import window_attention as of_windows

    seven = [(56, 96, 7, False), (14, 384, 7, False)]
    three = [(56, 512, 3, True), (14, 1280, 3, True)]
    shifted = [(56, 3, True), (14, 12, True)]
    tried = [
        (of_depthwise, convolution, seven, {"FORWARD": {7: ((7,), 8)}, "BACKWARD": {7: ((14,), 2)}}),
        (of_depthwise, convolution, seven, {"FORWARD": {7: ((7,), 4)}, "BACKWARD": {7: ((7,), 1)}}),
        (of_depthwise, convolution, three, {"FORWARD": {3: ((14,), 4)}, "BACKWARD": {3: ((14,), 2)}}),
        (of_depthwise, convolution, three, {"FORWARD": {3: ((7,), 4)}, "BACKWARD": {3: ((7,), 2)}}),
        (of_depthwise, convolution, seven + three, {"PROGRAMS": {3: 2112, 7: 1584}}),
        (of_depthwise, convolution, seven + three, {"PROGRAMS": {3: 528, 7: 396}}),
        (of_depthwise, convolution, seven + three, {"NUM_WARPS": 8}),
        (of_windows, windows, shifted, {"FORWARD_WINDOWS": 4}),
        (of_windows, windows, shifted, {"FORWARD_WINDOWS": 16}),
        (of_windows, windows, shifted, {"FORWARD_STAGES": 2, "BACKWARD_STAGES": 1}),
        (of_windows, windows, shifted, {"FORWARD_STAGES": 1, "BACKWARD_STAGES": 3}),
        (of_windows, windows, shifted, {"BACKWARD_PROGRAMS": 528}),
        (of_windows, windows, shifted, {"BACKWARD_PROGRAMS": 2112}),
        (of_windows, windows, shifted, {"NUM_WARPS": 8}),
    ]
    rows = []
    for module, make, shapes, values in tried:
        before = {name: getattr(module, name) for name in values}
        for shape in shapes:
            vars(module).update(values)
            rows.append(row(f"{shape} {values}", make(*shape, batch), only_ours=True))
            vars(module).update(before)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--choices", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = chosen(options.batch_size) + (choices(options.batch_size) if options.choices else [])
    if options.out:
        options.out.write_text(json.dumps({"environment": environment(), "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
