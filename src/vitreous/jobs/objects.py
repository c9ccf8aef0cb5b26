"""Evaluates a model that finds objects, by boxes or by shapes, through its predictor: picture by picture, each at its
own size."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from vitreous.data.base import Source
from vitreous.data.images import BadPicture, Picture
from vitreous.data.targets import Boxes, Instances
from vitreous.errors import UserError
from vitreous.evaluation.box_calibration import calibration_of, probabilities
from vitreous.evaluation.box_scores import BoxEvaluation, Measured
from vitreous.prediction.box_outcomes import FoundIn, found_boxes
from vitreous.prediction.instance_outcomes import found_shapes
from vitreous.prediction.outcomes import calibrated
from vitreous.prediction.predictor import Predictor, sizes_of
from vitreous.prediction.scored import Known, found_of, known_objects, truth_of
from vitreous.terminal import track
from vitreous.weights.calibration import BoxCalibration

BATCH = 16
FOUND = {"detect": found_boxes, "instances": found_shapes}


def evaluate_objects(
    predictor: Predictor, val: Source | None, test: Source, *, calibration: BoxCalibration | None = None
) -> BoxEvaluation:
    """`val` fits the calibration, unless one is given, and may be None; `test` is measured."""
    if calibration is None:
        calibration = BoxCalibration() if val is None else fitted_calibration(predictor, val)
    on_test = measured(predictor, test)
    before, bins_before = on_test.reliability(on_test.found.scores)
    scores = probabilities(on_test.found.scores, calibration, on_test.found.classes)
    return BoxEvaluation(
        by="boxes" if on_test.truth.masks is None else "masks",
        scores=on_test.scores(scores, calibration.threshold),
        calibration=calibration,
        validation_pictures=0 if val is None else len(val),
        ece_before=before,
        bins_before=bins_before,
    )


def fitted_calibration(predictor: Predictor, source: Source) -> BoxCalibration:
    """Fitted to validation pictures; the identity if they have no objects."""
    found = judged(predictor, source)
    return BoxCalibration() if found is None else calibration_by(found)


def calibration_by(found: Measured) -> BoxCalibration:
    return calibration_of(
        found.found.scores[found.counted],
        found.matches.is_right[found.counted],
        int((~found.truth.crowd).sum()),
        found.found.classes[found.counted],
        len(found.classes),
    )


def judged(predictor: Predictor, source: Source) -> Measured | None:
    """None if the pictures have no objects to judge it by."""
    boxes = _boxes(source, predictor.reading.kind == "instances")
    if not any(len(boxes.of(index)) for index in range(len(source))):
        return None
    return measured(predictor, source)


def measured(predictor: Predictor, source: Source) -> Measured:
    """All detections in all readable pictures, with uncalibrated scores, matched with the objects."""
    with_shapes = predictor.reading.kind == "instances"
    ids: list[int] = []
    known: list[Known] = []
    said: list[FoundIn] = []
    for index, one, found in seen(predictor, source):
        ids.append(index)
        known.append(one)
        said.append(found)
    if not ids:
        raise UserError(f"{source.name}: none of its pictures could be read")
    return Measured(truth_of(known, with_shapes), found_of(said, with_shapes), predictor.classes, ids)


def seen(predictor: Predictor, source: Source) -> Iterator[tuple[int, Known, FoundIn]]:
    """For every readable picture: its id, its objects, and the predictions, with uncalibrated scores."""
    reading, with_shapes = replace(predictor.reading, calibration=None), predictor.reading.kind == "instances"
    waiting = iter(track(range(len(source)), "pictures", len(source)))
    while some := list(islice(waiting, BATCH)):
        read = [(index, *one) for index in some if (one := _read(source, index, with_shapes)) is not None]
        if not read:
            continue
        pictures = [picture for _, picture, _ in read]
        outputs = calibrated(predictor.seen(pictures), reading)
        found = FOUND[reading.kind](outputs, reading, sizes_of(pictures))
        for (index, _, known), said in zip(read, found, strict=True):
            yield index, known, said


def _boxes(source: Source, with_shapes: bool) -> Boxes:
    if not isinstance(source.targets, Boxes):
        raise UserError(f"{source.name}: its pictures have no boxes to score detections against")
    if with_shapes and not isinstance(source.targets, Instances):
        raise UserError(
            f"{source.name}: only boxes were read, and shapes are needed: add --data.layout.targets instances"
        )
    return source.targets


def _read(source: Source, index: int, with_shapes: bool) -> tuple[Picture, Known] | None:
    """A picture, and its objects."""
    try:
        return source.read(index), known_objects(_boxes(source, with_shapes), index)
    except BadPicture as error:
        source.bad.add(source.where(index), str(error))
        return None
