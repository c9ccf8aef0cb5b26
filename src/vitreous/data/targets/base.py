"""Targets: what a source knows about its pictures beside the pixels.

Small targets (a label) are kept on the device and found there by a sample's id. Large ones (a mask) are read with the
picture, and go where its pixels go.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.batch import IGNORED
from vitreous.data.geometry import Geometry
from vitreous.data.kinds import TaskKind

Indices = NDArray[np.int64]
Large = Mapping[str, NDArray[Any]]  # of one picture, by name


class Shares(NamedTuple):
    """Groups of pictures that are shown equally often, or in proportion to weights, whatever their sizes."""

    groups: Indices  # (N,)
    weights: NDArray[np.float64] | None = None  # by group


class Digest(Protocol):
    """What hashlib gives."""

    def update(self, data: Any, /) -> None: ...


class Targets(ABC):
    """Of N pictures, in the order of their source."""

    task: ClassVar[TaskKind | None] = None  # what a model of such pictures does; None: nothing is asked of it
    least_classes: ClassVar[int] = 2  # that training pictures must have
    may_miss_classes: ClassVar[bool] = False  # whether training pictures may lack a class that others have
    are_known: ClassVar[bool] = True  # whether a model may be measured by them
    has_places = False  # whether they lie somewhere in the picture, and so must move with its pixels
    large: tuple[str, ...] = ()  # names of those that are read with the picture
    beyond: ClassVar[int] = IGNORED  # what large ones have where a batch has room for a larger picture

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, indices: Indices) -> Self:
        """Of some of the pictures, in this order."""

    @abstractmethod
    def relabelled(self, numbers: Indices, num_classes: int) -> Self:
        """With class c called numbers[c] of `num_classes`; -1 where no picture has it."""

    @abstractmethod
    def update(self, digest: Digest) -> None:
        """Feeds all that tells these targets from others."""

    @property
    def strata(self) -> Indices | None:
        """(N,) groups that every part of a split should hold in proportion, where there are any."""
        return None

    @property
    def shares(self) -> Shares | None:
        """What training is balanced by, where that is asked for; None: these cannot be balanced."""
        return None

    def described(self, index: int, classes: Sequence[str]) -> str:
        """What is known of a picture, in a few words; empty where that is nothing."""
        return ""

    def counts(self, num_classes: int) -> Indices | None:
        """Of how many pictures each class is a target; None where only reading them all would tell."""
        return None

    def small(self) -> dict[str, Tensor]:
        """(N, ...) each: what is kept on the device."""
        return {}

    def read(self, index: int) -> Large:
        """What is too large for that; raises BadPicture. All have rows and columns first, as many as the picture."""
        return {}

    def held(self, large: Sequence[Large]) -> Self:
        """The same, with what was read of every picture kept in memory."""
        return self

    def rescaled(self, sizes: Indices) -> Self:
        """Of the same pictures, resized to these heights and widths (N, 2), as far as it is not read with them."""
        return self

    def stacked(self) -> dict[str, Tensor] | None:
        """(N, H, W, ...) each: the large ones, where all are in memory and of one size; empty where none are large."""
        return {}

    def moved(self, targets: dict[str, Tensor], geometry: Geometry) -> dict[str, Tensor]:
        """Small or large ones of B pictures, where their pixels went. Large ones are (B, H, W, ...), all pictures being
        of one size."""
        return targets

    def shown(self, targets: dict[str, Tensor], geometry: Geometry) -> dict[str, Tensor]:
        """Small ones of B pictures as evaluation shows these: where their pixels went, all of them."""
        return targets

    def learned(self, small: dict[str, Tensor], large: dict[str, Tensor]) -> dict[str, Tensor]:
        """Those of a training batch, all moved, as a task reads them; large ones travel in fewer bytes."""
        return small | {name: target.to(torch.int64) for name, target in large.items()}

    def judged(self, small: dict[str, Tensor], large: dict[str, Tensor]) -> dict[str, Tensor]:
        """Those of an evaluation batch, as a metric reads them; large ones are the pictures' own."""
        return small | {name: target.to(torch.int64) for name, target in large.items()}


class NoTargets(Targets):
    """Pictures, and nothing else."""

    def __init__(self, num: int) -> None:
        self.num = num

    def __len__(self) -> int:
        return self.num

    def take(self, indices: Indices) -> "NoTargets":
        return NoTargets(len(indices))

    def relabelled(self, numbers: Indices, num_classes: int) -> "NoTargets":
        return self

    def update(self, digest: Digest) -> None:
        digest.update(np.zeros(self.num, dtype=np.int64).data)

    def described(self, index: int, classes: Sequence[str]) -> str:
        """What is known of a picture, in a few words; empty where that is nothing."""
        return ""

    def counts(self, num_classes: int) -> Indices:
        return np.array([self.num] + [0] * (num_classes - 1), dtype=np.int64)
