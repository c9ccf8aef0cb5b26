"""Dense layers that multiply 8-bit floats, for training on a GPU that supports it (opt-in: precision fp8).

Every row of a factor has its own scale (its largest number becomes the largest possible), which the kernel that writes
the row can compute: no pass over a tensor is added, and nothing is remembered between steps. The output and the
gradient of the input are such products; the gradient of the weight, in which outliers of all samples meet, is computed
in bfloat16. All are e4m3: with a scale per row, gradients need no wider range.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LARGEST = 448.0  # of e4m3
LEAST = 1e-12  # smallest scale: a row may be all zeros
MULTIPLE = 16  # the hardware needs the axes of a matrix to be multiples of this


class Dense8(nn.Linear):
    """An nn.Linear that multiplies in 8 bits while it trains."""

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.bias)

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if not self.training:
            return F.linear(x, self.weight, bias)
        found: Tensor = Product8.apply(x.flatten(0, -2), self.weight, bias)  # type: ignore[no-untyped-call]
        return found.view(*x.shape[:-1], -1)


def multiplied(dense: nn.Linear, x: Tensor, bias: Tensor | None) -> Tensor:
    """The product of a dense layer with a given bias instead of its own."""
    return dense.product(x, bias) if isinstance(dense, Dense8) else F.linear(x, dense.weight, bias)


def use_8_bits(block: nn.Module) -> None:
    """Changes its dense layers in place."""
    for part in block.modules():
        if type(part) is nn.Linear and part.in_features % MULTIPLE == part.out_features % MULTIPLE == 0:
            part.__class__ = Dense8


class Product8(torch.autograd.Function):
    """x (T, K), weight (N, K) and bias (N,) -> (T, N) bfloat16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.kinds = x.dtype, weight.dtype
        x, weight = x.to(torch.bfloat16), weight.to(torch.bfloat16)
        ctx.save_for_backward(x, weight)
        return product(*rounded(x), *rounded(weight), None if bias is None else bias.to(x.dtype), fast=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad = grads[0].to(x.dtype)
        to_x = product(*rounded(grad), *rounded(weight.T), None, fast=False)
        to_bias = grad.float().sum(0) if ctx.needs_input_grad[2] else None
        return to_x.to(ctx.kinds[0]), (grad.T @ x).to(ctx.kinds[1]), to_bias


def rounded(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(R, K) -> (R, K) e4m3, and (R, 1) float32, the scales to multiply its rows by."""
    wide = matrix.float()
    scales = (wide.abs().amax(dim=1, keepdim=True) / LARGEST).clamp(min=LEAST)
    return (wide / scales).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).contiguous(), scales


def product(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor, bias: Tensor | None, *, fast: bool) -> Tensor:
    """a (M, K) and b (N, K), by rows, and bias (N,) -> a b' + bias (M, N) bfloat16. fast: less precise sums."""
    if a.is_cuda:
        return torch._scaled_mm(a, b.T, a_scales, b_scales.T, bias=bias, out_dtype=torch.bfloat16, use_fast_accum=fast)
    found = (a.float() @ b.float().T) * a_scales * b_scales.T
    return (found if bias is None else found + bias.float()).to(torch.bfloat16)
