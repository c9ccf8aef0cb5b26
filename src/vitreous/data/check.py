"""What there is to know about a data set before training on it: one look at every picture."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitreous.data.base import Source
from vitreous.data.check_boxes import BoxCounts, box_lines, count_boxes
from vitreous.data.duplicates import Fingerprints, exact_groups, near_groups
from vitreous.data.kinds import TaskKind
from vitreous.data.looks import look_at
from vitreous.data.memory import InMemory, unread, worked
from vitreous.data.skipped import listed
from vitreous.data.splits import Splits
from vitreous.display.words import class_in_words, counted, percent
from vitreous.errors import UserError

Numbers = NDArray[np.int64]

NAMED = 100  # how many pictures of a kind a report names; leaks are named all
TINY_PX = 16  # a picture with a shorter side shows little
NAMED_CLASSES = 12  # of which the share of pixels is told in a line, at most
CONFLICTS: dict[TaskKind, str] = {
    "classify": "pictures under two classes",
    "label": "pictures under two classes",
    "segment": "equal pictures with different masks",
    "detect": "pictures with two sets of boxes",
    "match": "equal pictures with different captions",
    "instances": "pictures with two sets of objects",
}
FEW = 5  # training pictures of a class that cannot be learned from, nor measured


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """What masks hold."""

    counts: tuple[int, ...]  # of each class
    ignored: int
    blank: tuple[str, ...]  # the first pictures of which no pixel counts
    num_blank: int

    def shares(self) -> tuple[float, ...]:
        """Of each class, in the pixels that count."""
        return tuple(count / max(1, sum(self.counts)) for count in self.counts)


@dataclass(frozen=True, kw_only=True)
class Part:
    name: str  # train, val or test
    pictures: int
    counts: tuple[int, ...]  # of pictures that have each class
    unreadable: tuple[str, ...]  # where, and why
    pixels: Pixels | None = None  # where pictures have masks
    boxes: BoxCounts | None = None  # where they have boxes


@dataclass(frozen=True, kw_only=True)
class Twins:
    """Two pictures that are the same."""

    one: str
    other: str
    equal: bool  # in every pixel; else nearly so


@dataclass(frozen=True, kw_only=True)
class Leak:
    """A picture that stands in two parts."""

    part: str
    picture: str
    also_in: str
    twin: str
    equal: bool


@dataclass(frozen=True, kw_only=True)
class DataReport:
    where: str
    classes: tuple[str, ...]
    parts: tuple[Part, ...]
    heights: tuple[int, int, int]  # least, median, greatest, in pixels
    widths: tuple[int, int, int]
    aspects: tuple[float, float, float]  # width to height
    grey_share: float
    mean: tuple[float, float, float]  # of each channel over train, levels being 0 to 1
    std: tuple[float, float, float]
    num_equal: int  # pictures that repeat another of the same part in every pixel
    num_near: int  # and nearly so
    twins: tuple[Twins, ...]  # the first of both
    two_labels: tuple[Twins, ...]  # the same picture under two classes, or with two masks, or sets of boxes
    num_two_labels: int
    leaks: tuple[Leak, ...]
    left_out: tuple[int, ...]  # numbers of the training pictures that also stand in val or test, and so do not train
    tiny: tuple[str, ...]
    flat: tuple[str, ...]  # of one colour
    notes: tuple[str, ...] = ()  # what was skipped when the data was opened
    task: TaskKind = "classify"  # what a model of such pictures does

    def part(self, name: str) -> Part | None:
        return next((part for part in self.parts if part.name == name), None)

    def size(self, name: str) -> int:
        """Pictures of a part; 0 where it is not there."""
        part = self.part(name)
        return 0 if part is None else part.pictures

    @property
    def train_counts(self) -> tuple[int, ...]:
        return self.parts[0].counts

    @property
    def num_train(self) -> int:
        """That are trained on."""
        return self.parts[0].pictures - len(self.left_out)

    @property
    def imbalance(self) -> float:
        """Pictures of the largest class of train for one of the smallest."""
        counts = [count for count in self.train_counts if count]
        return max(counts) / min(counts)

    @property
    def class_sizes(self) -> str:
        """In words."""
        counts = [count for count in self.train_counts if count]
        if self.imbalance == 1:
            return f"every class has {counts[0]:,} training pictures"
        return f"the largest class has {max(counts):,} training pictures, the smallest {min(counts):,}"

    @property
    def small_classes(self) -> tuple[str, ...]:
        pairs = zip(self.classes, self.train_counts, strict=True)
        return tuple(f"{name} {count}" for name, count in pairs if 0 < count <= FEW)

    def summary(self) -> list[str]:
        """A line a fact; what is as it should be is not mentioned, but for duplicates and leaks."""
        shares = ", ".join(f"{part.pictures:,} {part.name}" for part in self.parts)
        lines = [f"{shares}; {counted(len(self.classes), 'class', 'classes')}", self._sizes()]
        lines += self._balance()
        if self.small_classes:
            lines.append(f"classes with too few training pictures to learn from: {listed(self.small_classes)}")
        lines += self.notes
        bad = [reason for part in self.parts for reason in part.unreadable]
        if bad:
            lines.append(f"unreadable, skipped: {len(bad):,} ({listed(bad)})")
        lines.append(f"duplicates within a part: {self.num_equal:,} exact, {self.num_near:,} near{_pairs(self.twins)}")
        if self.num_two_labels:
            lines.append(f"{CONFLICTS[self.task]}: {self.num_two_labels:,}{_pairs(self.two_labels)}")
        lines.append(self._leaks())
        for named, what in ((self.tiny, f"below {TINY_PX} px"), (self.flat, "of one colour")):
            if named:
                lines.append(f"pictures {what}: {len(named):,}{' or more' * (len(named) == NAMED)} ({listed(named)})")
        return lines

    def _sizes(self) -> str:
        (low_h, height, high_h), (low_w, width, high_w) = self.heights, self.widths
        some = f"{100 * self.grey_share:.1f} % grey" if self.grey_share else "in colour"
        grey = "all grey" if self.grey_share == 1 else some
        if low_h == high_h and low_w == high_w:
            return f"all {width} x {height} px, {grey}"
        return f"{low_w} x {low_h} to {high_w} x {high_h} px, median {width} x {height}, {grey}"

    def _balance(self) -> list[str]:
        counts, pixels = self.train_counts, self.parts[0].pixels
        if pixels is not None:
            return self._pixel_lines(pixels)
        if boxes := [(part.name, part.boxes) for part in self.parts if part.boxes is not None]:
            return box_lines(self.classes, boxes)
        largest, smallest = int(np.argmax(counts)), int(np.argmin(counts))
        if counts[largest] == counts[smallest]:
            return [f"{counted(int(counts[0]), 'training picture')} of every class"]
        return [
            f"largest class of train {self.classes[largest]} {counts[largest]:,}, smallest {self.classes[smallest]} "
            f"{counts[smallest]:,}: {self.imbalance:.1f} to 1"
        ]

    def _pixel_lines(self, train: Pixels) -> list[str]:
        shares = train.shares()
        order = sorted(range(len(shares)), key=lambda place: -shares[place])
        every = train.ignored + sum(train.counts)
        ignored = f"; {100 * train.ignored / every:.1f} % of all ignored" if train.ignored else ""
        named = [
            f"{class_in_words(self.classes[place])} {percent(float(shares[place]), 2)}"
            for place in order
            if shares[place]
        ]
        lines = [f"pixels of train: {listed(named, NAMED_CLASSES)}{ignored}"]
        if missing := [self.classes[place] for place in order if not shares[place]]:
            lines.append(f"classes that occur in no training mask: {listed(missing)}")
        for part in self.parts:
            if part.pixels is not None and part.pixels.num_blank:
                blank = f"{part.pixels.num_blank:,} ({listed(part.pixels.blank)})"
                lines.append(f"pictures of {part.name} in which every pixel is ignored: {blank}")
        return lines

    def _leaks(self) -> str:
        if not self.leaks:
            return "pictures in two parts: none"
        first = self.leaks[0]
        example = f"{first.picture} in {first.part} is {first.twin} in {first.also_in}"
        dropped = f"left out: {len(self.left_out):,} of train, none of test"
        return f"pictures in two parts: {len(self.leaks):,} ({example}); {dropped}"


def _pairs(twins: Sequence[Twins]) -> str:
    return f" ({twins[0].one} and {twins[0].other}{', ...' if len(twins) > 1 else ''})" if twins else ""


# ---- one look at every picture


class Seen:
    """A part of the data, every picture looked at."""

    def __init__(self, name: str, source: Source) -> None:
        self.name, self.source = name, source
        found = list(worked(source, lambda sample: look_at(sample, len(source.classes)), f"checking {source.name}"))
        self.places = np.array([place for place, _ in found], dtype=np.int64)
        self.looks = [one for _, one in found]
        # What is in memory can be read: decoding has left out the others.
        self.unreadable = source.unreadable if isinstance(source, InMemory) else unread(source, self.places.tolist())

    def report(self) -> Part:
        reasons = self.source.bad.reasons
        bad = tuple(f"{where} ({reasons[where]})" for where in self.unreadable)
        counts, pixels = self._counts()
        sizes = np.array([(one.height, one.width) for one in self.looks], dtype=np.int64).reshape(-1, 2)
        return Part(
            name=self.name,
            pictures=len(self.places),
            counts=tuple(counts.tolist()),
            unreadable=bad,
            pixels=pixels,
            boxes=count_boxes(self.source, self.places, sizes),
        )

    def _counts(self) -> tuple[Numbers, Pixels | None]:
        """Of pictures that have each class; and what their masks hold, where they have any."""
        num_classes, masks = len(self.source.classes), [one.pixels for one in self.looks if one.pixels is not None]
        if not masks:
            counts = self.source.targets.take(self.places).counts(num_classes)
            return np.zeros(num_classes, dtype=np.int64) if counts is None else counts, None
        every = np.stack(masks)
        blank = self.places[every[:, 1:].sum(axis=1) == 0]
        pixels = Pixels(
            counts=tuple(every[:, 1:].sum(axis=0).tolist()),
            ignored=int(every[:, 0].sum()),
            blank=tuple(self.source.where(int(place)) for place in blank[:NAMED]),
            num_blank=len(blank),
        )
        return (every[:, 1:] > 0).sum(axis=0), pixels


def check(splits: Splits, where: str = "") -> DataReport:
    """Look at every picture of every part once."""
    given = {"train": splits.train, "val": splits.val, "test": splits.test}
    parts = [Seen(name, source) for name, source in given.items() if source is not None]
    if not len(parts[0].places):
        raise UserError(f"{splits.train.name}: none of its pictures can be read")
    together = _Together(parts)
    leaks, left_out = together.leaks()
    looks = [one for part in parts for one in part.looks]
    heights, widths = (np.array([getattr(one, side) for one in looks]) for side in ("height", "width"))
    mean, square = np.mean([one.sums for one in parts[0].looks], axis=0)
    names = [part.source.where(int(place)) for part in parts for place in part.places]
    twins, (num_equal, num_near) = together.twins(names)
    conflicts = together.two_labels(names)
    tiny = np.flatnonzero(np.minimum(heights, widths) < TINY_PX)[:NAMED]
    flat = np.flatnonzero([one.is_flat for one in looks])[:NAMED]
    return DataReport(
        where=where or splits.train.name,
        classes=splits.train.classes,
        parts=tuple(part.report() for part in parts),
        heights=_spread(heights),
        widths=_spread(widths),
        aspects=_three(np.quantile(widths / heights, [0, 0.5, 1]).round(3)),
        grey_share=float(np.mean([one.is_grey for one in looks])),
        mean=_three(mean.round(4)),
        # A channel that never changes must not be divided by 0.
        std=_three(np.sqrt(np.maximum(square - np.square(mean), 1e-4)).round(4)),
        num_equal=num_equal,
        num_near=num_near,
        twins=twins,
        two_labels=conflicts[:NAMED],
        num_two_labels=len(conflicts),
        leaks=leaks,
        left_out=left_out,
        tiny=tuple(names[place] for place in tiny),
        flat=tuple(names[place] for place in flat),
        notes=splits.notes,
        task=splits.train.targets.task or "classify",
    )


def _three(values: NDArray[np.float64]) -> tuple[float, float, float]:
    first, second, third = values.tolist()
    return first, second, third


def _spread(values: Numbers) -> tuple[int, int, int]:
    return int(values.min()), int(np.median(values)), int(values.max())


# ---- the same picture twice


class _Together:
    """All parts in one line: train, then val, then test."""

    def __init__(self, parts: Sequence[Seen]) -> None:
        self.parts = parts
        prints = Fingerprints.of([one.fingerprint for part in parts for one in part.looks])
        self.exact, self.near = exact_groups(prints), near_groups(prints)
        self.part = np.repeat(np.arange(len(parts)), [len(part.places) for part in parts])
        self.place = np.concatenate([part.places for part in parts])
        self.said = [part.source.described(int(place)) for part in parts for place in part.places]
        self.masks = [one.mask for part in parts for one in part.looks]

    def twins(self, names: Sequence[str]) -> tuple[tuple[Twins, ...], tuple[int, int]]:
        """Within one part: the first ones by name, and how many there are, exact and near."""
        counts, found = [], []
        for groups in (self.exact, self.near):
            first, again = _repeats(np.stack([self.part, groups], axis=1))
            counts.append(len(again))
            found.append(list(zip(first.tolist(), again.tolist(), strict=True)))
        equal = set(found[0])
        chosen = found[0][: NAMED // 2] + [pair for pair in found[1] if pair not in equal][: NAMED // 2]
        twins = tuple(self._twins(a, b, names) for a, b in chosen)
        return twins, (counts[0], counts[1] - counts[0])

    def two_labels(self, names: Sequence[str]) -> tuple[Twins, ...]:
        """The same picture, anywhere, under another class than where it was met first; or with another mask, where they
        are equal: near duplicates may well have masks that differ a little."""
        first, again = _repeats(self.near[:, None])
        pairs = zip(first.tolist(), again.tolist(), strict=True)
        return tuple(self._twins(a, b, names) for a, b in pairs if self._contradict(a, b))

    def _contradict(self, one: int, other: int) -> bool:
        are_equal = self.exact[one] == self.exact[other]
        return self.said[one] != self.said[other] or (are_equal and self.masks[one] != self.masks[other])

    def leaks(self) -> tuple[tuple[Leak, ...], tuple[int, ...]]:
        """Of train with val and test, of val with test; and the numbers of those in train."""
        found: list[Leak] = []
        left_out: list[int] = []
        for here in range(len(self.parts)):
            later = {}  # group -> a picture of a later part; test counts before val
            for place in np.flatnonzero(self.part > here):
                later[int(self.near[place])] = int(place)
            mine = [int(place) for place in np.flatnonzero(self.part == here) if int(self.near[place]) in later]
            found += [self._leak(place, later[int(self.near[place])]) for place in mine]
            if here == 0:
                left_out = self.parts[0].source.numbers(self.place[mine]).tolist() if mine else []
        return tuple(found), tuple(left_out)

    def _leak(self, place: int, twin: int) -> Leak:
        part, other = self.parts[self.part[place]], self.parts[self.part[twin]]
        return Leak(
            part=part.name,
            picture=part.source.where(int(self.place[place])),
            also_in=other.name,
            twin=other.source.where(int(self.place[twin])),
            equal=bool(self.exact[place] == self.exact[twin]),
        )

    def _twins(self, one: int, other: int, names: Sequence[str]) -> Twins:
        return Twins(one=names[one], other=names[other], equal=bool(self.exact[one] == self.exact[other]))


def _repeats(groups: Numbers) -> tuple[Numbers, Numbers]:
    """Of (N, k) rows: which have occurred before, and where first; both in order."""
    _, first, inverse = np.unique(groups, axis=0, return_index=True, return_inverse=True)
    firsts = first[inverse.reshape(-1)]
    again = np.flatnonzero(firsts != np.arange(len(groups)))
    return firsts[again], again
