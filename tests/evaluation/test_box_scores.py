"""Scores of detections: each number against another way to it."""

import numpy as np
import pytest

from detections import made_up
from vitreous.evaluation.box_calibration import calibration_of, probabilities
from vitreous.evaluation.box_scores import BoxEvaluation, Measured
from vitreous.evaluation.full import evaluation_of
from vitreous.tasks import box_precision
from vitreous.weights.calibration import BoxCalibration

CLASSES = ("cat", "dog", "none of these")


@pytest.fixture(scope="module")
def measured():
    truth, found = made_up()
    return Measured(truth, found, CLASSES, range(100, 140))


@pytest.fixture(scope="module")
def scores(measured):
    return measured.scores(measured.found.scores, 0.5)


def test_the_values_are_the_librarys_and_lie_inside_their_intervals(measured, scores):
    expected = box_precision.precisions(measured.evaluator)
    ours = [scores.ap, scores.ap50, scores.ap75, *(one.ap for one in scores.by_size)]
    theirs = [expected[..., 0], expected[0, :, 0], expected[5, :, 0], *(expected[..., at] for at in (1, 2, 3))]
    np.testing.assert_allclose([one.value for one in ours], [box_precision.mean(one) for one in theirs], atol=1e-12)
    assert sum(one.objects for one in scores.by_size) == scores.objects == (~measured.truth.crowd).sum()
    for one in (scores.ap, scores.ap50, scores.precision, scores.recall, scores.per_class[0].ap):
        assert one.low < one.value < one.high
    assert scores.per_class[1].ap.value == pytest.approx(expected[:, 1, 0].mean())


def test_a_class_without_objects_has_no_score(scores):
    nothing = scores.per_class[2]
    assert (nothing.objects, nothing.ap, nothing.recall, nothing.curve) == (0, None, None, ())
    assert nothing.precision == 0  # some detections say so
    assert len(scores.per_class[0].curve) == 101


def test_precision_and_recall_are_counts(measured, scores):
    right = measured.matches.is_right & (measured.found.scores >= 0.5)
    shown = (measured.found.scores >= 0.5) & measured.counted
    assert scores.precision.value == right.sum() / shown.sum()
    assert scores.recall.value == right.sum() / scores.objects
    assert sum(one.right for one in scores.per_picture) == right.sum()
    assert sum(one.shown for one in scores.per_picture) == shown.sum()
    assert scores.per_picture[0].id == 100 and scores.per_picture[0].objects == 0
    best = max(scores.per_picture, key=lambda one: one.f1)
    assert best.f1 == 2 * best.right / (best.objects + best.shown)


def test_kinds_of_error_at_the_threshold(measured, scores):
    fewer = measured.scores(measured.found.scores, 0.9)
    by_kind = {one.kind: one.number for one in scores.errors}
    wrong = sum(number for kind, number in by_kind.items() if kind != "missed")
    assert wrong == sum(one.shown - one.right for one in scores.per_picture)
    assert {one.kind: one.number for one in fewer.errors}["missed"] > by_kind["missed"]
    assert {one.kind: one.ap50 for one in fewer.errors} == {one.kind: one.ap50 for one in scores.errors}
    assert sum(one.ap50 for one in scores.errors) > 0.1


def test_the_surest_false_alarms_and_the_largest_missed_objects(measured, scores):
    wrong = measured.counted & ~measured.matches.is_right
    alarms = sorted(measured.found.scores[wrong], reverse=True)[:24]
    assert [one.score for one in scores.alarms] == alarms
    for one in scores.alarms:
        assert (one.object is None) == (one.kind == "background") and one.kind != "right"
        assert one.kind not in ("place", "duplicate") or one.object == one.label
        assert one.kind != "class" or one.object != one.label
    areas = [(one.box[2] - one.box[0]) * (one.box[3] - one.box[1]) for one in scores.missed]
    assert areas == sorted(areas, reverse=True) and len(areas) == min(24, scores.errors[-1].number)
    assert all(one.picture >= 100 for one in (*scores.alarms, *scores.missed))


def test_calibration_brings_scores_to_what_is_right(measured):
    fit, held = (Measured(*made_up(pictures=150, seed=seed), CLASSES, range(150)) for seed in (7, 1))
    counted = fit.counted
    scores, is_right, classes = fit.found.scores[counted], fit.matches.is_right[counted], fit.found.classes[counted]
    curve = calibration_of(scores, is_right, (~fit.truth.crowd).sum(), classes, len(CLASSES))
    assert curve.offsets[2] < min(curve.offsets[:2]) - 2  # no object is of the last class
    before, _ = held.reliability(held.found.scores)
    after, _ = held.reliability(probabilities(held.found.scores, curve, held.found.classes))
    assert after.value < before.value / 2
    _, bins = measured.reliability(measured.found.scores)
    assert sum(one.detections for one in bins) == ((measured.found.scores >= 0.05) & measured.counted).sum()
    full = next(one for one in bins if one.detections)
    assert full.low <= full.score <= full.high


def test_an_evaluation_comes_back_from_json(measured, scores):
    before, bins = measured.reliability(measured.found.scores)
    evaluation = BoxEvaluation(scores, BoxCalibration(), 0, before, bins)
    assert evaluation_of(evaluation.to_json(), "here") == evaluation
    assert evaluation.headline == scores.ap and "AP50" in evaluation.summary() and "duplicate" in evaluation.summary()


def test_nothing_found_at_all():
    truth, found = made_up(pictures=5)
    nothing = type(found)(*(getattr(found, name)[:0] for name in ("picture", "classes", "boxes", "scores")))
    scores = Measured(truth, nothing, CLASSES, range(5)).scores(np.zeros(0), 0.5)
    assert scores.ap.value == scores.recall.value == scores.ece.value == 0
    assert {one.kind: one.number for one in scores.errors}["missed"] == scores.objects
