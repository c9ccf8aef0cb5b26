"""Labels of pixels: a mask per picture, with the number of a class for each of its pixels."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.batch import IGNORED
from vitreous.data.geometry import Geometry
from vitreous.data.images import BadPicture
from vitreous.data.kinds import TaskKind
from vitreous.data.targets.base import Digest, Indices, Large, Targets
from vitreous.data.threads import in_threads

Mask = NDArray[np.int16]  # (H, W): class numbers; IGNORED where there is none


class Masks(ABC):
    """Where masks come from: one per picture of a source. Reading is safe in threads and in forked workers."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: int) -> Mask:
        """Raises BadPicture."""

    @abstractmethod
    def update(self, index: int, digest: Digest) -> None:
        """Feeds what tells this mask from others without reading it: the name and size of its file."""


class HeldMasks(Masks):
    """In memory: one block where all are of one size."""

    def __init__(self, masks: Sequence[Any]) -> None:
        held = [np.asarray(mask, dtype=np.int16) for mask in masks]
        self.block = np.stack(held) if held and len({mask.shape for mask in held}) == 1 else None
        self._masks: Sequence[Mask] = held if self.block is None else self.block  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._masks)

    def read(self, index: int) -> Mask:
        return self._masks[index]

    def update(self, index: int, digest: Digest) -> None:
        digest.update(repr(self._masks[index].shape).encode())
        digest.update(np.ascontiguousarray(self._masks[index]).data)


class PixelLabels(Targets):
    """A class per pixel."""

    task: ClassVar[TaskKind] = "segment"
    has_places, large = True, ("mask",)

    def __init__(self, masks: Masks, places: Indices | None = None, numbers: Indices | None = None) -> None:
        """`places`: of which pictures, all where it is not given. `numbers`: what the classes of the masks are called
        now."""
        self.masks = masks
        self._places = np.arange(len(masks)) if places is None else places
        self._numbers = numbers
        self._held: HeldMasks | None = None  # in the order of the pictures, already under their new numbers

    def __len__(self) -> int:
        return len(self._places)

    def take(self, indices: Indices) -> "PixelLabels":
        chosen = PixelLabels(self.masks, self._places[indices], self._numbers)
        if self._held is not None:
            chosen._held = HeldMasks([self._held.read(int(index)) for index in indices])
        return chosen

    def relabelled(self, numbers: Indices, num_classes: int) -> "PixelLabels":
        now = numbers if self._numbers is None else _looked_up(self._numbers, numbers)
        called = PixelLabels(self.masks, self._places, now)
        if self._held is not None:
            called._held = HeldMasks([_renumbered(self._held.read(index), numbers) for index in range(len(self))])
        return called

    @cached_property
    def strata(self) -> Indices:
        """The class of each picture that the fewest pictures have: so that rare ones, too, are found in every part of a
        split. All masks are read for that; those that cannot be, or have no class, go with the largest group."""
        found = in_threads(len(self), self._present, "classes of masks")
        present = [np.arange(0) if isinstance(one, BadPicture) else one for one in found]
        counts = np.bincount(np.concatenate([*present, np.arange(1)]).astype(np.int64))
        rarest = np.array([one[counts[one].argmin()] if len(one) else -1 for one in present], dtype=np.int64)
        groups = np.bincount(rarest[rarest >= 0], minlength=1)
        return np.where(rarest < 0, groups.argmax(), rarest)

    def update(self, digest: Digest) -> None:
        digest.update(repr(None if self._numbers is None else self._numbers.tolist()).encode())
        for place in self._places:
            self.masks.update(int(place), digest)

    def read(self, index: int) -> Large:
        if self._held is not None:
            return {"mask": self._held.read(index)}
        mask = self.masks.read(int(self._places[index]))
        return {"mask": mask if self._numbers is None else _renumbered(mask, self._numbers)}

    def _present(self, index: int) -> Indices:
        return np.flatnonzero(count_pixels(self.read(index)["mask"])[1:])

    def held(self, large: Sequence[Large]) -> "PixelLabels":
        kept = PixelLabels(self.masks, self._places, self._numbers)
        kept._held = HeldMasks([one["mask"] for one in large])
        return kept

    def stacked(self) -> dict[str, Tensor] | None:
        if self._held is None or self._held.block is None:
            return None
        return {"mask": torch.from_numpy(self._held.block)}

    def moved(self, targets: dict[str, Tensor], geometry: Geometry) -> dict[str, Tensor]:
        return {name: geometry.labels(mask) for name, mask in targets.items()}


def count_pixels(mask: Mask, num_classes: int = 0) -> Indices:
    """(1 + num_classes, or more) how many pixels are ignored, and how many each class has."""
    return np.bincount(mask.ravel() - IGNORED, minlength=1 + num_classes)


def _renumbered(mask: Mask, numbers: Indices) -> Mask:
    return _looked_up(mask, numbers).astype(np.int16)


def _looked_up(values: NDArray[Any], numbers: Indices) -> Indices:
    # IGNORED is -1, and so finds the last entry.
    found: Indices = np.append(numbers, IGNORED)[values]
    return found
