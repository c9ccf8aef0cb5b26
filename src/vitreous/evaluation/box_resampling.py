"""Average precision of resampled pictures (bootstrap): detections are matched once, and counted for every draw."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.tasks.box_precision import SIZES, THRESHOLDS, Floats, Numbers

Times = NDArray[np.floating[Any]]  # how often pictures, or their detections, count
RECALLS = np.linspace(0, 1, 101)
RANGES = [(0.0, 1e10), (0.0, 32.0**2), (32.0**2, 96.0**2), (96.0**2, 1e10)]  # of areas in px, by SIZES
DRAWS, FEWEST_DRAWS = 1000, 200
MOST_WORK = 1e8  # detections times draws; beyond, draws are fewer


@dataclass(frozen=True)
class Ranked:
    """The detections of one class, most confident first, for objects of one size."""

    picture: Numbers  # (n,)
    right: NDArray[np.bool_]  # (10, n): at each threshold of overlap
    counts: NDArray[np.bool_]  # (10, n); false: not for this size, or of a crowd
    objects: Floats  # (N,): the number in each picture

    def precision(self, times: Times) -> Floats:
        """Average precision if picture i counts times[:, i] times: (S, N) -> (S, 10), NaN without objects."""
        total = times @ self.objects
        weights = times[:, self.picture]  # (S, n)
        found = np.stack([self._area(weights, total, at) for at in range(len(THRESHOLDS))], axis=1)
        return np.where(total[:, None] > 0, found, np.nan)

    def _area(self, weights: Times, total: Floats, at: int) -> Floats:
        """(S,): the area under the curve of one threshold. Precision peaks right after a right detection, so only those
        places matter."""
        places = np.flatnonzero(self.right[at] & self.counts[at])
        if not len(places):
            return np.zeros(len(weights))
        right = np.cumsum(weights[:, places], axis=1)
        counted = weights if self.counts[at].all() else weights * self.counts[at]
        between = np.concatenate([[0], places[:-1] + 1])  # where the stretch that ends at each place begins
        every = np.cumsum(np.add.reduceat(counted[:, : places[-1] + 1], between, axis=1), axis=1)
        precision = np.divide(right, every, out=np.zeros_like(right), where=every > 0)
        precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        recall = right / np.maximum(total, 1e-9)[:, None]
        reached = np.searchsorted(RECALLS, recall.ravel(), side="right").reshape(recall.shape)
        steps = np.diff(reached, axis=1, prepend=0)
        area: Floats = (precision * steps).sum(axis=1) / len(RECALLS)
        return area


def ranked(entries: Iterable[dict[str, Any]], num_classes: int, num_pictures: int) -> list[list[Ranked]]:
    """By class and size, from `box_precision.matched`."""
    groups: dict[tuple[int, int], list[Any]] = {}
    for entry in entries:
        groups.setdefault((entry["category_id"] - 1, RANGES.index(tuple(entry["aRng"]))), []).append(entry)
    return [
        [_ranked(groups.get((label, size), []), num_pictures) for size in range(len(SIZES))]
        for label in range(num_classes)
    ]


def _ranked(entries: list[Any], num_pictures: int) -> Ranked:
    objects, pictures, scores = np.zeros(num_pictures), [], []
    right, ignored = [np.zeros((len(THRESHOLDS), 0), np.bool_)], [np.zeros((len(THRESHOLDS), 0), np.bool_)]
    for entry in entries:
        number, num = entry["image_id"] - 1, len(entry["dtIds"])
        objects[number] += len(entry["gtIgnore"]) - sum(entry["gtIgnore"])
        pictures += [number] * num
        scores += entry["dtScores"]
        right.append(np.array(entry["dtMatches"]).reshape(len(THRESHOLDS), num) > 0)
        ignored.append(np.array(entry["dtIgnore"], np.bool_).reshape(len(THRESHOLDS), num))
    order = np.argsort(-np.array(scores, np.float64), kind="stable")
    owner = np.array(pictures, np.int64)[order]
    return Ranked(owner, np.hstack(right)[:, order], ~np.hstack(ignored)[:, order], objects)


def draws(num_pictures: int, num_detections: int) -> Times:
    """(1 + draws, N): how often every picture counts, first each once, then in draws with replacement."""
    number = int(np.clip(MOST_WORK / max(num_detections, 1), FEWEST_DRAWS, DRAWS))
    drawn = np.random.default_rng(0).multinomial(num_pictures, np.full(num_pictures, 1 / num_pictures), number)
    # Counts of pictures and detections are exact in 32 bits, at half the memory.
    return np.concatenate([np.ones((1, num_pictures)), drawn]).astype(np.float32)
