"""What every detection found, and what found every object, at an overlap (IoU) of one half.

The kinds of error are those of TIDE (Bolya et al. 2020): an object found as another class (class), found imprecisely
(place), both, found again (duplicate), nothing there at all (background), and an object that is missed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.tasks import box_precision
from vitreous.tasks.box_precision import Floats, Found, Numbers, Truth

ENOUGH, HARDLY = 0.5, 0.1  # overlap: from which an object is found; below which a detection is about nothing
RIGHT, CLASS, PLACE, BOTH, DUPLICATE, BACKGROUND, CROWD = range(7)
KINDS = ("right", "class", "place", "both", "duplicate", "background", "crowd")  # of detections; crowd: does not count
NONE = -1


@dataclass(frozen=True)
class Matches:
    kind: Numbers  # (D,): the index in KINDS of every detection
    nearest: Numbers  # (D,): the object that it found, or that its error is about; NONE for background
    overlap: Floats  # (D,): with that object
    finder: Numbers  # (T,): the detection that found an object, NONE if none did
    crowd: NDArray[np.bool_]  # (T,)

    @property
    def is_right(self) -> NDArray[np.bool_]:
        right: NDArray[np.bool_] = self.kind == RIGHT
        return right

    def unfound(self, shown: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(T,): objects that none of the detections `shown` (D,) found."""
        shown_finder = np.append(shown, False)[self.finder]  # the last is for NONE
        unfound: NDArray[np.bool_] = ~shown_finder & ~self.crowd
        return unfound

    def missed(self, shown: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(T,): of these, the ones that no error of class or place is about either."""
        about = np.zeros(len(self.finder), np.bool_)
        about[self.nearest[shown & np.isin(self.kind, (CLASS, PLACE))]] = True
        return self.unfound(shown) & ~about

    def counts(self, shown: NDArray[np.bool_]) -> dict[str, int]:
        """How many errors of each kind the detections `shown` (D,) make."""
        made = {KINDS[kind]: int((self.kind[shown] == kind).sum()) for kind in range(CLASS, CROWD)}
        return made | {"missed": int(self.missed(shown).sum())}


def matches(truth: Truth, found: Found, entries: Iterable[dict[str, Any]]) -> Matches:
    """`entries`: from `box_precision.matched`."""
    finder = np.full(len(truth.picture), NONE)
    kind, nearest = np.full(len(found.picture), BACKGROUND), np.full(len(found.picture), NONE)
    overlap = np.zeros(len(found.picture))
    for entry in entries:
        if entry["aRng"][0] > 0 or entry["aRng"][1] < 1e9:  # of one size of objects
            continue
        for row, at, ignored in zip(entry["dtIds"], entry["dtMatches"][0], entry["dtIgnore"][0], strict=True):
            if at:
                kind[row - 1], nearest[row - 1] = CROWD if ignored else RIGHT, at - 1
                if not ignored:
                    finder[at - 1] = row - 1
    for rows, objects in _by_picture(truth, found):
        shared = box_precision.overlaps(found, rows, truth, objects)
        said = found.classes[rows][:, None] == truth.classes[objects]
        about = _errors(shared, said, ~truth.crowd[objects])
        matched = nearest[rows] != NONE
        kind[rows] = np.where(matched, kind[rows], about[0])
        place = np.where(matched, np.searchsorted(objects, nearest[rows]), about[1])
        is_about = kind[rows] != BACKGROUND
        nearest[rows] = np.where(is_about, objects[np.clip(place, 0, len(objects) - 1)], NONE)
        overlap[rows] = np.where(is_about, shared[np.arange(len(rows)), np.clip(place, 0, len(objects) - 1)], 0.0)
    return Matches(kind, nearest, overlap, finder, truth.crowd)


def _errors(shared: Floats, same: NDArray[np.bool_], counted: NDArray[np.bool_]) -> tuple[Numbers, Numbers]:
    """For detections that found nothing, the kind of each error, and the object that it is about. `shared`: overlaps
    (n, m) with the objects of their picture; `same`: whether these are of the same class."""
    like, unlike = (np.where(which & counted, shared, 0.0) for which in (same, ~same))
    best_like, best_unlike = like.max(axis=1), unlike.max(axis=1)
    conditions = {
        PLACE: (best_like >= HARDLY) & (best_like < ENOUGH),
        CLASS: best_unlike >= ENOUGH,
        DUPLICATE: best_like >= ENOUGH,
        BACKGROUND: np.maximum(best_like, best_unlike) < HARDLY,
    }
    kind = np.select(list(conditions.values()), list(conditions), BOTH)
    about = np.where(np.isin(kind, (PLACE, DUPLICATE)), like.argmax(axis=1), unlike.argmax(axis=1))
    return kind, about


def _by_picture(truth: Truth, found: Found) -> list[tuple[Numbers, Numbers]]:
    """The indices of the detections and objects of each picture that has both."""
    pictures = np.intersect1d(truth.picture, found.picture)
    return list(zip(_rows(found.picture, pictures), _rows(truth.picture, pictures), strict=True))


def _rows(owner: Numbers, pictures: Numbers) -> list[Numbers]:
    order = np.argsort(owner, kind="stable")
    first = np.searchsorted(owner[order], pictures, side="left")
    last = np.searchsorted(owner[order], pictures, side="right")
    return [order[start:end] for start, end in zip(first, last, strict=True)]
