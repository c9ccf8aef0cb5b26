"""Logistic regression on pixels, within seconds for any number of pictures: the baseline for every model."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.data.base import Source
from vitreous.data.images import BadPicture
from vitreous.data.loader import EvalLoader
from vitreous.data.transforms import Preprocessing
from vitreous.evaluation.baseline import spread_out
from vitreous.evaluation.features import FeatureSet
from vitreous.evaluation.heads import FittedHead, judges, least_squares_head, logistic_head
from vitreous.evaluation.logits import LabelledLogits, labels_of
from vitreous.evaluation.ridge import Linear
from vitreous.models import PixelsSettings

PENALTIES = (3e-2, 1e-2, 3e-3, 1e-3)  # of the mean loss; the best is not at an end on the embedded set
SIDE_PX = 32  # pictures are shrunk to this, as for a first look at any set
MOST_PICTURES = 4000  # to fit to: enough for a baseline
ROUGHLY = 1e-3  # the largest entry of the gradient: accuracy stops changing long before it is 0
COMPONENTS = 192  # principal components of the pixels to fit to


@dataclass(frozen=True)
class Baseline:
    score: float  # the headline on the test part, with the penalty below, fitted only on train
    penalty: float
    val_score: float | None = None  # None: there is no validation part
    pictures: int = 0  # of train that it was fitted to
    px: int = SIDE_PX  # side of the pictures


class PixelRegression:
    """Its penalty is chosen, and it is judged, like other heads: on the validation part, or on training pictures that
    are left out in turn."""

    def __init__(self, train: Source, val: Source | None, *, most: int = MOST_PICTURES) -> None:
        self.classes, self.px = train.classes, min(SIDE_PX, _side(train))
        self.model = PixelsSettings(picture_px=(self.px, self.px), grid=(self.px, self.px))
        self.preprocessing = Preprocessing(size_px=(self.px, self.px), crop="squash", mean=(0.0,) * 3, std=(1.0,) * 3)
        began = time.monotonic()
        pixels = self._read(spread_out(train, most))
        self.picture_s = (time.monotonic() - began) / len(pixels)
        seen = None if val is None else self._read(val)
        self.head = _fitted(pixels, judges(seen), len(train.classes))
        self.pictures, self.has_many_labels = len(pixels), pixels.labels.ndim == 2
        self.val = None if seen is None else self._said(seen)

    @property
    def val_score(self) -> float | None:
        return None if self.val is None else self.val.score()

    def baseline(self, test: Source) -> Baseline:
        """Reads the test part."""
        score = self._said(self._read(spread_out(test, MOST_PICTURES))).score()
        return Baseline(score, self.head.penalty, self.val_score, self.pictures, self.px)

    def _said(self, seen: FeatureSet) -> LabelledLogits:
        return LabelledLogits(self.head.linear(seen.values).float(), seen.labels, seen.ids, self.classes)

    def _read(self, source: Source) -> FeatureSet:
        """The readable pictures, in colour, squashed to a square."""
        batches = list(EvalLoader(source, self.preprocessing, batch_size=512))
        values = torch.cat([batch.images.flatten(1) for batch in batches])
        labels = torch.cat([labels_of(batch) for batch in batches])
        return FeatureSet(values, labels, torch.cat([batch.ids for batch in batches]))


def _fitted(pixels: FeatureSet, val: FeatureSet | None, num_classes: int) -> FittedHead:
    turn = MainComponents(pixels.values, COMPONENTS)
    train, val = turn.of(pixels), None if val is None else turn.of(val)
    found = logistic_head(train, val, num_classes, penalties=PENALTIES, standardise=False, tolerance=ROUGHLY)
    return turn.back(found or least_squares_head(train, val, num_classes))


class MainComponents:
    """The principal components of many pixels: the rest costs time and adds little."""

    def __init__(self, values: Tensor, most: int) -> None:
        self.centre = values.double().mean(dim=0)
        self.components = torch.eye(values.shape[1], dtype=torch.float64)
        if values.shape[1] > most:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                moved = values - self.centre.float()
                _, _, found = torch.svd_lowrank(moved, q=min(most, len(values)), niter=2)
            self.components = found.double()

    def of(self, pixels: FeatureSet) -> FeatureSet:
        return FeatureSet((pixels.values.double() - self.centre) @ self.components, pixels.labels, pixels.ids)

    def back(self, head: FittedHead) -> FittedHead:
        """The equivalent head for the pixels themselves."""
        weights = self.components @ head.linear.weights
        linear = Linear(weights, head.linear.bias - self.centre @ weights)
        return FittedHead(head.kind, head.penalty, linear, head.score, head.log_loss)


def _side(source: Source) -> int:
    """The shorter side of the first readable picture of the source."""
    for index in range(len(source)):
        try:
            return int(min(source.read(index).shape[:2]))
        except BadPicture:
            continue
    return SIDE_PX
