"""The exact GELU after a dense layer, with the gradient of the layer's bias in the same pass. The plain form is F.gelu;
on a GPU, nn/kernels/gelu.py needs a fraction of the instructions, and the bias no pass of its own."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.nn import kernels
from vitreous.nn.fp8 import multiplied


def dense_gelu(dense: nn.Linear, x: Tensor) -> Tensor:
    """gelu(dense(x)), exactly (erf)."""
    if dense.bias is None or not kernels.pays("gelu", x):
        return F.gelu(dense(x))
    # The product adds the bias for free; the GELU's backward pass gives the bias its gradient.
    out: Tensor = biased_gelu(multiplied(dense, x, dense.bias.detach()), dense.bias)
    return out


@torch.library.custom_op("vitreous::biased_gelu", mutates_args=())
def biased_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """gelu(x) of x (..., C), which includes the bias (C,): the gradient of the bias is the sum of that of x."""
    from vitreous.nn.kernels.gelu import activated

    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        return activated(x.contiguous())


@biased_gelu.register_fake
def _(x: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("vitreous::biased_gelu_backward", mutates_args=())
def biased_gelu_backward(x: Tensor, bias: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    from vitreous.nn.kernels.gelu import gradients

    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        to_x, to_bias = gradients(x.contiguous(), grad.contiguous())
    return to_x, to_bias.to(bias.dtype)


@biased_gelu_backward.register_fake
def _(x: Tensor, bias: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), bias.new_empty(bias.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, bias = ctx.saved_tensors
    to_x, to_bias = biased_gelu_backward(x, bias, grad)
    return to_x, to_bias


biased_gelu.register_autograd(_backward, setup_context=_remember)
