"""Labels of whole pictures: one per picture, or several."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.kinds import TaskKind
from vitreous.data.targets.base import Digest, Indices, Shares, Targets


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

    @property
    def shares(self) -> Shares:
        """Every class equally often."""
        return Shares(self.labels)

    def described(self, index: int, classes: Sequence[str]) -> str:
        return classes[int(self.labels[index])]

    def counts(self, num_classes: int) -> Indices:
        return np.bincount(self.labels, minlength=num_classes)

    def small(self) -> dict[str, Tensor]:
        return {"label": torch.tensor(self.labels)}


class PseudoLabels(ClassLabels):
    """One class per picture, of some by a model's word: what is learned are its probabilities (Xie et al. 2020).

    `label` is the likeliest class. Balanced, `ratio` pictures that a model labelled come for each of the others, every
    class of them equally often.
    """

    are_known: ClassVar[bool] = False

    def __init__(self, probabilities: Any, known: Any, ratio: float) -> None:
        self.probabilities: NDArray[np.float16] = np.asarray(probabilities, dtype=np.float16)  # (N, K)
        self.known: NDArray[np.bool_] = np.asarray(known, dtype=np.bool_)  # (N,) whether a person gave the label
        self.ratio = ratio
        super().__init__(self.probabilities.argmax(axis=1))

    def take(self, indices: Indices) -> "PseudoLabels":
        return PseudoLabels(self.probabilities[indices], self.known[indices], self.ratio)

    def relabelled(self, numbers: Indices, num_classes: int) -> "PseudoLabels":
        moved, there = np.zeros((len(self), num_classes), dtype=np.float16), np.flatnonzero(numbers >= 0)
        moved[:, numbers[there]] = self.probabilities[:, there]
        return PseudoLabels(moved, self.known, self.ratio)

    def update(self, digest: Digest) -> None:
        digest.update(repr((self.probabilities.shape, self.ratio)).encode())
        for part in (self.probabilities, self.known):
            digest.update(np.ascontiguousarray(part).data)

    @property
    def shares(self) -> Shares:
        """What people labelled is one group, as it is; what a model did is one per class."""
        named = np.unique(self.labels[~self.known])
        weights = np.zeros(1 + self.probabilities.shape[1])
        weights[0], weights[1 + named] = 1.0, self.ratio / max(1, len(named))
        return Shares(np.where(self.known, 0, 1 + self.labels), weights)

    def described(self, index: int, classes: Sequence[str]) -> str:
        likeliest = super().described(index, classes)
        if self.known[index]:
            return likeliest
        return f"{likeliest}, says a model ({100 * self.probabilities[index].max():.0f} %)"

    def small(self) -> dict[str, Tensor]:
        return super().small() | {"probabilities": torch.tensor(self.probabilities)}

    def learned(self, small: dict[str, Tensor], large: dict[str, Tensor]) -> dict[str, Tensor]:
        return super().learned(small, large) | {"probabilities": small["probabilities"].float()}


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
