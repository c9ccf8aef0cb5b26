"""Self-attention between two matrix products on a GPU: queries, keys and values are read where the first product wrote
them, and their gradients are written where its backward pass reads them, with that of its bias. An operator, so that a
compiled graph contains it as one node; the plain form is nn/attention.Attention, the kernel
nn/kernels/packed_attention.py."""

from typing import Any

import torch
from torch import Tensor

from vitreous.nn import kernels

# For longer sequences torch's own kernels are faster.
MOST_TOKENS, HEAD_WIDTHS, DTYPES = 512, (16, 32, 64, 128), (torch.bfloat16, torch.float16)


def serves(x: Tensor, head_width: int) -> bool:
    """Whether the kernel supports what is projected from tokens x (B, N, D)."""
    fits = head_width in HEAD_WIDTHS and x.ndim == 3 and x.shape[1] <= MOST_TOKENS
    return fits and kernels.pays("attention", x) and kernels.computed_dtype(x) in DTYPES


@torch.library.custom_op("vitreous::packed_attention", mutates_args=())
def attend(packed: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """(B, N, 3 * D), which includes the bias (3 * D,) -> (B, N, D), and what the backward pass needs."""
    from vitreous.nn.kernels.packed_attention import attended

    with torch.cuda.device_of(packed):  # type: ignore[no-untyped-call]
        return attended(packed.contiguous(), heads)


@attend.register_fake
def _(packed: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    B, N, tripled = packed.shape
    return packed.new_empty(B, N, tripled // 3), packed.new_empty(B, heads, N, dtype=torch.float32)


@torch.library.custom_op("vitreous::packed_attention_backward", mutates_args=())
def attend_backward(packed: Tensor, bias: Tensor, out: Tensor, sums: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    from vitreous.nn.kernels.packed_attention import gradients

    with torch.cuda.device_of(packed):  # type: ignore[no-untyped-call]
        to_packed, to_bias = gradients(packed.contiguous(), out, sums, grad.contiguous())
    return to_packed, to_bias.to(bias.dtype)


@attend_backward.register_fake
def _(packed: Tensor, bias: Tensor, out: Tensor, sums: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return packed.new_empty(packed.shape), bias.new_empty(bias.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    packed, bias, _ = inputs
    ctx.save_for_backward(packed, bias, *output)


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    packed, bias, out, sums = ctx.saved_tensors
    to_packed, to_bias = attend_backward(packed, bias, out, sums, grad)
    return to_packed, to_bias, None


attend.register_autograd(_backward, setup_context=_remember)
