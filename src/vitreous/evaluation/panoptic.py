"""Panoptic segmentation: the masks of queries merged so that every pixel belongs to one segment; and its quality
(Kirillov et al. 2019).

Classes are things, of which every object is a separate segment, or stuff (sky, road), which is one segment.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NOTHING = 0  # in a map of segments: no segment
MATCHING = 0.5  # two segments are the same from this IoU on: no segment can then match two


@dataclass(frozen=True)
class Segment:
    number: int  # in the map; from 1
    category: int
    score: float = 1.0


@dataclass(frozen=True)
class Panoptic:
    """The segments of one picture."""

    numbers: NDArray[np.int32]  # (H, W): the segment of every pixel, or NOTHING
    segments: tuple[Segment, ...]


def merged(
    logits: NDArray[np.floating],
    masks: NDArray[np.floating],
    stuff: Collection[int] = (),
    *,
    least_score: float = 0.8,
    least_left: float = 0.8,
) -> Panoptic:
    """logits: (Q, K + 1), the last for none; masks: (Q, H, W), logits; of one picture, as in `InstanceMasks`.

    Queries that are confident of a class compete for the pixels, each of which goes to the most confident (Cheng et al.
    2021, MaskFormer, section 3.4). A mask of which the others leave too little is dropped."""
    shares = _softmax(logits.astype(np.float64))
    categories, scores = shares.argmax(axis=1), shares.max(axis=1)
    kept = np.flatnonzero((categories != shares.shape[1] - 1) & (scores > least_score))
    numbers, segments = np.zeros(masks.shape[1:], np.int32), list[Segment]()
    if not len(kept):
        return Panoptic(numbers, ())
    drawn = 1 / (1 + np.exp(-masks[kept].astype(np.float64)))
    owners = (scores[kept, None, None] * drawn).argmax(axis=0)
    surfaces: dict[int, int] = {}  # of stuff: the segment
    for place, query in enumerate(kept.tolist()):
        inside, owned = drawn[place] >= 0.5, owners == place
        taken = inside & owned
        if not taken.any() or owned.sum() / inside.sum() < least_left:
            continue
        category = int(categories[query])
        number = surfaces.get(category, len(segments) + 1)
        if number > len(segments):
            segments.append(Segment(number, category, float(scores[query])))
        if category in stuff:
            surfaces[category] = number
        numbers[taken] = number
    return Panoptic(numbers, tuple(segments))


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return shares


# ---- How well


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
