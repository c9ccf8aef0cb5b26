"""Pictures drawn from a seed: a sprite's place, direction and size, how many there are, how far apart two of them are.

In the spirit of dSprites (Matthey et al. 2017) and CLEVR (Johnson et al. 2017), after which VTAB names its structured
tasks. A picture is a function of (split, index) alone, so the sets need no file and are the same everywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous import keys as K
from vitreous.data.base import Source
from vitreous.data.images import Picture
from vitreous.data.rendered_captions import open_captions, open_unseen_captions
from vitreous.data.rendered_objects import open_objects
from vitreous.data.rendered_scenes import open_scenes
from vitreous.data.targets import ClassLabels
from vitreous.errors import UserError, did_you_mean

SIDE = 64  # of a picture, in pixels; lengths below are shares of it
NUMBERS = {"train": 4000, "test": 1000}  # pictures per split
GRID = 4  # sprites that must not touch stand in cells of a grid of 4 x 4

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sprites:
    """What N pictures show: up to S sprites each. A sprite whose size is 0 is not there."""

    labels: NDArray[np.int64]  # (N,)
    centre: Floats  # (N, S, 2): x to the right, y down, 0 to 1
    size: Floats  # (N, S): the distance from the centre to the farthest point
    turn: Floats  # (N, S): direction in turns, 0 to the right, 0.25 down
    shape: NDArray[np.int64]  # (N, S): place in SHAPES


def _regular(corners: int) -> Floats:
    angles = 2 * np.pi * np.arange(corners) / corners
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


# Convex outlines around (0, 0), clockwise on the screen, the farthest corner at distance 1 and to the right.
WEDGE = np.array([[1.0, 0.0], [-0.5, 0.45], [-0.5, -0.45]])  # points one way only
SHAPES = (WEDGE, _regular(3), _regular(4), _regular(6), _regular(24))
ANY_SHAPE = len(SHAPES)


class Rendered(Source):
    def __init__(self, task: str, split: str) -> None:
        self.name = f"rendered:{task} ({split})"
        num = NUMBERS[split]
        # Seeds and purposes keep tasks and splits apart: no picture of test is one of train.
        keys = K.sample_keys(K.purpose_code(f"rendered {task} {split}"), 0, torch.arange(num))
        self.classes, draw = TASKS[task]
        self.sprites = draw(keys)
        self.targets = ClassLabels(self.sprites.labels)
        # A dark ground and light sprites: every channel tells them apart.
        colours = K.uniform(keys, "colours", 3 * (1 + self.sprites.size.shape[1])).numpy().astype(np.float64)
        self._colours = colours.reshape(num, -1, 3)

    def read(self, index: int) -> Picture:
        sprites = self.sprites
        picture = np.broadcast_to(100 * self._colours[index, 0], (SIDE, SIDE, 3))
        for number in np.flatnonzero(sprites.size[index]):
            cover = _cover(
                SHAPES[sprites.shape[index, number]],
                sprites.centre[index, number],
                float(sprites.size[index, number]),
                float(sprites.turn[index, number]),
            )
            picture = picture + cover[..., None] * (150 + 105 * self._colours[index, 1 + number] - picture)
        return picture.round().astype(np.uint8)

    def where(self, index: int) -> str:
        return f"picture {index} of {self.name}"


def _cover(outline: Floats, centre: Floats, size: float, turn: float) -> Floats:
    """(SIDE, SIDE) the share of each pixel that a convex sprite covers, by its distance from the nearest edge."""
    cos, sin = np.cos(2 * np.pi * turn), np.sin(2 * np.pi * turn)
    corners = (outline @ np.array([[cos, sin], [-sin, cos]]) * size + centre) * SIDE
    edges = np.roll(corners, -1, axis=0) - corners
    outward = np.stack([edges[:, 1], -edges[:, 0]], axis=1) / np.linalg.norm(edges, axis=1, keepdims=True)
    middle = np.arange(SIDE) + 0.5
    # (edges, SIDE, SIDE): how far outside of each edge's line, in pixels; a sum of what x and y give
    beyond = (outward[:, :1] * (middle - corners[:, :1]))[:, None, :]
    beyond = beyond + (outward[:, 1:] * (middle - corners[:, 1:]))[:, :, None]
    covered: Floats = np.clip(0.5 - beyond.max(axis=0), 0.0, 1.0)
    return covered


# ---- The tasks: classes, and what the pictures show


def _uniform(keys: torch.Tensor, purpose: str, num: int, low: float, high: float) -> Floats:
    drawn: Floats = K.uniform(keys, purpose, num).numpy().astype(np.float64)
    return low + (high - low) * drawn


def _integers(keys: torch.Tensor, purpose: str, num: int, below: int) -> NDArray[np.int64]:
    drawn: NDArray[np.int64] = K.integers(keys, purpose, num, below).numpy()
    return drawn


def _within_bin(keys: torch.Tensor, labels: NDArray[np.int64], num_bins: int, low: float, high: float) -> Floats:
    """(N,) values of which bin `labels` of `num_bins` between low and high holds each, away from the bins' borders."""
    inner = _uniform(keys, "within the bin", 1, 0.15, 0.85)[:, 0]
    return low + (high - low) * (labels + inner) / num_bins


