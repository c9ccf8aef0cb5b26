"""The small networks that objectives put behind an encoder, and discard when training ends."""

import itertools

import torch
from torch import Tensor, nn

from vitreous.nn.gather import mean_over_ranks


class BatchNorm(nn.Module):
    """Normalises every feature over the batch of all ranks. It keeps no running statistics: these heads are used in
    training only."""

    def __init__(self, width: int, affine: bool = True, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.norm_scale = nn.Parameter(torch.ones(width)) if affine else None
        self.norm_bias = nn.Parameter(torch.zeros(width)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        full = x.float()  # (B, D): means over a batch lose too much in bfloat16
        mean = mean_over_ranks(full.mean(dim=0))
        centred = full - mean
        variance = mean_over_ranks(centred.square().mean(dim=0))
        normalised = centred * (variance + self.epsilon).rsqrt()
        if self.norm_scale is not None and self.norm_bias is not None:
            normalised = normalised * self.norm_scale + self.norm_bias
        return normalised.to(x.dtype)


def projector(*widths: int, norm_last: bool = False) -> nn.Sequential:
    """Dense layers of these widths, with batch norm and ReLU between them; after the last, batch norm without scale and
    bias if `norm_last`. A norm makes a bias before it useless, so only a last layer without norm has one."""
    layers: list[nn.Module] = []
    for index, (width, out) in enumerate(itertools.pairwise(widths)):
        last = index == len(widths) - 2
        layers.append(nn.Linear(width, out, bias=last and not norm_last))
        if not last:
            layers += [BatchNorm(out), nn.ReLU()]
        elif norm_last:
            layers.append(BatchNorm(out, affine=False))
    return nn.Sequential(*layers)
