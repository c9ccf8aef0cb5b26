"""What there is to know about boxes before training on them: how many of what, and what is wrong with some."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitreous.data.base import Source
from vitreous.data.objects import Fault, Numbers, Objects, overlaps
from vitreous.data.skipped import listed
from vitreous.data.targets import Boxes

NAMED = 100  # pictures of a kind that a report names
NEARLY = 0.9  # intersection over union
EXAMPLES = 3  # that a line names
NAMED_CLASSES = 12  # of which the number of boxes is told in a line, at most
# In the order in which they are told: what is wrong, and what becomes of it.
FAULTS = {
    Fault.OUTSIDE: "boxes outside their pictures, left out",
    Fault.EMPTY: "boxes without an area, left out",
    Fault.REPEATED: "duplicate boxes, kept once",
    Fault.SWAPPED: "boxes with swapped corners, corrected",
    Fault.CUT: "boxes that extend beyond their pictures, clipped",
}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One kind of problem."""

    what: str
    num: int  # boxes, or pictures
    pictures: tuple[str, ...]  # the first ones that have it


@dataclass(frozen=True, kw_only=True)
class BoxCounts:
    """The boxes of one part."""

    counts: tuple[int, ...]  # of each class
    crowd: int  # of these, groups and difficult ones, which are neither learned nor counted
    most: int  # in one picture
    pictures: int
    negatives: Problem  # pictures without objects
    problems: tuple[Problem, ...]  # only those that occur
    side: float = 0.0  # three quarters of the objects are larger: of a square of the same area, in sides of the picture

    @property
    def total(self) -> int:
        return sum(self.counts)


def count_boxes(source: Source, places: Numbers, sizes: Numbers) -> BoxCounts | None:
    """Of the pictures at `places`, whose heights and widths turned out to be `sizes` (n, 2); None where a source has no
    boxes."""
    if not isinstance(source.targets, Boxes):
        return None
    targets = source.targets.take(places)
    names = _Names(source, places)
    used = targets.objects.chosen(targets.objects.are_used)
    per_picture = np.bincount(used.owner, minlength=len(places))
    problems = [
        names.problem(what, targets.objects.owner[targets.objects.faults == fault]) for fault, what in FAULTS.items()
    ]
    problems.append(names.problem("near-duplicates of other boxes of their class, kept", _near_repeats(used)))
    other = np.flatnonzero((targets.sizes != sizes).any(axis=1))
    problems.append(names.problem("pictures whose size is not what the data set says, their boxes misplaced", other))
    return BoxCounts(
        counts=tuple(np.bincount(used.classes, minlength=len(source.classes)).tolist()),
        crowd=int(used.crowd.sum()),
        most=int(per_picture.max(initial=0)),
        pictures=len(places),
        negatives=names.problem("pictures without objects, kept as such", np.flatnonzero(per_picture == 0)),
        problems=tuple(one for one in problems if one.num),
        side=_quartile(used, targets.sizes),
    )


def _quartile(used: Objects, sizes: Numbers) -> float:
    """Of the objects' sides, in those of their pictures."""
    if not len(used):
        return 0.0
    areas = (used.boxes[:, 2:] - used.boxes[:, :2]).prod(axis=1, dtype=np.float64)
    return float(np.quantile(np.sqrt(areas / sizes[used.owner].prod(axis=1)), 0.25))


def _near_repeats(objects: Objects) -> Numbers:
    """The picture of every box that overlaps an earlier one of the same class nearly whole: annotation tools that paste
    a box beside itself leave such."""
    found = []
    edges = np.flatnonzero(np.diff(objects.owner)) + 1
    for rows in np.split(np.arange(len(objects)), edges):
        one = objects.chosen(rows)
        if len(one) > 1:
            same = one.classes[:, None] == one.classes
            repeats = np.triu(same & (overlaps(one.boxes) > NEARLY), 1).any(axis=0)
            found.append(one.owner[repeats])
    return np.concatenate([*found, np.arange(0)]).astype(np.int64)


@dataclass(frozen=True)
class _Names:
    source: Source
    places: Numbers

    def problem(self, what: str, owners: Numbers) -> Problem:
        """`owners`: the picture of each box, or each picture once."""
        first = self.places[np.unique(owners)[:NAMED]]
        return Problem(what=what, num=len(owners), pictures=tuple(self.source.where(int(place)) for place in first))


def box_lines(classes: Sequence[str], parts: Sequence[tuple[str, BoxCounts]]) -> list[str]:
    """For the summary: a line a fact, of all parts, the first being train."""
    train = parts[0][1]
    order = sorted(range(len(classes)), key=lambda place: -train.counts[place])
    named = [f"{classes[place]} {train.counts[place]:,}" for place in order if train.counts[place]]
    mean = train.total / max(1, train.pictures)
    lines = [f"boxes of train: {listed(named, NAMED_CLASSES)}; {mean:.1f} per picture, at most {train.most:,}"]
    for name, part in parts:
        if missing := [classes[place] for place in range(len(classes)) if not part.counts[place]]:
            lines.append(f"classes without boxes in {name}: {len(missing):,} ({listed(missing)})")
    for name, part in parts:
        if part.crowd:
            lines.append(f"crowds and difficult objects of {name}, neither trained on nor scored: {part.crowd:,}")
        for one in (part.negatives, *part.problems):
            if one.num:
                more = ", ..." if len(one.pictures) > EXAMPLES else ""
                lines.append(f"{name}: {one.what}: {one.num:,} ({', '.join(one.pictures[:EXAMPLES])}{more})")
    return lines
