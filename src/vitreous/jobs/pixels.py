"""Evaluates a model that classifies pixels through its predictor: picture by picture, each at the size of its mask."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.data.base import Source
from vitreous.data.images import BadPicture, Picture
from vitreous.data.placement import Placement
from vitreous.evaluation.calibration import fit_temperature
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.pixel_scores import PixelEvaluation, PixelScores, Tally
from vitreous.prediction.pixel_outcomes import pixel_logits
from vitreous.prediction.pixels import at_pixels, classified
from vitreous.prediction.predictor import Predictor, sizes_of
from vitreous.terminal import track
from vitreous.weights.calibration import PixelCalibration

BATCH = 16
SAMPLED_PIXELS, SAMPLED_PICTURES = 500, 400  # pixels per picture, and pictures, to fit a temperature to

Seen = tuple[int, NDArray[np.float32], Placement, NDArray[np.int16]]  # id, logits, their placement, mask


def evaluate_pixels(
    predictor: Predictor, val: Source | None, test: Source, *, calibration: PixelCalibration | None = None
) -> PixelEvaluation:
    """`val` fits the temperature, unless one is given, and may be None; `test` is measured."""
    if calibration is not None:
        temperature = calibration.temperature
    else:
        temperature = 1.0 if val is None else pixel_temperature(predictor, val)
    before, after = measured(predictor, test, (1.0, temperature))
    return PixelEvaluation(
        scores=after,
        temperature=temperature,
        validation_pictures=0 if val is None else len(val),
        ece_before=before.ece,
    )


def measured(predictor: Predictor, source: Source, temperatures: tuple[float, ...]) -> list[PixelScores]:
    """The scores at each temperature, from one pass over the pictures."""
    tallies = [Tally(predictor.classes) for _ in temperatures]
    for index, logits, placement, mask in seen(predictor, source):
        for tally, temperature in zip(tallies, temperatures, strict=True):
            found = classified(logits, placement, temperature)
            tally.add(index, mask, found.labels, found.confidence)
    return [tally.scores() for tally in tallies]


def pixel_temperature(predictor: Predictor, source: Source) -> float:
    """Fitted to some pixels of every picture: neighbours add little."""
    logits, labels = [], []
    for index, found, placement, mask in seen(predictor, source, SAMPLED_PICTURES):
        rows, columns = np.nonzero(mask >= 0)
        chosen = np.random.default_rng(index).permutation(len(rows))[:SAMPLED_PIXELS]
        rows, columns = rows[chosen], columns[chosen]
        logits.append(at_pixels(found, placement, rows, columns))
        labels.append(mask[rows, columns].astype(np.int64))
    if not sum(map(len, labels)):
        return 1.0
    values, classes = torch.from_numpy(np.concatenate(logits)), torch.from_numpy(np.concatenate(labels))
    return fit_temperature(LabelledLogits(values, classes, torch.arange(len(classes)), predictor.classes))


def seen(predictor: Predictor, source: Source, most: int | None = None) -> Iterator[Seen]:
    """Every readable picture as the model sees it, or at most this many, evenly spread."""
    chosen = np.unique(np.linspace(0, len(source) - 1, min(most or len(source), len(source))).round().astype(int))
    waiting = iter(track(chosen.tolist(), "pictures", len(chosen)))
    while some := list(islice(waiting, BATCH)):
        read = [(index, *found) for index in some if (found := _read(source, index)) is not None]
        logits = _logits(predictor, [picture for _, picture, _ in read]) if read else []
        for (index, _, mask), (values, placement) in zip(read, logits, strict=True):
            yield index, values, placement, mask


def _logits(predictor: Predictor, pictures: list[Picture]) -> list[tuple[NDArray[np.float32], Placement]]:
    return pixel_logits(predictor.seen(pictures), predictor.reading, sizes_of(pictures))


def _read(source: Source, index: int) -> tuple[Picture, NDArray[np.int16]] | None:
    try:
        return source.read(index), source.targets.read(index)["mask"]
    except BadPicture as error:
        source.bad.add(source.where(index), str(error))
        return None
