"""Pseudo-labels: a trained classifier's predictions for pictures without labels, and which of them to use (Xie et al.
2020, Noisy Student, sections 2 and 3.1). The teacher sees the pictures as they are: only its student gets noise."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.data.base import Labels, Source
from vitreous.data.loader import EvalLoader
from vitreous.errors import UserError
from vitreous.teaching.teachers import Teacher
from vitreous.terminal import track
from vitreous.weights.trained import Trained

Probabilities = NDArray[np.float32]  # (M, K)
BATCH = 512


@dataclass(frozen=True, kw_only=True)
class PseudoSettings:
    labels: Literal["soft", "hard"] = "soft"  # the teacher's probabilities, or its decisions
    confidence: float = 0.3  # least confidence of a decision that is used
    per_class: int | None = None  # most pictures per class, the most confident; none: all confident ones
    ratio: float = 3.0  # pictures without labels that training shows per labelled one

    def __post_init__(self) -> None:
        if not 0 <= self.confidence <= 1:
            raise UserError(f"the confidence is {self.confidence:g}: it must be between 0 and 1")
        if self.per_class is not None and self.per_class < 1:
            raise UserError(f"{self.per_class} pictures per class: give 1 or more, or leave it out")
        if not self.ratio > 0:
            raise UserError(f"the ratio is {self.ratio:g}: it must be above 0")


@dataclass(frozen=True, kw_only=True)
class Believed:
    """How many pictures of a class were taken, and how confident the teacher was of them."""

    name: str
    pictures: int
    confidence: float  # mean; 0 if there are none


@dataclass(frozen=True)
class PseudoLabelled:
    """The pictures that were taken, of those shown to the teacher."""

    shown: int
    taken: Labels  # (M,) indices of the source, ascending
    probabilities: Probabilities  # (M, K) to learn
    sure: NDArray[np.float32]  # (M,) confidence of the decisions

    def by_class(self, classes: Sequence[str]) -> tuple[Believed, ...]:
        decisions = self.probabilities.argmax(axis=1)
        return tuple(
            Believed(
                name=name,
                pictures=int((decisions == number).sum()),
                confidence=round(float(self.sure[decisions == number].mean()), 4)
                if (decisions == number).any()
                else 0.0,
            )
            for number, name in enumerate(classes)
        )

    def among(self, places: Labels) -> "PseudoLabelled":
        """With the indices of a larger source, in which the pictures shown were at these `places`."""
        return replace(self, taken=places[self.taken])


def ask(
    teacher: Trained,
    classes: tuple[str, ...],
    source: Source,
    *,
    device: torch.device,
    within: Callable[[], AbstractContextManager[Any]],
    workers: int = 0,
) -> tuple[Labels, Probabilities]:
    """Which pictures could be read, and the probabilities of `classes`, calibrated if the teacher is. `within` is
    entered for every batch (for half precision)."""
    if not teacher.card.predicts:
        raise UserError(f"{teacher.where}: an encoder without a head cannot label pictures; name a classifier")
    own = teacher.card.preprocessing
    model = Teacher(teacher.task(), own, own, teacher.card.classes, teacher.where).in_order_of(classes).to(device)
    places, found = [], []
    loader = EvalLoader(source, own, BATCH, device, workers)
    for batch in track(loader, "labelling", len(loader)):
        with torch.no_grad(), within():
            logits = model(batch.images).float() / teacher.card.temperature
        places.append(batch.ids.cpu())
        found.append(logits.softmax(dim=1).cpu())
    if not found:
        return np.empty(0, dtype=np.int64), np.empty((0, len(classes)), dtype=np.float32)
    return torch.cat(places).numpy(), torch.cat(found).numpy()


def believed(places: Labels, probabilities: Probabilities, wanted: PseudoSettings) -> PseudoLabelled:
    """The most confident pictures of each class, as far as they are confident enough."""
    decisions, sure = probabilities.argmax(axis=1), probabilities.max(axis=1)
    enough = np.flatnonzero(sure >= wanted.confidence)
    if wanted.per_class is not None:
        order = enough[np.lexsort((places[enough], -sure[enough], decisions[enough]))]
        starts = np.searchsorted(decisions[order], decisions[order])
        enough = order[np.arange(len(order)) - starts < wanted.per_class]
    enough = enough[places[enough].argsort()]
    kept = probabilities[enough]
    if wanted.labels == "hard":
        kept = np.eye(probabilities.shape[1], dtype=np.float32)[decisions[enough]]
    return PseudoLabelled(len(places), places[enough], kept, sure[enough])
