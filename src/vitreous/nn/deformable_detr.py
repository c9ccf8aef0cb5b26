"""Deformable DETR (Zhu et al. 2021): queries, and tokens of several maps, each look at only a few places.

With refinement, every layer of the decoder corrects the boxes of the previous one; with two stages, the first boxes are
the best of those that the encoder's tokens propose.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from vitreous.nn.convolution import group_norm
from vitreous.nn.deformable import DeformableAttention
from vitreous.nn.detr import (
    CrossAttention,
    Decoded,
    ReluMlp,
    Residual,
    Sizes,
    places_seen,
    precise,
    shown,
    sine_positions,
    sine_waves,
    wide,
)
from vitreous.nn.kernels.deformable import Shapes

RARE = 0.01  # initial probability that a query is of a class
PROPOSAL = 0.05  # side of a proposal on the finest map, as a share of the picture; it doubles from map to map


@dataclass(frozen=True, kw_only=True)
class DeformableSizes(Sizes):
    levels: int  # maps to look at
    points: int  # per map and head
    refine: bool  # each layer of the decoder corrects the boxes of the previous one
    two_stage: bool  # start from boxes that the encoder proposes, not from learned points


@dataclass(frozen=True)
class Memory:
    """The encoder's output: all maps, concatenated."""

    tokens: Tensor  # (B, N, D)
    shapes: Shapes
    shown: Tensor | None  # (B, N) bool; None: all show the picture
    shares: Tensor  # (B, levels, 2): the part of each map's width and height that shows the picture

    def moved(self, references: Tensor) -> Tensor:
        """Points or boxes (B, Q, 2 or 4) of the picture -> (B, Q, levels, 2 or 4) of each map, padding included."""
        factors = torch.cat([self.shares] * (references.shape[-1] // 2), dim=-1)
        return references[:, :, None] * factors[:, None]


class LayerSizes(Protocol):
    """Of a layer of the encoder."""

    @property
    def width(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def mlp_width(self) -> int: ...
    @property
    def dropout(self) -> float: ...
    @property
    def levels(self) -> int: ...
    @property
    def points(self) -> int: ...


class EncoderLayer(nn.Module):
    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.attention = DeformableAttention(sizes.width, sizes.heads, sizes.levels, sizes.points)
        self.attention_residual = Residual(sizes.width, sizes.dropout)
        self.mlp = ReluMlp((sizes.width, sizes.mlp_width, sizes.width), sizes.dropout)
        self.mlp_residual = Residual(sizes.width, sizes.dropout)

    def forward(self, x: Tensor, positions: Tensor, references: Tensor, shapes: Shapes, shown: Tensor | None) -> Tensor:
        x = self.attention_residual(x, self.attention(x + positions, references, x, shapes, shown))
        out: Tensor = self.mlp_residual(x, self.mlp(x))
        return out


class DecoderLayer(nn.Module):
    def __init__(self, sizes: DeformableSizes) -> None:
        super().__init__()
        self.self_attention = CrossAttention(sizes.width, sizes.heads)
        self.self_residual = Residual(sizes.width, sizes.dropout)
        self.attention = DeformableAttention(sizes.width, sizes.heads, sizes.levels, sizes.points)
        self.attention_residual = Residual(sizes.width, sizes.dropout)
        self.mlp = ReluMlp((sizes.width, sizes.mlp_width, sizes.width), sizes.dropout)
        self.mlp_residual = Residual(sizes.width, sizes.dropout)

    def forward(self, x: Tensor, queries: Tensor, references: Tensor, memory: Memory) -> Tensor:
        placed = x + queries
        x = self.self_residual(x, self.self_attention(placed, placed, x))
        looked = self.attention(x + queries, memory.moved(references), memory.tokens, memory.shapes, memory.shown)
        x = self.attention_residual(x, looked)
        out: Tensor = self.mlp_residual(x, self.mlp(x))
        return out


class Proposals(nn.Module):
    """Every token of the encoder proposes a box around its place; the most confident become queries (appendix A.4)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.project_queries = nn.Linear(2 * width, 2 * width)
        self.queries_norm = nn.LayerNorm(2 * width)
        for layer in (self.project, self.project_queries):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def tokens(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """(B, N, D), and the logits of a small box around each token's place, (B, N, 4), infinite near the border and
        in the padding."""
        boxes = torch.cat(
            [
                torch.cat([places, torch.full_like(places, PROPOSAL * 2.0**level)], dim=-1)
                for level, places in enumerate(middles(memory.shapes, memory.shares))
            ],
            dim=1,
        )  # (B, N, 4)
        usable = ((boxes > 0.01) & (boxes < 0.99)).all(dim=-1, keepdim=True)
        if memory.shown is not None:
            usable = usable & memory.shown[..., None]
        usable = usable.expand(memory.tokens.shape[0], -1, -1)
        found: Tensor = self.norm(self.project(memory.tokens * usable.to(memory.tokens.dtype)))
        return found, torch.where(usable, (boxes / (1 - boxes)).log(), math.inf)

    def queries(self, references: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes (B, Q, 4) -> the queries and their initial contents, (B, Q, D) each."""
        waves = sine_waves(references, self.norm.normalized_shape[0] // 2).flatten(2)
        first: Tensor = self.queries_norm(self.project_queries(waves.to(self.project_queries.weight.dtype)))
        queries, known = first.chunk(2, dim=-1)
        return queries, known


class DeformableDetr(nn.Module):
    """Several maps through the encoder, queries through the decoder; each gives a box and independent classes."""

    softmax = False

    def __init__(self, channels: Sequence[int], num_classes: int, sizes: DeformableSizes) -> None:
        super().__init__()
        if sizes.two_stage and not sizes.refine:
            raise ValueError("two stages need refinement")
        self.sizes = sizes
        width, extra = sizes.width, sizes.levels - len(channels)
        self.project = nn.ModuleList(_projection(each, width, 1) for each in channels)
        for number in range(extra):  # additional coarser maps: the last one, halved repeatedly
            self.project.append(_projection(width if number else channels[-1], width, 3))
        self.levels = nn.Parameter(torch.randn(sizes.levels, width))
        self.encoder = nn.ModuleList(EncoderLayer(sizes) for _ in range(sizes.encoder_depth))
        self.proposals = Proposals(width) if sizes.two_stage else None
        self.queries = None if sizes.two_stage else nn.Parameter(torch.randn(sizes.queries, 2 * width))
        self.points = None if sizes.two_stage else nn.Linear(width, 2)
        self.decoder = nn.ModuleList(DecoderLayer(sizes) for _ in range(sizes.decoder_depth))
        # With refinement each layer has its own heads, and the last are for proposals; otherwise all share them.
        num = sizes.decoder_depth + sizes.two_stage if sizes.refine else 1
        self.classes = nn.ModuleList(nn.Linear(width, num_classes) for _ in range(num))
        self.boxes = nn.ModuleList(ReluMlp((width, width, width, 4)) for _ in range(num))
        self._start()

    def _start(self) -> None:
        """As in the released code: no class is likely, boxes are at their references, and small."""
        for classes, boxes in zip(self.classes, self.boxes, strict=True):
            assert isinstance(classes, nn.Linear) and isinstance(boxes, ReluMlp)
            nn.init.constant_(classes.bias, -math.log((1 - RARE) / RARE))
            nn.init.zeros_(boxes.last.weight)
            nn.init.zeros_(boxes.last.bias)
        if self.points is not None:
            nn.init.xavier_uniform_(self.points.weight)
            nn.init.zeros_(self.points.bias)
            first = self.boxes[0]
            assert isinstance(first, ReluMlp)
            nn.init.constant_(first.last.bias[2:], -2.0)

    def forward(
        self, maps: Sequence[Tensor], extent: Tensor | None, canvas: tuple[int, int], hints: Tensor | None = None
    ) -> Decoded:
        """maps: (B, C, h, w) each, finest first, as many as channels were given.

        extent: (B, 2), the number of rows and columns of the canvas that are picture. hints: boxes (B, M, 4) that
        become queries like proposals, with two stages; the queries of proposals do not see them."""
        memory = self.encoded(maps, extent, canvas)
        if self.proposals is None:
            assert self.queries is not None and self.points is not None
            queries, known = (half[None].expand(maps[0].shape[0], -1, -1) for half in self.queries.chunk(2, dim=1))
            references = self.points(queries).to(wide(memory.shares.dtype)).sigmoid()
            return self._decoded(memory, queries, known, references)
        tokens, places = self.proposals.tokens(memory)
        logits = self.classes[-1](tokens)  # (B, N, K); the first says whether there is any object
        best = logits[..., 0].topk(min(self.sizes.queries, logits.shape[1]), dim=1).indices[..., None]
        chosen = tokens.gather(1, best.expand(-1, -1, tokens.shape[-1]))
        box_logits = self._offsets(-1, chosen) + places.gather(1, best.expand(-1, -1, 4))
        proposed = logits.gather(1, best.expand(-1, -1, logits.shape[-1])), box_logits.sigmoid()
        references = proposed[1].detach()
        found = self._decoded(memory, *self.proposals.queries(references), references)._replace(proposals=proposed)
        if hints is None:
            return found
        return found._replace(hinted=self._decoded(memory, *self.proposals.queries(hints), hints)[:2])

    def encoded(self, maps: Sequence[Tensor], extent: Tensor | None, canvas: tuple[int, int]) -> Memory:
        projected = [layer(one) for layer, one in zip(self.project, maps, strict=False)]
        last = maps[-1]
        for layer in self.project[len(maps) :]:
            last = layer(last)
            projected.append(last)
        return encoded(projected, self.levels, self.encoder, extent, canvas)

    def _decoded(self, memory: Memory, queries: Tensor, x: Tensor, references: Tensor) -> Decoded:
        logits, boxes = [], []
        for number, layer in enumerate(self.decoder):
            x = layer(x, queries, references, memory)
            head = number if self.sizes.refine else 0
            logits.append(self.classes[head](x))
            box = _corrected(references, self._offsets(head, x))
            boxes.append(box)
            references = box.detach() if self.sizes.refine else references
        return Decoded(torch.stack(logits), torch.stack(boxes))

    def _offsets(self, head: int, x: Tensor) -> Tensor:
        layers = self.boxes[head]
        assert isinstance(layers, ReluMlp)
        return precise(layers, x)


def encoded(
    maps: Sequence[Tensor],
    levels: Tensor,
    layers: Iterable[nn.Module],
    extent: Tensor | None,
    canvas: tuple[int, int],
    *,
    start: float = 0.5,
) -> Memory:
    """Maps (B, D, h, w) each through layers of deformable attention, in which every place looks at places of all maps.

    levels: (maps, D), an embedding per map. start: see `sine_positions`."""
    shapes = [(one.shape[-2], one.shape[-1]) for one in maps]
    seen = [places_seen(extent, canvas, one) for one in maps]  # (B, 2) each
    dtype = wide(maps[0].dtype)
    positions = torch.cat(
        [
            sine_positions(each, shape, levels.shape[1], start, dtype) + level
            for each, shape, level in zip(seen, shapes, levels, strict=True)
        ],
        dim=1,
    ).to(levels.dtype)
    shares = torch.stack([shares_seen(each, shape, dtype) for each, shape in zip(seen, shapes, strict=True)], dim=1)
    masks = None if extent is None else torch.cat([shown(*pair) for pair in zip(seen, shapes, strict=True)], dim=1)
    x = torch.cat([one.flatten(2).transpose(1, 2) for one in maps], dim=1)  # (B, N, D)
    memory = Memory(x, shapes, masks, shares)
    references = memory.moved(torch.cat(middles(shapes, shares), dim=1)).expand(x.shape[0], -1, -1, -1)
    for layer in layers:
        x = layer(x, positions, references, shapes, masks)
    return replace(memory, tokens=x)


def middles(shapes: Shapes, shares: Tensor) -> list[Tensor]:
    """(B, h * w, 2) per level: the centre (x, y) of every place of a map, 0 to 1 of the part that shows the picture."""
    found = []
    for level, (h, w) in enumerate(shapes):
        y, x = ((torch.arange(side, device=shares.device).to(shares.dtype) + 0.5) / side for side in (h, w))
        grid = torch.stack([x[None, :].expand(h, w), y[:, None].expand(h, w)], dim=-1).flatten(0, 1)  # (h * w, 2)
        found.append(grid[None] / shares[:, None, level])
    return found


def shares_seen(seen: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """(B, 2): the part of a map's width and height that shows the picture."""
    return torch.stack([seen[:, 1].to(dtype) / shape[1], seen[:, 0].to(dtype) / shape[0]], dim=1)


def _corrected(references: Tensor, offsets: Tensor) -> Tensor:
    """Boxes (B, Q, 4): the references (points or boxes), moved by offsets before the sigmoid."""
    clear = references.clamp(0, 1)
    logits = (clear.clamp(min=1e-5) / (1 - clear).clamp(min=1e-5)).log()
    if logits.shape[-1] == 2:
        logits = torch.cat([logits, torch.zeros_like(logits)], dim=-1)
    return (offsets + logits).sigmoid()


def _projection(channels: int, width: int, kernel: int) -> nn.Sequential:
    conv = nn.Conv2d(channels, width, kernel, stride=2 if kernel > 1 else 1, padding=kernel // 2)
    nn.init.xavier_uniform_(conv.weight)
    nn.init.constant_(conv.bias, 0.0) if conv.bias is not None else None
    return nn.Sequential(conv, group_norm(width, 1e-5))
