"""Labels of whole pictures: one per picture, or several."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.kinds import TaskKind
from vitreous.data.targets.base import Digest, Indices, Targets


class ClassLabels(Targets):
    """One class per picture."""

    task: ClassVar[TaskKind] = "classify"

    def __init__(self, labels: Any) -> None:
        self.labels: Indices = np.asarray(labels, dtype=np.int64)  # (N,)
        if self.labels.ndim != 1:
            raise ValueError(f"one label per picture, but these have the shape {self.labels.shape}")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Indices) -> "ClassLabels":
        return ClassLabels(self.labels[indices])

    def relabelled(self, numbers: Indices, num_classes: int) -> "ClassLabels":
        return ClassLabels(numbers[self.labels])

    def update(self, digest: Digest) -> None:
        digest.update(np.ascontiguousarray(self.labels).data)

    @property
    def strata(self) -> Indices:
        return self.labels

    def described(self, index: int, classes: Sequence[str]) -> str:
        return classes[int(self.labels[index])]

    def counts(self, num_classes: int) -> Indices:
        return np.bincount(self.labels, minlength=num_classes)

    def small(self) -> dict[str, Tensor]:
        return {"label": torch.tensor(self.labels)}


class ManyLabels(Targets):
    """Any number of classes per picture, none included."""

    task: ClassVar[TaskKind] = "label"
    least_classes: ClassVar[int] = 1

    def __init__(self, labels: Any) -> None:
        self.labels: NDArray[np.bool_] = np.asarray(labels).astype(np.bool_)  # (N, K)
        if self.labels.ndim != 2:
            raise ValueError(f"a row of labels per picture, but these have the shape {self.labels.shape}")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Indices) -> "ManyLabels":
        return ManyLabels(self.labels[indices])

    def relabelled(self, numbers: Indices, num_classes: int) -> "ManyLabels":
        moved = np.zeros((len(self), num_classes), dtype=np.bool_)
        known = np.flatnonzero(numbers >= 0)
        moved[:, numbers[known]] = self.labels[:, known]
        return ManyLabels(moved)

    def update(self, digest: Digest) -> None:
        digest.update(repr(self.labels.shape).encode())
        digest.update(np.packbits(self.labels).data)

    @property
    def strata(self) -> Indices:
        """The rarest label of each picture: so that the rare ones, too, are found in every part of a split. Pictures
        without a label are a group of their own, the last."""
        counts = self.labels.sum(axis=0)
        rank = np.argsort(np.argsort(counts, kind="stable"))  # 0 is the rarest
        num_classes = self.labels.shape[1]
        ranks = np.where(self.labels, rank, num_classes).min(axis=1, initial=num_classes)
        rarest: Indices = np.append(np.argsort(rank), num_classes)[ranks].astype(np.int64)
        return rarest

    def described(self, index: int, classes: Sequence[str]) -> str:
        return ", ".join(classes[int(label)] for label in np.flatnonzero(self.labels[index]))

    def counts(self, num_classes: int) -> Indices:
        counts: Indices = self.labels.sum(axis=0, dtype=np.int64)
        return counts

    def small(self) -> dict[str, Tensor]:
        return {"labels": torch.tensor(self.labels, dtype=torch.float32)}
