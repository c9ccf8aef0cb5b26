"""Source: pictures and what is known about them, read one at a time, wherever they come from."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitreous.batch import UNLABELLED
from vitreous.data.images import BadPicture, Picture, turned
from vitreous.data.targets import ClassLabels, NoTargets, Targets
from vitreous.data.targets.base import Large
from vitreous.errors import UserError

Labels = NDArray[np.int64]


class Sample(NamedTuple):
    """A picture, with what was read beside it."""

    picture: Picture
    large: Large


class Source(ABC):
    """Pictures and their targets. Reading is safe in threads and in forked workers."""

    name: str
    classes: tuple[str, ...]
    targets: Targets
    pictures: Picture | None = None  # (N, H, W, 3), where all are in memory and of one size
    notes: tuple[str, ...] = ()  # what was skipped, or taken in one way of several, when it was opened
    _bad: "BadFiles | None" = None

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def labels(self) -> Labels:
        """(N,) for all that is about one class per picture; a UserError where the source has something else."""
        if not isinstance(self.targets, ClassLabels):
            raise UserError(f"{self.name}: its pictures do not have one label each, which is required here.")
        return self.targets.labels

    @abstractmethod
    def read(self, index: int) -> Picture:
        """(H, W, 3); raises BadPicture."""

    def sample(self, index: int) -> Sample:
        """The picture, and the targets that are read with it; raises BadPicture."""
        if not self.targets.large:
            return Sample(self.read(index), {})
        picture, large = self.read(index), self.targets.read(index)
        return Sample(picture, {name: self._fitting(index, picture, name, target) for name, target in large.items()})

    def _fitting(self, index: int, picture: Picture, name: str, target: NDArray[Any]) -> NDArray[Any]:
        if target.shape[:2] == picture.shape[1::-1] != picture.shape[:2]:
            target = turned(target, self.orientation(index))  # it was made for the pixels as they are stored
        if target.shape[:2] != picture.shape[:2]:
            raise BadPicture(f"its {name} has {_px(target.shape)}, the picture {_px(picture.shape)}")
        return target

    @abstractmethod
    def where(self, index: int) -> str:
        """Where this picture lies, in words a person can follow."""

    def described(self, index: int) -> str:
        """What its targets say of this picture, in a few words; empty where that is nothing."""
        return self.targets.described(index, self.classes)

    def orientation(self, index: int) -> int:
        """1 to 8: how this picture was turned to be upright; raises BadPicture."""
        return 1

    def size(self, index: int) -> int:
        """Of this picture as it is stored, or of the file that it is in, in bytes; 0 where it is in none."""
        return 0

    def hold(self, pictures: int, runs: int) -> None:  # noqa: B027  # most read picture by picture
        """So many pictures, in so many runs of neighbours, will be asked for in any order before others are: what is
        read in larger parts than a picture stays in memory as long."""

    def numbers(self, indices: Labels) -> Labels:
        """The numbers of pictures in the source that was opened, of which this one may be a part."""
        return indices

    @property
    def bad(self) -> "BadFiles":
        """What could not be read so far, of the whole data set."""
        if self._bad is None:
            self._bad = BadFiles(self.name, len(self))
        return self._bad

    @bad.setter
    def bad(self, bad: "BadFiles") -> None:
        self._bad = bad


class Derived(Source):
    """Pictures of another source: some of them, or labelled in another way, or in memory."""

    def __init__(self, parent: Source, places: Labels | None = None, name: str = "") -> None:
        """`places`: which ones, in which order; all where it is not given."""
        self.parent, self.name, self.classes = parent, name or parent.name, parent.classes
        self._places = places
        self.targets = parent.targets if places is None else parent.targets.take(places)

    @property
    def places(self) -> Labels:
        """(N,) where in the other source each picture is."""
        return np.arange(len(self)) if self._places is None else self._places

    def _place(self, index: int) -> int:
        return index if self._places is None else int(self._places[index])

    def read(self, index: int) -> Picture:
        return self.parent.read(self._place(index))

    def where(self, index: int) -> str:
        return self.parent.where(self._place(index))

    def orientation(self, index: int) -> int:
        return self.parent.orientation(self._place(index))

    def size(self, index: int) -> int:
        return self.parent.size(self._place(index))

    def hold(self, pictures: int, runs: int) -> None:
        self.parent.hold(pictures, runs)

    def numbers(self, indices: Labels) -> Labels:
        return self.parent.numbers(indices if self._places is None else self._places[indices])

    @property
    def bad(self) -> "BadFiles":
        return self.parent.bad

    @bad.setter
    def bad(self, bad: "BadFiles") -> None:
        self.parent.bad = bad


class Subset(Derived):
    """Some pictures of another source."""

    def __init__(self, parent: Source, indices: Sequence[int] | NDArray[np.int64], name: str = "") -> None:
        self.indices = np.asarray(indices, dtype=np.int64)
        super().__init__(parent, self.indices, name)
        self.pictures = None if parent.pictures is None else parent.pictures[self.indices]


class Bare(Derived):
    """The pictures of another source, and nothing of what is known about them."""

    def __init__(self, parent: Source) -> None:
        super().__init__(parent)
        self.targets, self.classes, self.pictures = NoTargets(len(parent)), (UNLABELLED,), parent.pictures


class Retargeted(Derived):
    """The same pictures, of which something else is known, or known in another form."""

    def __init__(self, parent: Source, targets: Targets) -> None:
        super().__init__(parent)
        self.targets, self.pictures = targets, parent.pictures


class Relabelled(Derived):
    """The same pictures, labelled by the class list of another source (a model's, or the training pictures')."""

    def __init__(self, parent: Source, classes: Sequence[str]) -> None:
        counts = parent.targets.counts(len(parent.classes))
        occur = parent.classes if counts is None else [parent.classes[number] for number in np.flatnonzero(counts)]
        unknown = [name for name in occur if name not in classes]
        if unknown:
            raise UserError(
                f"{parent.name} has the class {unknown[0]!r}{_others(unknown)}, which is not among the {len(classes)} "
                f"classes of the training pictures ({', '.join(classes[:5])}{', ...' if len(classes) > 5 else ''}). "
                f"Add pictures of it to the training set, or remove it."
            )
        super().__init__(parent)
        numbers = {name: number for number, name in enumerate(classes)}
        # Class names that no picture carries may be unknown; -1 is never looked up for them.
        table = np.array([numbers.get(name, -1) for name in parent.classes], dtype=np.int64)
        self.classes, self.pictures = tuple(classes), parent.pictures
        self.targets = parent.targets.relabelled(table, len(classes))


def with_classes(source: Source, classes: Sequence[str]) -> Source:
    """The source with its labels numbered as in `classes`; a class that is not there is a UserError."""
    return source if source.classes == tuple(classes) else Relabelled(source, classes)


def _px(shape: tuple[int, ...]) -> str:
    return f"{shape[1]} x {shape[0]} px"


def _others(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


class BadFiles:
    """The pictures of a data set which cannot be read, or their labels: named once, counted, and skipped; too many stop
    the run.

    One for the whole set, whatever parts it is cut into: one bad picture of a small part is no reason to stop.
    """

    few, one_in = 3, 100  # so many are accepted, whichever is more, unless the user says how many

    def __init__(self, name: str, num: int, limit: int | None = None, what: str = "pictures cannot be read") -> None:
        self.name, self.num, self.what = name, num, what
        self.limit = max(self.few, num // self.one_in) if limit is None else limit
        self.reasons: dict[str, str] = {}  # by where the picture lies; it is met again in every epoch

    def __len__(self) -> int:
        return len(self.reasons)

    def add(self, where: str, reason: str) -> None:
        self.reasons.setdefault(where, reason)

    def check(self) -> None:
        """Raises UserError when they are too many."""
        if len(self) > self.limit:
            raise UserError(
                f"{self.summary()} That is more than {self.limit:,}: repair or remove them, or accept more with "
                "--data.max_unreadable."
            )

    def listed(self) -> list[str]:
        return [f"{where} ({reason})" for where, reason in self.reasons.items()]

    def summary(self, num: int = 3) -> str:
        """How many, and the first few with their reasons."""
        more = f"; and {len(self) - num:,} more" if len(self) > num else ""
        first = "; ".join(f"{where}: {reason}" for where, reason in list(self.reasons.items())[:num])
        return f"{self.name}: {len(self):,} of {self.num:,} {self.what} ({first}{more})."


class PathList:
    """Many paths in two arrays: millions of Python strings would be copied into every forked worker."""

    def __init__(self, paths: Iterable[str]) -> None:
        encoded = [os.fsencode(path) for path in paths]
        self._ends = np.cumsum([len(path) for path in encoded], dtype=np.int64)
        self._bytes = np.frombuffer(b"".join(encoded), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Of every path, in bytes."""
        return np.diff(self._ends, prepend=0)

    def __getitem__(self, index: int) -> str:
        start = int(self._ends[index - 1]) if index else 0
        return os.fsdecode(self._bytes[start : int(self._ends[index])].tobytes())