def _location(keys: torch.Tensor) -> Sprites:
    column, row = _integers(keys, "cell", 2, GRID).T
    inner = _uniform(keys, "place", 2, 0.15, 0.85)
    centre = 0.16 + 0.68 * (np.stack([column, row], axis=1) + inner) / GRID
    return Sprites(
        labels=row * GRID + column,
        centre=centre[:, None],
        size=_uniform(keys, "size", 1, 0.08, 0.15),
        turn=_uniform(keys, "turn", 1, 0.0, 1.0),
        shape=_integers(keys, "shape", 1, ANY_SHAPE),
    )


def _orientation(keys: torch.Tensor) -> Sprites:
    labels = _integers(keys, "label", 1, 16)[:, 0]
    return Sprites(
        labels=labels,
        centre=_uniform(keys, "centre", 2, 0.35, 0.65)[:, None],
        size=_uniform(keys, "size", 1, 0.2, 0.32),
        turn=_within_bin(keys, labels, 16, 0.0, 1.0)[:, None],
        shape=np.zeros((len(keys), 1), dtype=np.int64),
    )


def _count(keys: torch.Tensor) -> Sprites:
    labels, most = _integers(keys, "label", 1, 8)[:, 0], 8
    cells = K.orderings(keys, "cells", GRID * GRID)[:, :most].numpy()
    jitter = _uniform(keys, "place", 2 * most, -0.02, 0.02).reshape(-1, most, 2)
    size = _uniform(keys, "size", most, 0.05, 0.09)
    return Sprites(
        labels=labels,
        centre=(np.stack([cells % GRID, cells // GRID], axis=2) + 0.5) / GRID + jitter,
        size=np.where(np.arange(most) <= labels[:, None], size, 0.0),
        turn=_uniform(keys, "turn", most, 0.0, 1.0),
        shape=_integers(keys, "shape", most, ANY_SHAPE),
    )


def _distance(keys: torch.Tensor) -> Sprites:
    labels = _integers(keys, "label", 1, 6)[:, 0]
    half = _within_bin(keys, labels, 6, 0.24, 0.78) / 2
    turn = 2 * np.pi * _uniform(keys, "direction", 1, 0.0, 1.0)[:, 0]
    offset = half[:, None] * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    # The middle between the two lies wherever both stay inside the picture.
    room = 0.5 - 0.1 - np.abs(offset)
    middle = 0.5 + room * _uniform(keys, "middle", 2, -1.0, 1.0)
    return Sprites(
        labels=labels,
        centre=np.stack([middle - offset, middle + offset], axis=1),
        size=_uniform(keys, "size", 2, 0.06, 0.1),
        turn=_uniform(keys, "turn", 2, 0.0, 1.0),
        shape=_integers(keys, "shape", 2, ANY_SHAPE),
    )


def _size(keys: torch.Tensor) -> Sprites:
    labels = _integers(keys, "label", 1, 6)[:, 0]
    return Sprites(
        labels=labels,
        centre=_uniform(keys, "centre", 2, 0.38, 0.62)[:, None],
        size=_within_bin(keys, labels, 6, 0.08, 0.38)[:, None],
        turn=_uniform(keys, "turn", 1, 0.0, 1.0),
        shape=np.full((len(keys), 1), 2, dtype=np.int64),
    )


TASKS: dict[str, tuple[tuple[str, ...], Callable[[torch.Tensor], Sprites]]] = {
    "location": (tuple(f"row {i // GRID + 1}, column {i % GRID + 1}" for i in range(GRID * GRID)), _location),
    "orientation": (tuple(f"{22.5 * i:g} to {22.5 * (i + 1):g} degrees" for i in range(16)), _orientation),
    "count": (tuple(str(i) for i in range(1, 9)), _count),
    "distance": (tuple(f"{0.24 + 0.09 * i:.2f} to {0.33 + 0.09 * i:.2f}" for i in range(6)), _distance),
    "size": (tuple(f"{0.08 + 0.05 * i:.2f} to {0.13 + 0.05 * i:.2f}" for i in range(6)), _size),
}


def open_rendered(task: str) -> dict[str, Source]:
    """The splits of a rendered task."""
    others = {
        "segment": open_scenes,
        "objects": open_objects,
        "captions": open_captions,
        "captions-unseen": open_unseen_captions,
    }
    if task in others:
        return others[task]()
    known = (*TASKS, *others)
    if task not in known:
        raise UserError(f"rendered:{task}: no such task: {', '.join(known)}.{did_you_mean(task, known)}")
    return {split: Rendered(task, split) for split in NUMBERS}
