"""Calibrated scores hold what they promise, on detections that were not fitted."""

import numpy as np
import pytest
from scipy.optimize import minimize

from vitreous.errors import UserError
from vitreous.evaluation.box_calibration import best_threshold, calibration_of, probabilities, threshold_for
from vitreous.weights.calibration import BoxCalibration


def detections(num, seed):
    """Scores that are far too sure of most classes: right with a probability that grows with the score, and is another.
    Those of the last class are as low, and right more often."""
    rng = np.random.default_rng(seed)
    scores, classes = rng.beta(0.5, 0.8, num), rng.integers(3, size=num)
    chance = np.where(classes == 2, 0.95 * scores, 0.7 * scores**2) + 0.02
    return scores, rng.random(num) < chance, classes


def test_a_score_of_eight_tenths_is_right_eight_times_in_ten():
    scores, right, classes = detections(15_000, 0)
    calibration = calibration_of(scores, right, 2000, classes, 3)
    scores, right, classes = detections(150_000, 1)
    promised = probabilities(scores, calibration, classes)
    for low in np.arange(0, 0.8, 0.1):
        for of_class in (classes < 2, classes == 2):
            here = of_class & (promised >= low) & (promised < low + 0.1)
            assert here.sum() < 100 or abs(right[here].mean() - promised[here].mean()) < 0.07
    for number in range(3):  # the order of a class stays, and average precision with it
        of_class = classes == number
        assert (np.diff(promised[of_class][np.argsort(scores[of_class])]) >= 0).all()
    for wished, least in calibration.thresholds:
        assert right[promised >= least].mean() > wished - 0.03


def test_the_fit_is_the_least_log_loss():
    scores, right, classes = detections(400, 2)
    found = calibration_of(scores, right, 200, classes, 3)
    num = len(found.slopes)
    assert num == right.sum() // 30 > 1

    def loss(parts):
        line = BoxCalibration(
            slopes=tuple(parts[:num]), shift=parts[num], offsets=tuple(parts[num + 1 :]), knots=found.knots
        )
        p = probabilities(scores, line, classes)
        likelihood = -np.log(np.where(right, p, 1 - p)).sum()
        return likelihood + 0.5 * ((np.asarray(parts) - [*[1] * num, *[0] * 4]) ** 2).sum()

    mine, bounds = [*found.slopes, found.shift, *found.offsets], [*[(0.02, 20)] * num, *[(-20, 20)] * 4]
    best = minimize(loss, mine, bounds=bounds, tol=1e-12)
    far = minimize(loss, [*[1.0] * num, *[0.0] * 4], bounds=bounds, tol=1e-12)
    assert loss(mine) <= min(best.fun, far.fun) + 1e-6


@pytest.mark.parametrize("right", [[True] * 6, [False] * 6, [False, False, False, True, True, True]])
def test_few_detections_and_none_that_contradict(right):
    scores, one = np.array([0.1, 0.2, 0.3, 0.7, 0.8, 0.999999999]), np.zeros(6, int)
    found = probabilities(scores, calibration_of(scores, np.array(right), 6, one, 2), one)
    assert np.isfinite(found).all() and (np.diff(found) >= 0).all()
    nothing = calibration_of(np.zeros(0), np.zeros(0, bool), 3, one[:0], 1)
    assert nothing == BoxCalibration()


def test_scores_that_mislead_are_flattened_rather_than_turned_round():
    rng = np.random.default_rng(0)
    scores = rng.random(2000)
    found = calibration_of(scores, rng.random(2000) < 1 - scores, 1000, np.zeros(2000, int), 1)
    assert np.ptp(probabilities(np.array([0.05, 0.95]), found, np.zeros(2, int))) < 0.05


def test_thresholds():
    scores = np.array([0.9, 0.8, 0.8, 0.7, 0.6])
    right = np.array([True, True, False, True, False])

    def threshold(wished, num=5, right=right):
        return threshold_for(scores[:num], right[:num], wished, caution=0)

    assert [threshold(wished) for wished in (0.6, 0.7, 0.9)] == [0.6, 0.7, 0.9]  # three of five, of four, one of one
    assert threshold(0.9, right=~right) is None
    # Of equal scores none can be left out: two of three are right from 0.8 on.
    assert threshold(0.67, num=3) == 0.9
    assert best_threshold(scores, right, 3) == 0.7
    # One that happens to be right promises nothing; ninety of a hundred do.
    assert threshold_for(scores[:1], right[:1], 0.8) is None
    many = np.repeat([True, False], [90, 10])
    assert threshold_for(np.linspace(1, 0.5, 100), many, 0.8) is not None


def test_what_a_card_may_not_hold():
    with pytest.raises(UserError, match="above 0"):
        BoxCalibration(slopes=(0.0,))
    with pytest.raises(UserError, match="finite"):
        BoxCalibration(shift=float("nan"))
    with pytest.raises(UserError, match="ascending"):
        BoxCalibration(slopes=(1.0, 1.0, 1.0), knots=(1.0, 0.0))
    with pytest.raises(UserError, match="between 0 and 1"):
        BoxCalibration(thresholds=((0.9, 1.5),))
