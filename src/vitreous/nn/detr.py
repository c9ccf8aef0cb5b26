"""DETR's encoder-decoder (Carion et al. 2020): learned queries read a map, and each predicts one box or none."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous import platforms
from vitreous.nn.attend import attend


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of an encoder-decoder."""

    queries: int
    width: int
    heads: int
    mlp_width: int
    encoder_depth: int
    decoder_depth: int
    dropout: float


class Decoded(NamedTuple):
    """The queries' predictions after each layer of the decoder."""

    logits: Tensor  # (L, B, Q, K)
    boxes: Tensor  # (L, B, Q, 4) as (cx, cy, w, h), 0 to 1 of the picture
    proposals: tuple[Tensor, Tensor] | None = None  # (B, Q, K) logits and (B, Q, 4) boxes before the decoder
    hinted: tuple[Tensor, Tensor] | None = None  # (L, B, M, K) and (L, B, M, 4), of queries made from given boxes


# ---- Which part of a map shows the picture, and positions


def places_seen(extent: Tensor | None, canvas: tuple[int, int], like: Tensor) -> Tensor:
    """(B, 2) int64: how many rows and columns of the map `like` (B, D, h, w) show the picture, judged by the upper left
    corners of its places; without an extent, all of them, (1, 2)."""
    shape = like.shape[-2:]
    if extent is None:
        # Filled on the device: a CUDA graph cannot contain a copy from the host.
        return torch.stack([torch.full((1,), side, device=like.device) for side in shape], dim=1)
    rows_columns = [
        (extent[:, axis] * shape[axis] + canvas[axis] - 1).div(canvas[axis], rounding_mode="floor") for axis in (0, 1)
    ]
    return torch.stack(rows_columns, dim=1)


def shown(seen: Tensor, shape: Sequence[int]) -> Tensor:
    """(B, h * w) bool: the places that show the picture."""
    rows, columns = (torch.arange(shape[axis], device=seen.device) < seen[:, axis, None] for axis in (0, 1))
    return (rows[:, :, None] & columns[:, None, :]).flatten(1)


