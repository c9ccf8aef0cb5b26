"""The kernels of a training step alone, at shapes of ViTs: ours beside torch's, in bf16 on one GPU.

    python benchmarks/step_kernels.py --out step_kernels.json

Attention from the product that makes queries, keys and values to the one that follows, GELU with the gradient of the
bias before it, and AdamW with clip and average. `--choices` tries other divisions of the work than the ones we chose.
Every row is written at once; one that fails says so. `TRITON_INTERPRET=1 ... --tiny` tries it out on any machine.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels import milliseconds
from side_by_side import noted
from vitreous.cli import one_line_errors
from vitreous.nn.gelu import biased_gelu
from vitreous.nn.kernels import gelu as gelu_kernels
from vitreous.nn.kernels import packed_attention as ours
from vitreous.nn.packed_attention import attend
from vitreous.training.environment import environment

SHAPES = ((256, 197, 768, 12), (512, 65, 256, 8), (256, 197, 384, 6), (256, 197, 1024, 16), (256, 50, 1024, 16))
TINY = ((1, 17, 32, 2), (1, 5, 64, 2))
ON = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Triton's interpreter has no bfloat16, and torch's CPU has one way to attend.
DTYPE = torch.bfloat16 if ON.type == "cuda" else torch.float32
PEERS = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION] if ON.type == "cuda" else [SDPBackend.MATH]
Shapes = tuple[tuple[int, int, int, int], ...]  # batch, tokens, width, heads
Row = dict[str, Any]


def both_ways(call: Callable[..., Tensor], *inputs: Tensor) -> Row:
    found: Row = {}
    with noted(found, "failed"):
        out = call(*inputs)
        grad = torch.randn_like(out)
        found["forward_ms"] = round(milliseconds(lambda: call(*inputs).detach()), 4)
        backward = milliseconds(lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True))
        found["backward_ms"] = round(backward, 4)
    return found


def summed(x: Tensor) -> Row:
    """What the gradient of a bias costs by itself."""
    return {"by": "the sum for the bias", "backward_ms": round(milliseconds(partial(torch.sum, x, (0, 1))), 4)}


def by_torch(packed: Tensor, heads: int, backend: SDPBackend) -> Tensor:
    """On the way back, gradients of queries, keys and values are brought together; that of a bias is not in it."""
    B, N, _ = packed.shape
    q, k, v = packed.view(B, N, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def attention(shapes: Shapes, choices: bool) -> Iterator[Row]:
    sizes = [(64, 4, 2)]
    sizes += [(64, 4, 3), (64, 4, 1), (64, 8, 2), (128, 8, 2), (32, 4, 2)] if choices else []
    for B, N, D, heads in shapes:
        packed = torch.randn(B, N, 3 * D, device=ON, dtype=DTYPE, requires_grad=True)
        bias = torch.zeros(3 * D, device=ON, requires_grad=True)
        of = {"what": "attention", "shape": (B, N, D, heads)}
        for backend in PEERS:
            yield of | {"by": backend.name, **both_ways(partial(by_torch, heads=heads, backend=backend), packed)}
        yield of | summed(packed)
        for block, warps, stages in sizes if (B, N, D, heads) == shapes[0] else sizes[:1]:
            ours.BLOCK, ours.NUM_WARPS, ours.NUM_STAGES = block, warps, stages
            found = both_ways(lambda packed, bias, heads=heads: attend(packed, bias, heads)[0], packed, bias)
            yield of | {"by": f"ours {block, warps, stages}", **found}


def gelu(shapes: Shapes, choices: bool) -> Iterator[Row]:
    sizes = [(4096, 16, 256, 8)]
    sizes += [(2048, 16, 256, 8), (8192, 8, 256, 4), (4096, 32, 128, 8), (4096, 8, 512, 8)] if choices else []
    for B, N, D, _ in shapes[:2]:
        x = torch.randn(B, N, 4 * D, device=ON, dtype=DTYPE, requires_grad=True)
        bias = torch.zeros(4 * D, device=ON, requires_grad=True)
        of = {"what": "gelu", "shape": (B, N, 4 * D)}
        for kind in ("none", "tanh"):
            yield of | {"by": f"torch.compile, {kind}", **both_ways(compiled(partial(F.gelu, approximate=kind)), x)}
        yield of | summed(x)
        for chosen in sizes if shapes[0][2] == D else sizes[:1]:
            gelu_kernels.BLOCK, gelu_kernels.ROWS, gelu_kernels.COLUMNS, gelu_kernels.NUM_WARPS = chosen
            found = both_ways(biased_gelu, x, bias)
            for way, passes in (("forward", 2), ("backward", 3)):
                if f"{way}_ms" in found:
                    found[f"{way}_TB_s"] = round(passes * x.numel() * 2 / found[f"{way}_ms"] / 1e9, 2)
            yield of | {"by": f"ours {chosen}", **found}


def compiled(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(call) if ON.type == "cuda" else call


def adamw(name: str) -> Iterator[Row]:
    """A step of a model's parameters, with clip and average."""
    from vitreous import create_model
    from vitreous.nn import kernels
    from vitreous.training.averages import AverageSettings
    from vitreous.training.one_pass import OnePass
    from vitreous.training.optim import AdamWSettings

    bad = torch.zeros((), device=ON, dtype=torch.bool)
    for is_ours in (False, True) if ON.type == "cuda" else (False,):
        row: Row = {"what": "adamw", "by": "ours" if is_ours else "torch"}
        with noted(row, "failed"), patch.dict(kernels.PAY, adamw=is_ours):
            objective = create_model(name, num_classes=1000).to(ON)
            optimizer, average = AdamWSettings().build(objective), AverageSettings(kind="ema").build(objective)
            for p in objective.parameters():
                p.grad = torch.randn_like(p)
            one_pass = OnePass.of(objective, optimizer, average)
            assert (one_pass is not None) == is_ours

            def step(optimizer=optimizer, average=average, one_pass=one_pass) -> None:  # type: ignore[no-untyped-def]
                if one_pass is None:
                    optimizer.clip(1.0)
                    optimizer.step(bad)
                else:
                    one_pass.step(optimizer.norm(), 1.0, bad)
                average.update()

            row["ms"] = round(captured(step), 4)
            # Gradients are read twice; weights, two moments and the average read and written.
            moved = sum(p.numel() for p in objective.parameters()) * 4 * 10
            row["TB_s_of_what_it_must_move"] = round(moved / row["ms"] / 1e9, 2)
        yield row


def captured(step: Callable[[], None]) -> float:
    """Milliseconds of a step as a CUDA graph, so that launches do not count."""
    if ON.type == "cpu":
        return milliseconds(step)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return milliseconds(graph.replay)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--choices", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the script")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    shapes = TINY if options.tiny else SHAPES
    rows: list[Row] = []
    for row in chain(
        attention(shapes, options.choices),
        gelu(shapes, options.choices),
        adamw("vit_ti16" if options.tiny else "vit_b16"),
    ):
        rows.append(row)
        print(json.dumps(row), flush=True)
        if options.out:
            options.out.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n")
    if all("failed" in row for row in rows if row["by"].startswith("ours")):
        sys.exit(1)


if __name__ == "__main__":
    with one_line_errors():
        main()
