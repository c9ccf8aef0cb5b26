"""How well the pixels of pictures are classified, every number with its 95 % interval.

Pixels of one picture are correlated, so intervals come from resampling whole pictures (bootstrap), never pixels. A few
counts per class are kept for every picture, and one K x K count for all of them, but no logits.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous import settings
from vitreous.display.html import together
from vitreous.display.tables import Table
from vitreous.display.words import counted
from vitreous.errors import UserError
from vitreous.evaluation.boundaries import boundary_scores
from vitreous.evaluation.metrics import Estimate
from vitreous.weights.calibration import PixelCalibration

RESAMPLES = 1000
BINS = 15  # of confidence, of equal width
Labels = NDArray[np.integer]
Counts = NDArray[np.float64]


@dataclass(frozen=True)
class ClassPixels:
    name: str
    share: float  # of the labelled pixels
    pictures: int  # that have some
    iou: Estimate | None  # None if no pixel is of this class or predicted as it
    recall: float | None  # None if no pixel is of this class
    precision: float | None  # None if none is predicted as it


@dataclass(frozen=True)
class PixelBin:
    low: float  # of the confidences
    high: float
    pixels: int
    confidence: float | None  # mean; None if the bin is empty
    accuracy: float | None


@dataclass(frozen=True)
class PixelScores:
    pictures: int
    pixels: int  # with a label
    ignored: int  # pixels without one
    miou: Estimate  # mean over the classes that occur
    pixel_accuracy: Estimate
    class_accuracy: Estimate  # mean recall of the classes that have pixels
    boundary_f: Estimate  # mean over pictures of the mean over their classes
    ece: Estimate  # of the confidences in single pixels
    per_class: tuple[ClassPixels, ...]
    confusion: tuple[tuple[int, ...], ...]  # (label, prediction) pixels
    bins: tuple[PixelBin, ...]
    picture_ious: tuple[tuple[int, float], ...]  # id, and the mean over its labelled and predicted classes

    def to_json(self) -> Any:
        return settings.to_json(self)

    def confusion_matrix(self) -> Tensor:
        """(K, K) int64: how many pixels of the row's class were predicted as the column's."""
        return torch.tensor(self.confusion)

    def tables(self, num_classes: int = 20) -> tuple[Table, ...]:
        rows = [
            ("mIoU", self.miou.percent()),
            ("pixel accuracy", self.pixel_accuracy.percent()),
            ("class accuracy", self.class_accuracy.percent()),
            ("boundary F-score", self.boundary_f.percent()),
        ]
        left_out = f"{100 * self.ignored / max(self.ignored + self.pixels, 1):.1f} % of the pixels have no label"
        overall = Table((counted(self.pictures, "picture"), "measured (95 % interval)"), rows, left_out)
        seen = [one for one in self.per_class if one.iou is not None]
        listed = seen if len(seen) <= num_classes else sorted(seen, key=_iou)[:num_classes]
        head = "class" if len(seen) <= num_classes else f"the lowest {num_classes} of {len(seen)} classes"
        lines = [
            (one.name, f"{100 * one.share:.1f} %", one.iou.percent(), _percent(one.recall), _percent(one.precision))
            for one in listed
            if one.iou is not None
        ]
        return overall, Table((head, "pixels", "IoU", "recall", "precision"), lines)


@dataclass(frozen=True)
class PixelEvaluation:
    """Everything that is measured for a model that classifies pixels."""

    scores: PixelScores  # on test; confidences with the model's temperature
    temperature: float  # fitted on validation pictures, or as given
    validation_pictures: int  # 0: nothing was fitted
    ece_before: Estimate  # at temperature 1

    headline_name = "mIoU"

    def to_json(self) -> Any:
        return {"kind": settings.kind(type(self)), **settings.to_json(self)}

    @property
    def headline(self) -> Estimate:
        return self.scores.miou

    @property
    def calibration(self) -> PixelCalibration:
        """What `predict` needs to know, for the model's card."""
        return PixelCalibration(temperature=self.temperature)

    def tables(self) -> list[Table]:
        rows = [("1 (as trained)", self.ece_before.percent())]
        if self.temperature != 1:
            rows.append((f"{self.temperature:.4g}", self.scores.ece.percent()))
        fitted = f"fitted on {self.validation_pictures:,} validation pictures" if self.validation_pictures else ""
        return [*self.scores.tables(), Table(("temperature", "ECE of pixels (95 % interval)"), rows, fitted)]

    def summary(self) -> str:
        """For the terminal."""
        return "\n\n".join(one.text() for one in self.tables())

    def _repr_html_(self) -> str:
        return together(one.html() for one in self.tables()).markup


def _iou(one: ClassPixels) -> float:
    return 0.0 if one.iou is None else one.iou.value


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


