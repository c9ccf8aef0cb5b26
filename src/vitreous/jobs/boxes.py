"""Measuring a model that finds objects: as it predicts, picture by picture, each at its own size."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from vitreous.data.base import Source
from vitreous.data.images import BadPicture, Picture
from vitreous.data.targets import Boxes
from vitreous.errors import UserError
from vitreous.evaluation.box_calibration import fitted, probabilities
from vitreous.evaluation.box_scores import BoxEvaluation, Measured
from vitreous.prediction.box_outcomes import found_boxes
from vitreous.prediction.boxes import Array, Surest
from vitreous.prediction.outcomes import calibrated
from vitreous.prediction.predictor import Predictor, sizes_of
from vitreous.tasks.box_precision import Found, Truth
from vitreous.terminal import track
from vitreous.weights.calibration import BoxCalibration

BATCH = 16


def evaluate_boxes(
    predictor: Predictor, val: Source | None, test: Source, *, calibration: BoxCalibration | None = None
) -> BoxEvaluation:
    """Val fits the calibration, unless it is given, and may be absent; test is measured."""
    if calibration is None:
        calibration = BoxCalibration() if val is None else fitted_calibration(predictor, val)
    on_test = measured(predictor, test)
    before, bins_before = on_test.reliability(on_test.found.scores)
    return BoxEvaluation(
        scores=on_test.scores(probabilities(on_test.found.scores, calibration), calibration.threshold),
        calibration=calibration,
        validation_pictures=0 if val is None else len(val),
        ece_before=before,
        bins_before=bins_before,
    )


def fitted_calibration(predictor: Predictor, source: Source) -> BoxCalibration:
    """Of validation pictures; the identity where they have no objects."""
    if not any(len(_boxes(source).of(index)) for index in range(len(source))):
        return BoxCalibration()
    found = measured(predictor, source)
    return fitted(
        found.found.scores[found.counted],
        found.matches.is_right[found.counted],
        int((~found.truth.crowd).sum()),
    )


def measured(predictor: Predictor, source: Source) -> Measured:
    """All detections of all readable pictures, with scores as trained, matched with the objects."""
    boxes = _boxes(source)
    ids: list[int] = []
    truth: list[tuple[np.ndarray, ...]] = []
    found: list[tuple[np.ndarray, ...]] = []
    for index, one, places in seen(predictor, source):
        objects, at = boxes.of(index), len(ids)
        truth.append((np.full(len(objects), at), objects.classes, objects.boxes, objects.crowd))
        found.append((np.full(len(places), at), one.classes, places, one.scores))
        ids.append(index)
    if not ids:
        raise UserError(f"{source.name}: not one picture could be read")
    columns = [[np.concatenate(column) for column in zip(*rows, strict=True)] for rows in (truth, found)]
    known, said = columns
    return Measured(
        Truth(known[0], known[1], known[2].astype(np.float64), known[3]),
        Found(said[0], said[1], said[2].astype(np.float64), said[3].astype(np.float64)),
        predictor.classes,
        ids,
    )


def seen(predictor: Predictor, source: Source) -> Iterator[tuple[int, Surest, Array]]:
    """Of every readable picture its id, what is said of it, with scores as trained, and the boxes in its own px."""
    reading = replace(predictor.reading, calibration=None)
    waiting = iter(track(range(len(source)), "pictures", len(source)))
    while some := list(islice(waiting, BATCH)):
        read = [(index, picture) for index in some if (picture := _read(source, index)) is not None]
        if not read:
            continue
        pictures = [picture for _, picture in read]
        outputs = calibrated(predictor.seen(pictures), reading)
        for (index, _), (one, places) in zip(read, found_boxes(outputs, reading, sizes_of(pictures)), strict=True):
            yield index, one, places


def _boxes(source: Source) -> Boxes:
    if not isinstance(source.targets, Boxes):
        raise UserError(f"{source.name}: its pictures have no boxes, and detections are scored against nothing else")
    return source.targets


def _read(source: Source, index: int) -> Picture | None:
    try:
        return source.read(index)
    except BadPicture as error:
        source.bad.add(source.where(index), str(error))
        return None
