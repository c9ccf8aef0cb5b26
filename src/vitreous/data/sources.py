"""Where samples come from: DataSettings finds a data set, splits it, and keeps in memory what fits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vitreous import settings
from vitreous.data.base import BadFiles, Bare, Source, Subset, with_classes
from vitreous.data.boxed import read_shapes
from vitreous.data.joined import is_joined, open_joined
from vitreous.data.memory import InMemory, estimated_bytes
from vitreous.data.names import ALL, Layout, LayoutSettings, label_pattern, table_hint
from vitreous.data.opening import OWN, exists, found_at, opened
from vitreous.data.order import OrderSettings
from vitreous.data.splits import Splits, carve, limited, strata
from vitreous.data.targets import NoTargets, Targets
from vitreous.errors import UserError, did_you_mean

PLAIN = Layout()
SPLITS = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """A data set and how it is split. val and test are carved from train where the set has none of its own."""

    MOVED: ClassVar[Mapping[str, str]] = {"balance": "order.balance"}

    where: str = (
        "fashion"  # a folder, parquet, tar or CSV; fashion, cifar10, imagenette224, oxford_pets, hf:NAME, rendered:TASK
    )
    val_fraction: float = 0.1  # share of train to make choices on, where the set has no val split; 0 for none
    test_fraction: float = 0.1  # share of all to report on, where the set has no test split; 0 for none
    test_split: str = "test"  # the split to report on; val for sets like ImageNet, whose test labels are secret
    split_seed: int = 0  # decides which pictures are carved out
    examples: int | None = None  # keep so many of train before val is carved of them, whatever val there is (VTAB)
    train_fraction: float = 1.0  # train on this share only, all classes in proportion; a larger includes a smaller one
    train_limit: int | None = None  # train on so many pictures only, all classes in proportion
    leave_out: str = ""  # numbers of training pictures to skip, counted in the set as it is: 3,17,20-25
    order: OrderSettings = field(default_factory=OrderSettings)  # in which training sees its pictures
    layout: LayoutSettings = field(default_factory=LayoutSettings)  # where labels and masks stand
    max_unreadable: int | None = None  # skip so many unreadable pictures; none: 1 % of all, or 3 if that is more
    need_labels: bool = True  # false: pictures without labels will do, or of one class, to learn from pictures alone
    keep_gb: float = 4.0  # decode once and keep in memory what needs no more than this
    shrink_px: int | None = None  # keep all of train in memory, larger pictures with a shorter side of so many pixels

    def build(self) -> Splits:
        """Find the data, split it, and decode it when it fits."""
        self.check()
        opened = found = open_sources(self.where, self._layout())
        if not self.need_labels:  # several views, mixing and warps are for pictures alone, and reading masks takes time
            found = {name: Bare(one) if one.targets.has_places else one for name, one in found.items()}
        train, val, test = self._split({name: source for name, source in found.items() if len(source)})
        if self.need_labels:
            check_classes(train, self.where)
        for part in (val, test):
            if part is not None:
                _check_covered(part, train)
        notes = dict.fromkeys(note for source in opened.values() for note in source.notes)
        splits = self.reduced(Splits(train, val, test, tuple(notes)))
        if self.leave_out:
            splits = replace(splits, train=without(splits.train, parse_numbers(self.leave_out)))
        if self.shrink_px is not None:
            splits = replace(splits, train=InMemory(splits.train, self.shrink_px))
        if self.order.streams:  # to keep pictures, every process would read all of them
            return splits
        return _kept(splits) if _estimated_gb(splits) <= self.keep_gb else splits

    def whole_part(self, split: str) -> Source | None:
        """A part that the data set has of its own, read lazily and whole; all of it, where it is not split."""
        self.check()
        found = open_sources(self.where, self._layout())
        return found.get(self.test_split if split == "test" else split, found.get(ALL))

    def check(self) -> None:
        """Reports what can be seen to be wrong before any data is looked for, which may take long."""
        for name in ("val_fraction", "test_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"--data.{name} is {getattr(self, name)}; it must be at least 0 and below 1.")
        if not 0 < self.train_fraction <= 1:
            raise UserError(f"--data.train_fraction is {self.train_fraction}; it must be above 0 and at most 1.")
        for name, least in (
            ("examples", 1),
            ("train_limit", 1),
            ("shrink_px", 1),
            ("max_unreadable", 0),
            ("keep_gb", 0),
        ):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise UserError(f"--data.{name} is {value}; it must be at least {least}.")
        if self.test_split not in SPLITS:
            raise UserError(
                f"--data.test_split is {self.test_split!r}, which is not one of {', '.join(SPLITS)}."
                f"{did_you_mean(self.test_split, SPLITS)}"
            )
        self.order.check()
        if self.leave_out:
            parse_numbers(self.leave_out)
        if self.layout.label_pattern is not None:
            label_pattern(self.layout.label_pattern)
            if self.layout.label_column is not None:
                raise UserError("labels are in a column or in file names: leave out label_column or label_pattern.")

    def _layout(self) -> Layout:
        given = {part.name: getattr(self.layout, part.name) for part in fields(self.layout)}
        return Layout(**given, need_labels=self.need_labels, max_unreadable=self.max_unreadable)

    def located(self) -> "DataSettings":
        """With the whole path to data that is given by a relative one, so that it is found from any folder."""
        path = Path(self.where).expanduser()
        is_named = self.where in OWN or self.where.startswith(("hf:", "rendered:"))
        return self if is_named or not exists(path) else replace(self, where=str(path.absolute()))

    def reduced(self, splits: Splits) -> Splits:
        """With `train_fraction` and at most `train_limit` of the training pictures; the rest as it is."""
        train = splits.train
        if self.train_fraction < 1:
            num = max(1, round(self.train_fraction * len(train)))
            train = _limited(train, num, self.split_seed, f"train_fraction is {self.train_fraction}")
        if self.train_limit is not None:
            train = _limited(train, self.train_limit, self.split_seed, f"train_limit is {self.train_limit}")
        return replace(splits, train=train)

    def _split(self, found: dict[str, Source]) -> tuple[Source, Source | None, Source | None]:
        """train, val and test; what is missing is carved: test first, then val from what is left."""
        if self.test_split not in found and self.test_split != "test":
            raise UserError(
                f"{self.where}: no split {self.test_split!r} among {', '.join(found)}."
                f"{did_you_mean(self.test_split, list(found))}"
            )
        train = found.get("train", found.get(ALL))
        if train is None:
            others = f", only {' and '.join(found)}" if found else ""
            raise UserError(f"{self.where}: no training pictures{others}. Add a train folder or file.")
        test = found.get(self.test_split)
        val = found.get("val") if self.test_split != "val" and self.examples is None else None
        if test is None:
            train, test = carve(train, self.test_fraction, self.split_seed, "test")
        if self.examples is not None and self.examples < len(train):
            train = _limited(train, self.examples, self.split_seed, f"examples is {self.examples}")
        if val is None and self.val_fraction and not train.targets.are_known:
            raise UserError(
                f"{self.where}: a model labelled some of its pictures, which cannot judge models: set "
                "--data.val_fraction 0, or hold out a part of what people labelled beforehand."
            )
        if val is None:
            train, val = carve(train, self.val_fraction, self.split_seed, "val")
        return (
            train,
            None if val is None else with_classes(val, train.classes),
            None if test is None else with_classes(test, train.classes),
        )


def check_classes(train: Source, where: str = "") -> None:
    """`where`: the folder, in which a table may hold the labels instead."""
    if isinstance(train.targets, NoTargets):
        raise UserError(f"{train.name}: its pictures have no labels, which are required here. Give others that do.")
    counts = train.targets.counts(len(train.classes))
    present = np.arange(len(train.classes)) if counts is None else np.flatnonzero(counts)
    if len(present) < train.targets.least_classes:
        if not len(present):
            raise UserError(f"{train.name}: none of its pictures has an object to learn from.")
        name = train.classes[present[0]]
        instead = table_hint(Path(where).expanduser()) if where else ""
        raise UserError(f"{train.name}: only one class ({name}). Learning from labels needs at least two.{instead}")


def without(train: Source, numbers: Iterable[int]) -> Source:
    """The source without some pictures, by their numbers in the set as it was opened."""
    stay = np.flatnonzero(~np.isin(train.numbers(np.arange(len(train))), list(numbers)))
    num_classes = len(train.classes)
    gone = np.setdiff1d(_occurring(train.targets, num_classes), _occurring(train.targets.take(stay), num_classes))
    if len(gone) and not train.targets.may_miss_classes:
        raise UserError(
            f"{train.name}: all pictures of the class {train.classes[gone[0]]!r} would be left out. Add others."
        )
    return Subset(train, stay)


def parse_numbers(text: str) -> list[int]:
    """'3,17,20-22' -> [3, 17, 20, 21, 22]"""
    found: list[int] = []
    for word in text.split(","):
        first, _, last = word.strip().partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            raise UserError(f"leave_out: {word!r} is neither a number nor a range such as 20-25")
        found += range(int(first), int(last or first) + 1)
    return found


def written_numbers(numbers: Iterable[int]) -> str:
    """[3, 17, 20, 21, 22] -> '3,17,20-22'"""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _limited(train: Source, num: int, seed: int, asked: str) -> Source:
    groups = strata(train)
    num_groups = len(np.unique(groups))
    if num < num_groups and not train.targets.may_miss_classes:
        raise UserError(f"{asked}; {train.name} has {num_groups} classes: use more.")
    return Subset(train, limited(groups, num, seed), train.name)


def _estimated_gb(splits: Splits) -> float:
    parts = (splits.train, splits.val, splits.test)
    return sum(estimated_bytes(part) for part in parts if part is not None) / 1e9


def _kept(splits: Splits) -> Splits:
    """The splits decoded into memory."""
    return replace(
        splits,
        train=splits.train if isinstance(splits.train, InMemory) else InMemory(splits.train),
        val=None if splits.val is None else InMemory(splits.val),
        test=None if splits.test is None else InMemory(splits.test),
    )


def _occurring(targets: Targets, num_classes: int) -> NDArray[np.int64]:
    """The classes that pictures have, as far as that is known without reading them."""
    counts = targets.counts(num_classes)
    return np.arange(0) if counts is None else np.flatnonzero(counts)


def _check_covered(part: Source, train: Source) -> None:
    if train.targets.may_miss_classes:  # the data check names them
        return
    num_classes = len(train.classes)
    unknown = np.setdiff1d(_occurring(part.targets, num_classes), _occurring(train.targets, num_classes))
    if len(unknown):
        raise UserError(
            f"{part.name} has the class {train.classes[unknown[0]]!r}, but {train.name} has no picture of it. "
            f"Add some to the training set, or remove the class."
        )


def open_sources(where: str, layout: Layout = PLAIN) -> dict[str, Source]:
    """A data set's own splits, read lazily: train, val, test as far as they exist, or `all` where it is not split."""
    with_shapes = layout.targets == "instances"
    if _is_joined(where):
        found = open_joined(found_at(where), _lazily)
    else:
        found = opened(where, replace(layout, targets="boxes") if with_shapes else layout)
    if with_shapes:
        read_shapes(found, where)
    bad = BadFiles(Path(where).name or where, sum(map(len, found.values())), layout.max_unreadable)
    for source in found.values():
        source.bad = bad
    return found


def _is_joined(where: str) -> bool:
    path = Path(where).expanduser()
    return exists(path) and is_joined(path)


def _lazily(document: Any, where: str) -> Splits:
    """What settings that were written down are about; nothing is decoded."""
    return replace(settings.from_json(DataSettings, document, where=where), keep_gb=0.0).build()
