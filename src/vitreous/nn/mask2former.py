"""Mask2Former (Cheng et al. 2022): queries that attend inside their own masks, on maps of three scales.

A pixel decoder mixes the maps by deformable attention and computes the finest one; queries read its coarser maps in
turn, each inside the mask that it has predicted so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.nn.bilinear import resized_maps
from vitreous.nn.convolution import group_norm
from vitreous.nn.deformable_detr import EncoderLayer, encoded
from vitreous.nn.detr import CrossAttention, ReluMlp, Residual, places_seen, sine_positions, wide
from vitreous.nn.pyramid import ChannelNorm
from vitreous.nn.query_masks import QueryMasks, inside

SCALES = 3  # maps that queries read, the coarsest ones
NORM_EPSILON = 1e-5  # of the norms of an encoder's maps


@dataclass(frozen=True, kw_only=True)
class PixelSizes:
    """Of the pixel decoder."""

    width: int
    heads: int
    mlp_width: int
    depth: int
    points: int  # per map and head
    mask_width: int  # of the finest map's pixels
    levels: int = SCALES
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class QuerySizes:
    """Of the queries' decoder."""

    queries: int
    width: int
    heads: int
    mlp_width: int
    depth: int
    dropout: float = 0.0


@dataclass(frozen=True)
class Pixels:
    """The pixel decoder's output."""

    finest: Tensor  # (B, mask_width, h, w)
    maps: list[Tensor]  # (B, D, h, w) each, coarsest first


class PixelDecoder(nn.Module):
    """The coarsest maps go through layers of deformable attention; then the finer ones are added, one after another."""

    def __init__(self, channels: Sequence[int], sizes: PixelSizes) -> None:
        super().__init__()
        width, num = sizes.width, min(sizes.levels, len(channels))
        coarse, fine = list(channels)[-num:], list(channels)[:-num]
        sizes = replace(sizes, levels=num)
        self.project = nn.ModuleList(_conv(each, width, 1, bias=True) for each in reversed(coarse))
        self.levels = nn.Parameter(torch.zeros(num, width))
        self.encoder = nn.ModuleList(EncoderLayer(sizes) for _ in range(sizes.depth))
        self.laterals = nn.ModuleList(_conv(each, width, 1, bias=False) for each in reversed(fine))
        self.smooth = nn.ModuleList(_conv(width, width, 3, bias=False) for _ in fine)
        self.masks = nn.Conv2d(width, sizes.mask_width, 1)
        nn.init.kaiming_uniform_(self.masks.weight, a=1)
        nn.init.zeros_(_bias(self.masks))

    def forward(self, maps: Sequence[Tensor]) -> Pixels:
        """maps: (B, C, h, w) each, finest first, as many as channels were given."""
        num = len(self.project)
        projected = [layer(one) for layer, one in zip(self.project, reversed(maps[-num:]), strict=True)]
        canvas = (maps[0].shape[-2], maps[0].shape[-1])
        memory = encoded(projected, self.levels, self.encoder, None, canvas, start=1.0)
        split = torch.split(memory.tokens, [h * w for h, w in memory.shapes], dim=1)
        mixed = [one.mT.reshape(one.shape[0], -1, *shape) for one, shape in zip(split, memory.shapes, strict=True)]
        x = mixed[-1]
        for lateral, smooth, one in zip(self.laterals, self.smooth, reversed(maps[:-num]), strict=True):
            across = lateral(one)
            x = F.relu(smooth(across + resized_maps(x, (across.shape[-2], across.shape[-1])).to(across.dtype)))
        return Pixels(self.masks(x), mixed)


