"""Objects by their centres (Zhou et al. 2019, CenterNet): every place of one map predicts for each class how likely it
is the centre of an object, and where the sides of that object are. Among neighbours only the most confident counts:
nothing else removes duplicates.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous import platforms
from vitreous.nn.bilinear import resized_maps
from vitreous.nn.deformable_detr import middles
from vitreous.nn.detr import places_seen, shown, wide
from vitreous.nn.pyramid import ChannelNorm

RARE = 0.01  # initial probability that a place is the centre of an object of a class
# In places, so that what looks the same has the same size, however much of the canvas is picture:
SIDE = 6.0  # initial side of a box
REACH = 1.5  # how far from itself a place may put the centre of its box
LOGS = (-5.0, 5.0)  # range of log(side / initial side): from a small part of a place to more than any map has
NOTHING = -20.0  # the logit of a place that does not count


class Placed(NamedTuple):
    """The prediction of every place."""

    logits: Tensor  # (B, N, K)
    boxes: Tensor  # (B, N, 4) as (cx, cy, w, h), 0 to 1 of the picture
    middles: Tensor  # (B or 1, N, 2): where the places are, 0 to 1 of the picture
    shown: Tensor | None  # (B, N) bool: the places that show picture; None: all
    size: tuple[int, int]  # rows and columns of places


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(width)
        self.convolve = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.convolve(self.norm(x)))


class Centres(nn.Module):
    """All maps together at the size of the finest, enlarged; a few convolutions; then a prediction for every place."""

    def __init__(self, channels: Sequence[int], num_classes: int, *, width: int, depth: int, enlarged: int) -> None:
        super().__init__()
        self.enlarged = enlarged
        self.norms = nn.ModuleList(ChannelNorm(each) for each in channels)
        self.project = nn.ModuleList(nn.Conv2d(each, width, 1) for each in channels)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(depth)))
        self.norm = ChannelNorm(width)
        self.classes = nn.Linear(width, num_classes)
        self.boxes_in_places = nn.Linear(width, 4)
        nn.init.constant_(self.classes.bias, -math.log((1 - RARE) / RARE))
        nn.init.zeros_(self.boxes_in_places.weight)
        nn.init.zeros_(self.boxes_in_places.bias)

    def size(self, maps: Sequence[Tensor]) -> tuple[int, int]:
        """Rows and columns of places."""
        return self.enlarged * maps[0].shape[-2], self.enlarged * maps[0].shape[-1]

    def begin_with(self, sides: Tensor) -> None:
        """sides (N, 2): width and height of usual boxes, in places."""
        with torch.no_grad():
            self.boxes_in_places.bias[2:] = sides.log().mean(dim=0) - math.log(SIDE)

    def forward(self, maps: Sequence[Tensor], extent: Tensor | None, canvas: tuple[int, int]) -> Placed:
        """maps: (B, C, h, w) each, finest first, as many as channels were given. extent: (B, 2), the number of rows and
        columns of the canvas that are picture."""
        size = self.size(maps)
        parts = [project(norm(one)) for norm, project, one in zip(self.norms, self.project, maps, strict=True)]
        x = torch.stack([part if part.shape[-2:] == size else resized_maps(part, size) for part in parts]).sum(dim=0)
        x = self.norm(self.layers(x)).flatten(2).transpose(1, 2)  # (B, N, D)
        shares = picture_shares(extent, canvas, x.new_empty((), dtype=wide(x.dtype)))
        places = middles([size], shares[:, None])[0]
        # Even under autocast: neighbours whose logits are rounded to the same bfloat16 would all be the most confident.
        with platforms.full_precision(x.device):
            logits, said = (head(x.to(head.weight.dtype)) for head in (self.classes, self.boxes_in_places))
        boxes = self._boxes(said.to(wide(said.dtype)), places, shares, size)
        seen = None if extent is None else shown(places_seen(extent, canvas, x.new_empty((1, 1, *size))), size)
        return Placed(logits, boxes, places, seen, size)

    def _boxes(self, said: Tensor, places: Tensor, shares: Tensor, size: tuple[int, int]) -> Tensor:
        away, sides = REACH * said[..., :2].tanh(), SIDE * said[..., 2:].clamp(*LOGS).exp()  # in places
        parts = [torch.stack([one[..., 0] / size[1], one[..., 1] / size[0]], dim=-1) for one in (away, sides)]
        away, sides = (one / shares[:, None] for one in parts)  # of the part that shows the picture
        return torch.cat([places + away, sides], dim=-1)


def picture_shares(extent: Tensor | None, canvas: tuple[int, int], like: Tensor) -> Tensor:
    """(B or 1, 2): the part of the canvas' width and height that is picture. Not in whole places: a place at the border
    that is only partly picture would move all others."""
    if extent is None:
        return like.new_ones((1, 2))
    return torch.stack([extent[:, axis].to(like.dtype) / canvas[axis] for axis in (1, 0)], dim=1)


def surest(found: Placed, queries: int) -> tuple[Tensor, Tensor]:
    """Logits (B, Q, K) and boxes (B, Q, 4) of the best places. For each class only those count that are more confident
    than their eight neighbours."""
    logits = found.logits if found.shown is None else torch.where(found.shown[..., None], found.logits, NOTHING)
    maps = logits.transpose(1, 2).reshape(logits.shape[0], -1, *found.size)  # (B, K, h, w)
    speak = (maps >= F.max_pool2d(maps, 3, 1, 1)).flatten(2).transpose(1, 2)
    logits = torch.where(speak, logits, NOTHING)
    best = logits.amax(dim=-1).topk(min(queries, logits.shape[1]), dim=1).indices[..., None]
    return logits.gather(1, best.expand(-1, -1, logits.shape[-1])), found.boxes.gather(1, best.expand(-1, -1, 4))
