"""Convolutions of channels-last maps, of the two kinds that are slow in cuDNN.

On a GPU nn/kernels/depthwise.py replaces depthwise ones, whose weight gradient is the slowest; those that cut a map
into patches become one matrix product.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.nn import kernels


def depthwise(x: Tensor, conv: nn.Conv2d, gelu: bool = False) -> Tensor:
    """(B, h, w, D) -> (B, h, w, D): one filter per channel, then optionally GELU."""
    if kernels.serve(x) and _is_plain(conv):
        assert conv.bias is not None
        taps = conv.weight.flatten(1).T  # (kernel * kernel, D)
        filters = torch.cat([taps, conv.bias.unsqueeze(0)]).float()
        out: Tensor = convolve(x.to(kernels.computed_dtype(x)).contiguous(), filters, gelu)
        return out
    mixed: Tensor = conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    return F.gelu(mixed) if gelu else mixed


def patchwise(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """(B, h, w, C) -> (B, h / stride, w / stride, D), by a convolution whose stride equals its kernel."""
    if not kernels.serve(x):
        mixed: Tensor = conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return mixed
    B, H, W, C = x.shape
    down, right = conv.stride
    h, w = H // down, W // right
    whole = x if h * down == H and w * right == W else x[:, : h * down, : w * right]
    patches = whole.reshape(B, h, down, w, right, C).transpose(2, 3).flatten(3)
    return F.linear(patches, conv.weight.permute(0, 2, 3, 1).flatten(1), conv.bias)


def _is_plain(conv: nn.Conv2d) -> bool:
    (kernel, width), padding = conv.kernel_size, conv.kernel_size[0] // 2
    is_same = kernel == width and kernel in (3, 5, 7) and conv.padding == (padding, padding) and conv.stride == (1, 1)
    is_depthwise = conv.groups == conv.in_channels == conv.out_channels
    return is_same and is_depthwise and conv.bias is not None and conv.dilation == (1, 1)


# ---- The kernel as an operator, so that a compiled graph holds it as one node.


@torch.library.custom_op("vitreous::depthwise", mutates_args=())
def convolve(x: Tensor, filters: Tensor, gelu: bool) -> Tensor:
    """x (B, h, w, D) contiguous; filters (kernel * kernel + 1, D) float32, the last row the bias."""
    from vitreous.nn.kernels.depthwise import convolved

    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        return convolved(x, filters, gelu)


@convolve.register_fake
def _(x: Tensor, filters: Tensor, gelu: bool) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("vitreous::depthwise_backward", mutates_args=())
def convolve_backward(x: Tensor, filters: Tensor, grad: Tensor, gelu: bool) -> tuple[Tensor, Tensor]:
    from vitreous.nn.kernels.depthwise import gradients

    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        return gradients(x, filters, grad.contiguous(), gelu)


@convolve_backward.register_fake
def _(x: Tensor, filters: Tensor, grad: Tensor, gelu: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(filters)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, filters, ctx.gelu = inputs
    ctx.save_for_backward(x, filters)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    to_x, to_filters = convolve_backward(*ctx.saved_tensors, grad, ctx.gelu)
    return to_x, to_filters, None


convolve.register_autograd(_backward, setup_context=_remember)
