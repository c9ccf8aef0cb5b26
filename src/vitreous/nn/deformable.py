"""Multi-scale deformable attention (Zhu et al. 2021): a query reads a few places of several maps, which it chooses."""

import math

import torch
from torch import Tensor, nn

from vitreous.nn.kernels.deformable import Shapes, weighted_samples


class DeformableAttention(nn.Module):
    """Each head of a query reads a few points of every level, at learned offsets from the query's reference
    (paper, equation 3)."""

    def __init__(self, width: int, heads: int, levels: int, points: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads")
        self.heads, self.levels, self.points = heads, levels, points
        self.offsets = nn.Linear(width, heads * levels * points * 2)
        self.weights = nn.Linear(width, heads * levels * points)
        self.project_in = nn.Linear(width, width)  # values
        self.project_out = nn.Linear(width, width)
        # As in the released code: all weights equal; each head looks in its own direction, each point further away.
        for layer in (self.offsets, self.weights):
            nn.init.zeros_(layer.weight)
        nn.init.zeros_(self.weights.bias)
        with torch.no_grad():
            self.offsets.bias.copy_(_rays(heads, levels, points).flatten())
        for layer in (self.project_in, self.project_out):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(
        self, queries: Tensor, references: Tensor, tokens: Tensor, shapes: Shapes, valid: Tensor | None = None
    ) -> Tensor:
        """(B, Q, D) -> (B, Q, D).

        references: (B, Q, levels, 2), points (x, y), or (B, Q, levels, 4), boxes (cx, cy, w, h): 0 to 1 of each map.
        tokens: (B, N, D), what is read: the maps of all levels, of these `shapes`, concatenated.
        valid: (B, N) bool, false where a map shows padding, which counts as 0.
        """
        values = self.project_in(tokens)
        if valid is not None:
            values = values * valid[..., None].to(values.dtype)
        places, weights = self.looks(queries, references, shapes)
        out: Tensor = self.project_out(weighted_samples(values.unflatten(2, (self.heads, -1)), shapes, places, weights))
        return out

    def looks(self, queries: Tensor, references: Tensor, shapes: Shapes) -> tuple[Tensor, Tensor]:
        """Where each query looks, (B, Q, heads, levels, points, 2) as (x, y) in 0 to 1 of each map, and the weights of
        these places, (B, Q, heads, levels, points), which sum to 1 for each head."""
        split = (self.heads, self.levels, self.points)
        offsets = self.offsets(queries).unflatten(2, (*split, 2)).to(references.dtype)
        weights = self.weights(queries).unflatten(2, (self.heads, -1)).softmax(dim=-1).unflatten(3, split[1:])
        middles = references[:, :, None, :, None, :2]
        if references.shape[-1] == 2:  # in places of the map
            return middles + offsets * _place(shapes, references)[:, None], weights
        sides = references[:, :, None, :, None, 2:]  # in shares of the box: the last point may reach its border
        return middles + offsets * (0.5 / self.points) * sides, weights


def _place(shapes: Shapes, like: Tensor) -> Tensor:
    """(levels, 2): width and height of one place of each map, as shares of the map."""
    # Filled on the device: a CUDA graph cannot contain a copy from the host.
    return torch.stack([torch.stack([like.new_full((), 1 / side) for side in (w, h)]) for h, w in shapes])


def _rays(heads: int, levels: int, points: int) -> Tensor:
    """(heads, levels, points, 2)"""
    angles = torch.arange(heads) * (2 * math.pi / heads)
    directions = torch.stack([angles.cos(), angles.sin()], dim=-1)
    directions = directions / directions.abs().amax(dim=-1, keepdim=True)
    steps = torch.arange(1, points + 1)
    return (directions[:, None, :] * steps[:, None])[:, None].expand(-1, levels, -1, -1)
