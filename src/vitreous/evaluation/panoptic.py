"""Panoptic quality: how well a map of segments agrees with the true one (Kirillov et al. 2019)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitreous.data.panoptic import NOTHING, Panoptic

MATCHING = 0.5  # two segments are the same from this IoU on: no segment can then match two


@dataclass(frozen=True)
class Quality:
    """The quality for one class, or the mean over several."""

    pq: float  # sq * rq
    sq: float  # the mean IoU of matched segments
    rq: float  # the F1 score of finding segments


def panoptic_quality(
    found: Sequence[Panoptic], truth: Sequence[Panoptic], num_classes: int
) -> tuple[Quality, dict[int, Quality]]:
    """The mean over the classes that occur, and each of them. Pixels without a segment in the truth do not count; a
    predicted segment that is mostly there is not a mistake."""
    overlap, hits, made, missed = (np.zeros(num_classes) for _ in range(4))
    for ours, theirs in zip(found, truth, strict=True):
        shared, sizes = _counts(ours.numbers, theirs.numbers)
        seen_ours, seen_theirs = set[int](), set[int]()
        for mine in ours.segments:
            for their in theirs.segments:
                both = shared.get((mine.number, their.number), 0)
                either = sizes[0].get(mine.number, 0) + sizes[1].get(their.number, 0) - both
                either -= shared.get((mine.number, NOTHING), 0)  # unlabelled pixels
                if mine.category == their.category and both > MATCHING * either:
                    overlap[mine.category] += both / either
                    hits[mine.category] += 1
                    seen_ours.add(mine.number)
                    seen_theirs.add(their.number)
        for mine in ours.segments:
            unknown = shared.get((mine.number, NOTHING), 0) > MATCHING * sizes[0].get(mine.number, 0)
            made[mine.category] += mine.number not in seen_ours and not unknown
        for their in theirs.segments:
            missed[their.category] += their.number not in seen_theirs
    classes = {
        category: _quality(overlap[category], hits[category], made[category] + missed[category])
        for category in np.flatnonzero(hits + made + missed).tolist()
    }
    means = [float(np.mean([getattr(one, name) for one in classes.values()] or [0])) for name in ("pq", "sq", "rq")]
    return Quality(*means), classes


def _quality(overlap: float, hits: float, mistakes: float) -> Quality:
    sq, rq = (float(overlap / hits) if hits else 0.0), float(hits / (hits + mistakes / 2))
    return Quality(sq * rq, sq, rq)


def _counts(
    ours: NDArray[np.int32], theirs: NDArray[np.int32]
) -> tuple[dict[tuple[int, int], int], tuple[dict[int, int], dict[int, int]]]:
    """Pixels of every pair of segments, and of every segment."""
    pairs, counts = np.unique(np.stack([ours.ravel(), theirs.ravel()]), axis=1, return_counts=True)
    shared = {(int(a), int(b)): int(count) for a, b, count in zip(*pairs, counts, strict=True)}
    sizes: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for pair, count in shared.items():
        for side, number in zip(sizes, pair, strict=True):
            side[number] = side.get(number, 0) + count
    return shared, sizes
