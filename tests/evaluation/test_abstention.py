import json

import pytest
import torch
from invented import simulated

from vitreous import settings
from vitreous.errors import UserError
from vitreous.evaluation.abstention import Abstention, abstention, silence, threshold_for
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.metrics import wilson


def by_confidence(confidences, right):
    """Two classes; the first is the likelier one, with that probability."""
    chances = torch.tensor(confidences, dtype=torch.float64)
    logits = torch.stack([chances, 1 - chances], dim=1).log().float()
    return LabelledLogits(logits, 1 - torch.tensor(right), torch.arange(len(right)), ("a", "b"))


def test_the_curve_by_hand():
    found = abstention(by_confidence([0.6, 0.9, 0.8, 0.7], [0, 1, 1, 1]))
    assert [point.share for point in found.points] == [0.25, 0.5, 0.75, 1.0]
    assert [point.accuracy.value for point in found.points] == [1, 1, 1, 0.75]
    assert [point.threshold for point in found.points] == pytest.approx([0.9, 0.8, 0.7, 0.6])
    assert found.area.value == pytest.approx((1 + 1 + 1 + 0.75) / 4)


def test_equal_confidences_are_answered_together():
    found = abstention(by_confidence([0.9, 0.8, 0.8, 0.8, 0.6], [1, 1, 0, 1, 0]))
    assert [point.share for point in found.points] == [0.2, 0.8, 1.0]
    assert [point.accuracy.value for point in found.points] == [1, 0.75, 0.6]


def test_the_curve_ends_at_all_pictures():
    answers = simulated(1234, noise=3.0)
    found = abstention(answers)
    assert len(found.points) == 100
    assert found.points[-1].share == 1
    assert found.points[-1].accuracy == wilson(int(answers.right().sum()), 1234)
    assert found.points[0].accuracy.value > found.points[-1].accuracy.value + 0.1
    assert found.area.low < found.area.value < found.area.high
    assert found == abstention(answers), "the resamples repeat"


def test_the_interval_of_the_area_holds():
    true = abstention(simulated(50_000, seed=1, noise=2.0)).area.value
    found = [abstention(simulated(400, seed=seed, noise=2.0)).area for seed in range(2, 62)]
    assert sum(one.low <= true <= one.high for one in found) >= 50


def test_the_threshold_reaches_the_wish_for_sure():
    answers = simulated(3000, noise=4.0)
    threshold = threshold_for(answers, 0.9)
    confidences, right = answers.probabilities().amax(1), answers.right()
    kept = right[confidences >= threshold]
    assert wilson(int(kept.sum()), len(kept)).low >= 0.9
    lower = confidences[confidences < threshold].max()
    more = right[confidences >= lower]
    assert wilson(int(more.sum()), len(more)).low < 0.9, "one picture more would be too many"
    assert threshold_for(answers, 0.9, temperature=2.0) < threshold, "a hotter model is less sure of the same answers"


def test_silence_on_other_pictures():
    val, test = simulated(3000, seed=1, noise=4.0), simulated(3000, seed=2, noise=4.0)
    found = silence(val, test, 0.9)
    kept = test.right()[test.probabilities().amax(1) >= found.threshold]
    assert found.accuracy == wilson(int(kept.sum()), len(kept)) and found.accuracy.high > 0.9
    assert found.answered == wilson(len(kept), 3000)
    few = silence(val.only(val.ids < 10), test, 0.99)
    assert few.threshold is few.answered is few.accuracy is None
    unsure = silence(val, by_confidence([0.5, 0.51], [1, 1]), 0.95)
    assert unsure.answered.value == 0 and unsure.accuracy is None


def test_bad_input():
    with pytest.raises(UserError, match="between 0 and 1"):
        threshold_for(simulated(10), 95)
    with pytest.raises(UserError, match="no pictures"):
        abstention(simulated(10).only(torch.zeros(10, dtype=torch.bool)))


def test_json_round_trip():
    found = abstention(simulated(50))
    assert settings.from_json(Abstention, json.loads(json.dumps(found.to_json(), allow_nan=False))) == found