@dataclass
class Tally:
    """Counts, picture by picture."""

    classes: tuple[str, ...]
    confusion: NDArray[np.int64] = field(init=False)  # (K, K)
    ignored: int = 0
    ids: list[int] = field(default_factory=list)  # of the pictures in their source
    right: list[Counts] = field(default_factory=list)  # (K,) per picture, as below
    labelled: list[Counts] = field(default_factory=list)
    found: list[Counts] = field(default_factory=list)
    boundaries: list[float] = field(default_factory=list)  # NaN if a picture has no outline
    bins: list[Counts] = field(default_factory=list)  # (3, BINS): pixels, sums of their confidences, right ones

    def __post_init__(self) -> None:
        self.confusion = np.zeros((len(self.classes), len(self.classes)), np.int64)

    def add(self, index: int, labels: Labels, found: Labels, confidence: NDArray[np.float32]) -> None:
        """Count one picture, with all arrays at the size of its mask; labels below 0 are ignored."""
        num, valid = len(self.classes), labels >= 0
        pairs = labels[valid].astype(np.int64) * num + found[valid]
        counts = np.bincount(pairs, minlength=num * num).reshape(num, num)
        self.ids.append(index)
        self.confusion += counts
        self.ignored += int((~valid).sum())
        self.right.append(counts.diagonal().astype(np.float64))
        self.labelled.append(counts.sum(axis=1).astype(np.float64))
        self.found.append(counts.sum(axis=0).astype(np.float64))
        outlines = boundary_scores(labels, found, num)
        self.boundaries.append(float(np.nanmean(outlines)) if not np.isnan(outlines).all() else float("nan"))
        sure, hits = confidence[valid], labels[valid] == found[valid]
        places = np.clip(np.ceil(sure * BINS).astype(np.int64) - 1, 0, BINS - 1)
        self.bins.append(
            np.stack([np.bincount(places, weights, BINS) for weights in (None, sure, hits.astype(np.float64))])
        )

    def scores(self) -> PixelScores:
        if not self.confusion.sum():
            raise UserError("there are no labelled pixels to score")
        right, labelled, found = (np.stack(one) for one in (self.right, self.labelled, self.found))  # (N, K)
        bins, boundaries = np.stack(self.bins), np.array(self.boundaries)
        times = _draws(len(right))  # (1 + RESAMPLES, N); the first is every picture once
        sums = [times @ one for one in (right, labelled, found)]  # (1 + RESAMPLES, K)
        with np.errstate(invalid="ignore", divide="ignore"):
            ious = sums[0] / (sums[1] + sums[2] - sums[0])
            mean_iou, class_accuracy = _mean(ious), _mean(sums[0] / sums[1])
            picture_ious = _mean(right / (labelled + found - right))
            outlined = ~np.isnan(boundaries)
            boundary_f = (times[:, outlined] @ boundaries[outlined]) / times[:, outlined].sum(axis=1)
            ece = _ece(np.tensordot(times, bins, axes=1))
        return PixelScores(
            pictures=len(right),
            pixels=int(self.confusion.sum()),
            ignored=self.ignored,
            miou=_estimate(mean_iou),
            pixel_accuracy=_estimate(sums[0].sum(axis=1) / sums[1].sum(axis=1)),
            class_accuracy=_estimate(class_accuracy),
            boundary_f=_estimate(boundary_f) if outlined.any() else Estimate(1.0, 1.0, 1.0),
            ece=_estimate(ece),
            per_class=tuple(self._per_class(ious, (labelled > 0).sum(axis=0))),
            confusion=tuple(tuple(row) for row in self.confusion.tolist()),
            bins=_bins(bins.sum(axis=0)),
            picture_ious=tuple(zip(self.ids, picture_ious.tolist(), strict=True)),
        )

    def _per_class(self, ious: Counts, pictures: NDArray[np.int64]) -> list[ClassPixels]:
        counts = self.confusion
        right, labelled, found = counts.diagonal().tolist(), counts.sum(axis=1).tolist(), counts.sum(axis=0).tolist()
        total = int(counts.sum())
        return [
            ClassPixels(
                name=name,
                share=labelled[at] / total,
                pictures=int(pictures[at]),
                iou=_estimate(ious[:, at]) if labelled[at] + found[at] else None,
                recall=right[at] / labelled[at] if labelled[at] else None,
                precision=right[at] / found[at] if found[at] else None,
            )
            for at, name in enumerate(self.classes)
        ]


def _draws(num: int) -> Counts:
    """(1 + RESAMPLES, N): how often every picture counts: first once each, then in draws with replacement."""
    drawn = np.random.default_rng(0).multinomial(num, np.full(num, 1 / num), RESAMPLES)
    return np.concatenate([np.ones((1, num)), drawn])


def _mean(shares: Counts) -> Counts:
    """(n, K) -> (n,): over the classes that occur; NaN if none does."""
    seen = ~np.isnan(shares)
    mean: Counts = np.where(seen, shares, 0).sum(axis=1) / seen.sum(axis=1)
    return mean


def _estimate(draws: Counts) -> Estimate:
    """The value for all pictures, and the range of 95 % of the draws."""
    value, drawn = float(draws[0]), draws[1:][~np.isnan(draws[1:])]
    low, high = np.quantile(drawn, (0.025, 0.975)).tolist() if len(drawn) else (value, value)
    return Estimate(value, min(low, value), max(high, value))


def _ece(bins: Counts) -> Counts:
    """(..., 3, BINS) -> (...): the mean distance between confidence and accuracy over all pixels."""
    pixels, sums, hits = (bins[..., row, :] for row in range(3))
    distance: Counts = np.abs(sums - hits).sum(axis=-1) / pixels.sum(axis=-1)
    return distance


def _bins(counts: Counts) -> tuple[PixelBin, ...]:
    return tuple(
        PixelBin(
            place / BINS,
            (place + 1) / BINS,
            int(pixels),
            sums / pixels if pixels else None,
            hits / pixels if pixels else None,
        )
        for place, (pixels, sums, hits) in enumerate(counts.T.tolist())
    )
