"""Window attention on a GPU, as an operator that a compiled graph contains as one node. The plain form is
models/swin.WindowAttention, on rolled and cut maps; nn/kernels/window_attention.py works on the map in place."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vitreous.nn import kernels

# A window's softmax is kept in registers, which suffice for windows of 7 and 8, not 12, and for half precision only.
MOST_PLACES, HEAD_WIDTHS, DTYPES = 64, (16, 32, 64), (torch.bfloat16, torch.float16)


def serves(x: Tensor, head_width: int, size: tuple[int, int]) -> bool:
    """Whether the kernel supports what is projected from a map x, cut into windows of this size."""
    fits = head_width in HEAD_WIDTHS and size[0] * size[1] <= MOST_PLACES
    return fits and kernels.serve(x) and kernels.computed_dtype(x) in DTYPES


@torch.library.custom_op("vitreous::window_attention", mutates_args=())
def attend(projected: Tensor, table: Tensor, cut: Sequence[int]) -> Tensor:
    """(B, H, W, 3 * D) -> (B, H, W, D): attention in every window. H and W are whole windows.

    table: (offsets, heads), float32, the biases of the offsets.
    cut: height and width of a window, how far they are shifted down and right, and the window that the table is for.
    """
    from vitreous.nn.kernels.window_attention import attended

    with torch.cuda.device_of(projected):  # type: ignore[no-untyped-call]
        return attended(projected.contiguous(), table.contiguous(), tuple(cut))


@attend.register_fake
def _(projected: Tensor, table: Tensor, cut: Sequence[int]) -> Tensor:
    return projected.new_empty(*projected.shape[:3], projected.shape[3] // 3)


@torch.library.custom_op("vitreous::window_attention_backward", mutates_args=())
def attend_backward(projected: Tensor, table: Tensor, grad: Tensor, cut: Sequence[int]) -> tuple[Tensor, Tensor]:
    from vitreous.nn.kernels.window_attention import gradients

    with torch.cuda.device_of(projected):  # type: ignore[no-untyped-call]
        return gradients(projected.contiguous(), table.contiguous(), grad.contiguous(), tuple(cut))


@attend_backward.register_fake
def _(projected: Tensor, table: Tensor, grad: Tensor, cut: Sequence[int]) -> tuple[Tensor, Tensor]:
    return projected.new_empty(projected.shape), table.new_empty(table.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    projected, table, ctx.cut = inputs
    ctx.save_for_backward(projected, table)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    projected, table = ctx.saved_tensors
    to_projected, to_table = attend_backward(projected, table, grad, ctx.cut)
    return to_projected, to_table, None


attend.register_autograd(_backward, setup_context=_remember)