class MaskedLayer(nn.Module):
    """Queries attend to the picture, each inside its mask, then to each other."""

    def __init__(self, sizes: QuerySizes) -> None:
        super().__init__()
        self.attention = CrossAttention(sizes.width, sizes.heads)
        self.attention_residual = Residual(sizes.width, sizes.dropout)
        self.self_attention = CrossAttention(sizes.width, sizes.heads)
        self.self_residual = Residual(sizes.width, sizes.dropout)
        self.mlp = ReluMlp((sizes.width, sizes.mlp_width, sizes.width), sizes.dropout)
        self.mlp_residual = Residual(sizes.width, sizes.dropout)

    def forward(self, x: Tensor, queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        """x: (B, Q, D), the contents of the queries; queries: (1, Q, D), added to them to form attention's queries.
        seen: (B, Q, N) bool."""
        x = self.attention_residual(x, self.attention(x + queries, keys, values, seen))
        placed = x + queries
        x = self.self_residual(x, self.self_attention(placed, placed, x))
        out: Tensor = self.mlp_residual(x, self.mlp(x))
        return out


class Mask2Former(nn.Module):
    """An encoder's maps in, QueryMasks out. normed: for each map, whether it is normed already; if not, it is here."""

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        pixel: PixelSizes,
        query: QuerySizes,
        normed: Sequence[bool] | None = None,
    ) -> None:
        super().__init__()
        width = query.width
        self.norms = nn.ModuleList(
            nn.Identity() if is_normed else ChannelNorm(each, NORM_EPSILON)
            for each, is_normed in zip(channels, normed or [True] * len(channels), strict=True)
        )
        self.pixels = PixelDecoder(channels, pixel)
        self.queries = nn.Parameter(torch.randn(query.queries, width))
        self.known = nn.Parameter(torch.randn(query.queries, width))
        self.levels = nn.Parameter(torch.randn(len(self.pixels.project), width))
        self.decoder = nn.ModuleList(MaskedLayer(query) for _ in range(query.depth))
        self.norm = nn.LayerNorm(width)
        self.classes = nn.Linear(width, num_classes + 1)
        self.masks = ReluMlp((width, width, width, pixel.mask_width))

    def forward(self, maps: Sequence[Tensor]) -> QueryMasks:
        """maps: (B, C, h, w) each, finest first."""
        pixels = self.pixels([norm(one) for norm, one in zip(self.norms, maps, strict=True)])
        finest = pixels.finest
        values = [one.flatten(2).transpose(1, 2) + level for one, level in zip(pixels.maps, self.levels, strict=True)]
        keys = [value + _positions(one, value) for one, value in zip(pixels.maps, values, strict=True)]
        # A smaller mask is the product with smaller pixels, which are computed once for all queries and layers.
        smaller = [resized_maps(finest.detach(), (one.shape[-2], one.shape[-1])) for one in pixels.maps]
        x, queries = self.known.expand(finest.shape[0], -1, -1), self.queries[None]
        found = [self.norm(x)]
        drawn = [self.masks(found[0])]
        for number, layer in enumerate(self.decoder):
            scale = number % len(keys)
            seen = inside(drawn[-1], smaller[scale])
            seen = seen | ~seen.any(dim=-1, keepdim=True)  # queries with an empty mask may look everywhere
            x = layer(x, queries, keys[scale], values[scale], seen)
            found.append(self.norm(x))
            drawn.append(self.masks(found[-1]))
        return QueryMasks(self.classes(torch.stack(found)), torch.stack(drawn), finest[None])


def _positions(map_: Tensor, like: Tensor) -> Tensor:
    """(1, h * w, D)"""
    shape = (map_.shape[-2], map_.shape[-1])
    seen = places_seen(None, shape, map_)
    return sine_positions(seen, shape, like.shape[-1], 1.0, wide(like.dtype)).to(like.dtype)


def _conv(channels: int, width: int, kernel: int, bias: bool) -> nn.Sequential:
    conv = nn.Conv2d(channels, width, kernel, padding=kernel // 2, bias=bias)
    nn.init.kaiming_uniform_(conv.weight, a=1)
    if bias:
        nn.init.zeros_(_bias(conv))
    return nn.Sequential(conv, group_norm(width, 1e-5))


def _bias(conv: nn.Conv2d) -> Tensor:
    assert conv.bias is not None
    return conv.bias
