"""Convolution with standardised weights, and its norms: the parts of BiT and the hybrid stems."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.nn.tokens import lecun_normal_

Padding = Literal["centred", "same"]  # kernel // 2 on both sides, or as TensorFlow and JAX pad
# Against division by zero, epsilon is added to a filter's variance (BiT's released code, timm), or to its standard
# deviation (the hybrids' code, which is JAX).
Standardisation = Literal["variance", "deviation"]


class StandardizedConv(nn.Conv2d):
    """Each filter is standardised to mean 0 and variance 1 before use (Qiao et al. 2019)."""

    def __init__(
        self,
        channels: int,
        width: int,
        kernel: int,
        stride: int = 1,
        *,
        padding: Padding = "centred",
        epsilon: float = 1e-10,
        standardisation: Standardisation = "variance",
    ) -> None:
        centred = kernel // 2 if padding == "centred" else 0
        super().__init__(channels, width, kernel, stride=stride, padding=centred, bias=False)
        self.epsilon, self.standardisation, self.same = epsilon, standardisation, padding == "same"
        lecun_normal_(self.weight)

    def filters(self) -> Tensor:
        """(out, in, h, w): the standardised filters. Statistics of half-precision weights are computed in float32."""
        weight = self.weight.float() if self.weight.dtype in (torch.bfloat16, torch.float16) else self.weight
        variance, mean = torch.var_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
        if self.standardisation == "deviation":
            return (weight - mean) / (variance.sqrt() + self.epsilon)
        return (weight - mean) * torch.rsqrt(variance + self.epsilon)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.filters().to(self.weight.dtype)
        x = pad_same(x, self.kernel_size[0], self.stride[0]) if self.same else x
        return F.conv2d(x, weight, None, self.stride, self.padding)


def pad_same(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Pads with zeros for an output of ceil(size / stride); if the padding is odd, the far side gets more."""
    h, w = (max((math.ceil(size / stride) - 1) * stride + kernel - size, 0) for size in x.shape[-2:])
    return F.pad(x, (w // 2, w - w // 2, h // 2, h - h // 2)) if h or w else x


class FrozenBatchNorm(nn.Module):
    """Batch norm with fixed statistics from when its weights were trained: a factor and an offset."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, width: int, epsilon: float = 1e-5, learned: bool = True) -> None:
        super().__init__()
        self.epsilon = epsilon
        for name, value in (("weight", torch.ones(width)), ("bias", torch.zeros(width))):
            # Buffers, not parameters: they never learn, and are not counted.
            self.register_parameter(name, nn.Parameter(value)) if learned else self.register_buffer(name, value)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def line(self) -> tuple[Tensor, Tensor]:
        """The factor and the offset of each channel."""
        factor = self.weight * (self.variance + self.epsilon).rsqrt()
        return factor, self.bias - self.mean * factor

    def forward(self, x: Tensor) -> Tensor:
        factor, offset = self.line()
        return x * factor[:, None, None].to(x.dtype) + offset[:, None, None].to(x.dtype)


def group_norm(width: int, epsilon: float) -> nn.GroupNorm:
    """32 groups, as in BiT; fewer if a small width is not a multiple of 32."""
    return nn.GroupNorm(math.gcd(32, width), width, eps=epsilon)
