"""Source: pictures with labels, read one at a time, wherever they come from."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from vitreous.data.images import Picture
from vitreous.errors import UserError

Labels = NDArray[np.int64]


class Source(ABC):
    """Pictures and their labels. Reading is safe in threads and in forked workers."""

    name: str
    classes: tuple[str, ...]
    labels: Labels  # (N,)
    pictures: Picture | None = None  # (N, H, W, 3), where all are in memory and of one size

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def read(self, index: int) -> Picture:
        """(H, W, 3); raises BadPicture."""

    @abstractmethod
    def where(self, index: int) -> str:
        """Where this picture lies, in words a person can follow."""

    def size(self, index: int) -> int:
        """Of this picture as it is stored, or of the file that it is in, in bytes; 0 where it is in none."""
        return 0

    def numbers(self, indices: Labels) -> Labels:
        """The numbers of pictures in the source that was opened, of which this one may be a part."""
        return indices


class Subset(Source):
    """Some pictures of another source."""

    def __init__(self, parent: Source, indices: Sequence[int] | NDArray[np.int64], name: str = "") -> None:
        self.parent, self.indices = parent, np.asarray(indices, dtype=np.int64)
        self.name, self.classes = name or parent.name, parent.classes
        self.labels = parent.labels[self.indices]
        self.pictures = None if parent.pictures is None else parent.pictures[self.indices]

    def read(self, index: int) -> Picture:
        return self.parent.read(int(self.indices[index]))

    def where(self, index: int) -> str:
        return self.parent.where(int(self.indices[index]))

    def size(self, index: int) -> int:
        return self.parent.size(int(self.indices[index]))

    def numbers(self, indices: Labels) -> Labels:
        return self.parent.numbers(self.indices[indices])


class Relabelled(Source):
    """The same pictures, labelled by the class list of another source (a model's, or the training pictures')."""

    def __init__(self, parent: Source, classes: Sequence[str]) -> None:
        unknown = [parent.classes[label] for label in np.unique(parent.labels) if parent.classes[label] not in classes]
        if unknown:
            raise UserError(
                f"{parent.name} has the class {unknown[0]!r}{_others(unknown)}, which is not among the {len(classes)} "
                f"classes of the training pictures ({', '.join(classes[:5])}{', ...' if len(classes) > 5 else ''}). "
                f"Add pictures of it to the training set, or remove it."
            )
        numbers = {name: number for number, name in enumerate(classes)}
        # Class names that no picture carries may be unknown; -1 is never looked up for them.
        table = np.array([numbers.get(name, -1) for name in parent.classes], dtype=np.int64)
        self.parent, self.name, self.classes, self.labels = parent, parent.name, tuple(classes), table[parent.labels]
        self.pictures = parent.pictures

    def read(self, index: int) -> Picture:
        return self.parent.read(index)

    def where(self, index: int) -> str:
        return self.parent.where(index)

    def size(self, index: int) -> int:
        return self.parent.size(index)

    def numbers(self, indices: Labels) -> Labels:
        return self.parent.numbers(indices)


def with_classes(source: Source, classes: Sequence[str]) -> Source:
    """The source with its labels numbered as in `classes`; a class that is not there is a UserError."""
    return source if source.classes == tuple(classes) else Relabelled(source, classes)


def _others(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


class BadFiles:
    """Pictures which cannot be read: named once, counted, and skipped; too many of them stop the run."""

    limit = 0.01  # of the source

    def __init__(self, source: Source) -> None:
        self.source = source
        self.reasons: dict[int, str] = {}  # by index in the source; the same picture is met again in every epoch

    def __len__(self) -> int:
        return len(self.reasons)

    def add(self, index: int, reason: str) -> None:
        self.reasons.setdefault(index, reason)

    def check(self) -> None:
        """Raises UserError when more than 1 % of the source is bad."""
        if len(self) > self.limit * len(self.source):
            raise UserError(f"{self.summary()} That is more than {self.limit:.0%}: repair or remove them.")

    def summary(self, num: int = 3) -> str:
        """How many, and the first few with their reasons."""
        first = "; ".join(f"{self.source.where(index)}: {reason}" for index, reason in list(self.reasons.items())[:num])
        more = f"; and {len(self) - num:,} more" if len(self) > num else ""
        return f"{self.source.name}: {len(self):,} of {len(self.source):,} pictures cannot be read ({first}{more})."


class PathList:
    """Many paths in two arrays: millions of Python strings would be copied into every forked worker."""

    def __init__(self, paths: Iterable[str]) -> None:
        encoded = [os.fsencode(path) for path in paths]
        self._ends = np.cumsum([len(path) for path in encoded], dtype=np.int64)
        self._bytes = np.frombuffer(b"".join(encoded), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        start = int(self._ends[index - 1]) if index else 0
        return os.fsdecode(self._bytes[start : int(self._ends[index])].tobytes())