def sine_positions(seen: Tensor, shape: Sequence[int], width: int, start: float, dtype: torch.dtype) -> Tensor:
    """(B, h * w, width): sines of the row in the first half, of the column in the second, as shares of what is `seen`.
    The first place is at `start`: DETR counts from 1, Deformable DETR from 0.5, the centre."""
    waves = []
    for axis in (0, 1):
        places = torch.arange(shape[axis], device=seen.device).to(dtype) + start
        waves.append(sine_waves(places / (seen[:, axis, None].to(dtype) + 1e-6), width // 2))
    rows, columns = waves[0][:, :, None].expand(-1, -1, shape[1], -1), waves[1][:, None].expand(-1, shape[0], -1, -1)
    return torch.cat([rows, columns], dim=-1).flatten(1, 2)


def sine_waves(shares: Tensor, width: int) -> Tensor:
    """(...) numbers from 0 to 1 -> (..., width): sines and cosines alternately, of increasing wavelengths."""
    exponents = torch.arange(width, device=shares.device).div(2, rounding_mode="floor").to(shares.dtype) * 2 / width
    angles = (shares * (2 * math.pi))[..., None] / 10_000**exponents
    return torch.stack([angles[..., 0::2].sin(), angles[..., 1::2].cos()], dim=-1).flatten(-2)


# ---- Parts


class CrossAttention(nn.Module):
    """Attention from tokens to others, or to themselves: queries and keys may be computed from other inputs than
    values, since positions are added only to them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads")
        self.heads = heads
        self.project_in = nn.Linear(width, 3 * width)  # queries, keys, values
        self.project_out = nn.Linear(width, width)
        for layer in (self.project_in, self.project_out):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, shown: Tensor | None = None) -> Tensor:
        """(B, Q, D), (B, N, D), (B, N, D) -> (B, Q, D). shown: (B, N) or (B, Q, N) bool, what may be attended to."""
        q, k = self._queries_keys(queries, keys)
        v = self._apart(F.linear(values, *self._part(2)))
        looked = attend(q, k, v, None if shown is None else _by_head(shown))
        out: Tensor = self.project_out(looked.transpose(1, 2).flatten(2))
        return out

    def weights(self, queries: Tensor, keys: Tensor, shown: Tensor | None = None) -> Tensor:
        """(B, heads, Q, N): the softmax rows. For inspection only."""
        q, k = self._queries_keys(queries, keys)
        logits = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        if shown is not None:
            logits = logits.masked_fill(~_by_head(shown), -math.inf)
        out: Tensor = logits.softmax(dim=-1)
        return out

    def _queries_keys(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        if queries is keys:  # one product for both
            weight, bias = (whole.chunk(3)[:2] for whole in (self.project_in.weight, self.project_in.bias))
            q, k = F.linear(queries, torch.cat(weight), torch.cat(bias)).chunk(2, dim=-1)
        else:
            q, k = F.linear(queries, *self._part(0)), F.linear(keys, *self._part(1))
        return self._apart(q), self._apart(k)

    def _part(self, number: int) -> tuple[Tensor, Tensor]:
        return self.project_in.weight.chunk(3)[number], self.project_in.bias.chunk(3)[number]

    def _apart(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, heads, N, d)"""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


def _by_head(shown: Tensor) -> Tensor:
    """(B, N) or (B, Q, N) -> (B, 1, 1 or Q, N)"""
    return shown[:, None, None] if shown.ndim == 2 else shown[:, None]


class ReluMlp(nn.Module):
    """Dense layers with a ReLU between each and the next."""

    def __init__(self, widths: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__()
        *hidden, self.last = (nn.Linear(*pair) for pair in pairwise(widths))
        self.hidden = nn.ModuleList(hidden)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        for layer in (*hidden, self.last):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = self.dropout(F.relu(layer(x)))
        out: Tensor = self.last(x)
        return out


class Residual(nn.Module):
    """norm(x + branch): the norm comes last, as in the original transformer."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        out: Tensor = self.norm(x + self.dropout(branch))
        return out


class EncoderLayer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention = CrossAttention(sizes.width, sizes.heads)
        self.attention_residual = Residual(sizes.width, sizes.dropout)
        self.mlp = ReluMlp((sizes.width, sizes.mlp_width, sizes.width), sizes.dropout)
        self.mlp_residual = Residual(sizes.width, sizes.dropout)

    def forward(self, x: Tensor, positions: Tensor, shown: Tensor | None) -> Tensor:
        placed = x + positions
        x = self.attention_residual(x, self.attention(placed, placed, x, shown))
        out: Tensor = self.mlp_residual(x, self.mlp(x))
        return out


class DecoderLayer(nn.Module):
    """Queries attend to each other, then to the picture."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.self_attention = CrossAttention(sizes.width, sizes.heads)
        self.self_residual = Residual(sizes.width, sizes.dropout)
        self.attention = CrossAttention(sizes.width, sizes.heads)
        self.attention_residual = Residual(sizes.width, sizes.dropout)
        self.mlp = ReluMlp((sizes.width, sizes.mlp_width, sizes.width), sizes.dropout)
        self.mlp_residual = Residual(sizes.width, sizes.dropout)

    def forward(self, x: Tensor, queries: Tensor, keys: Tensor, values: Tensor, shown: Tensor | None) -> Tensor:
        """x: (B, Q, D), the contents of the queries; queries: (1, Q, D), added to them to form attention's queries."""
        placed = x + queries
        x = self.self_residual(x, self.self_attention(placed, placed, x))
        x = self.attention_residual(x, self.attention(x + queries, keys, values, shown))
        out: Tensor = self.mlp_residual(x, self.mlp(x))
        return out


class Detr(nn.Module):
    """One map through the encoder, queries through the decoder; each gives a box and a class or none (the last)."""

    softmax = True  # over the classes and none

    def __init__(self, channels: int, num_classes: int, sizes: Sizes) -> None:
        super().__init__()
        self.width = sizes.width
        self.project = nn.Conv2d(channels, sizes.width, 1)
        self.encoder = nn.ModuleList(EncoderLayer(sizes) for _ in range(sizes.encoder_depth))
        self.queries = nn.Parameter(torch.randn(sizes.queries, sizes.width))
        self.decoder = nn.ModuleList(DecoderLayer(sizes) for _ in range(sizes.decoder_depth))
        self.norm = nn.LayerNorm(sizes.width)
        self.classes = nn.Linear(sizes.width, num_classes + 1)
        self.boxes = ReluMlp((sizes.width, sizes.width, sizes.width, 4))

    def forward(self, maps: Sequence[Tensor], extent: Tensor | None, canvas: tuple[int, int]) -> Decoded:
        """maps: (B, C, h, w) each, finest first; only the last is read. extent: (B, 2), the number of rows and columns
        of the canvas that are picture."""
        last = self.project(maps[-1])  # (B, D, h, w)
        seen = places_seen(extent, canvas, last)
        positions = sine_positions(seen, last.shape[-2:], self.width, 1.0, wide(last.dtype))
        positions = positions.to(self.queries.dtype)
        mask = None if extent is None else shown(seen, last.shape[-2:])
        x = last.flatten(2).transpose(1, 2)  # (B, N, D)
        for layer in self.encoder:
            x = layer(x, positions, mask)
        return self._decoded(x + positions, x, mask)

    def _decoded(self, keys: Tensor, values: Tensor, mask: Tensor | None) -> Decoded:
        queries = self.queries[None]
        x, found = torch.zeros_like(queries).expand(values.shape[0], -1, -1), []
        for layer in self.decoder:
            x = layer(x, queries, keys, values, mask)
            found.append(self.norm(x))
        stacked = torch.stack(found)  # (L, B, Q, D)
        return Decoded(self.classes(stacked), precise(self.boxes, stacked).sigmoid())


def wide(dtype: torch.dtype) -> torch.dtype:
    """At least float32, which sines of positions and boxes need."""
    return torch.promote_types(dtype, torch.float32)


def precise(layers: ReluMlp, x: Tensor) -> Tensor:
    """In the precision of the weights, even under autocast: bfloat16 moves a box in a large picture by about 3 px."""
    with platforms.full_precision(x.device):
        out: Tensor = layers(x.to(next(layers.parameters()).dtype))
        return out.to(wide(out.dtype))
