import json
from dataclasses import replace

import pytest
import torch
from invented import simulated
from scipy.optimize import minimize_scalar
from sklearn.metrics import brier_score_loss

from vitreous import settings
from vitreous.errors import UserError
from vitreous.evaluation.calibration import Calibration, calibration, fit_temperature
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.metrics import log_losses


def plain_ece(answers, num_bins):
    """The definition, in plain Python."""
    confidences, right = answers.probabilities().amax(1).tolist(), answers.right().tolist()
    total = 0.0
    for number in range(num_bins):
        inside = [i for i, c in enumerate(confidences) if number / num_bins < c <= (number + 1) / num_bins]
        if inside:
            gap = sum(confidences[i] for i in inside) / len(inside) - sum(right[i] for i in inside) / len(inside)
            total += len(inside) / len(confidences) * abs(gap)
    return total


@pytest.mark.parametrize("num_bins", [15, 4])
def test_ece_is_its_definition(num_bins):
    answers = simulated(400, sharpness=1.7)
    assert calibration(answers, num_bins=num_bins).ece.value == pytest.approx(plain_ece(answers, num_bins))


def test_adaptive_bins_hold_equal_numbers():
    answers = simulated(300, sharpness=2.0)
    confidences, order = answers.probabilities().amax(1).sort()
    gaps = (confidences - answers.right()[order].double()).reshape(15, 20)
    expected = float(gaps.mean(dim=1).abs().mean())
    assert calibration(answers).adaptive_ece.value == pytest.approx(expected)


def test_brier_equals_scikit_learn():
    answers = simulated(200)
    expected = brier_score_loss(answers.labels, answers.probabilities(), labels=range(10), scale_by_half=False)
    assert calibration(answers).brier.value == pytest.approx(expected)


def test_bins_hold_every_picture_once():
    answers = simulated(500)
    found = calibration(answers)
    assert sum(one.pictures for one in found.bins) == 500
    empty = [one for one in found.bins if not one.pictures]
    assert empty and all(one.confidence is None and one.accuracy is None for one in empty)
    for one in found.bins:
        if one.pictures:
            assert one.low < one.confidence <= one.high
            assert one.accuracy.low <= one.accuracy.value <= one.accuracy.high
    mean = sum(one.confidence * one.pictures for one in found.bins if one.pictures) / 500
    assert mean == pytest.approx(found.confidence)


def test_ece_interval_holds_for_an_overconfident_model():
    """The true error of one bin, measured on many small samples."""
    true = calibration(simulated(200_000, sharpness=2.5, seed=1), num_bins=1).ece.value
    found = [calibration(simulated(300, sharpness=2.5, seed=seed), num_bins=1).ece for seed in range(2, 202)]
    assert 0.9 <= sum(one.low <= true <= one.high for one in found) / 200 <= 0.99


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 3.0])
def test_the_temperature_is_found(sharpness):
    val, test = simulated(4000, seed=1, sharpness=sharpness), simulated(4000, seed=2, sharpness=sharpness)
    temperature = fit_temperature(val)
    assert temperature == pytest.approx(sharpness, rel=0.06)
    best = minimize_scalar(lambda t: float(log_losses(val, t).mean()), bounds=(0.05, 20), method="bounded").x
    assert temperature == pytest.approx(best, rel=2e-3), "but for the label's share it is the least log-loss"
    before, after = calibration(test), calibration(test, temperature)
    assert after.accuracy == before.accuracy
    assert after.log_loss.value <= before.log_loss.value + 1e-3
    if sharpness != 1:
        assert after.ece.value < 0.4 * before.ece.value


def test_shifted_logits_change_nothing():
    answers = simulated(100, sharpness=2.0)
    shifted = replace(answers, logits=answers.logits + 100 * torch.arange(100)[:, None])
    assert fit_temperature(shifted) == pytest.approx(fit_temperature(answers), rel=1e-3)


def test_validation_without_a_mistake_makes_no_oracle():
    labels = torch.arange(1000) % 10
    perfect = LabelledLogits(5 * torch.nn.functional.one_hot(labels, 10).float(), labels, labels, tuple("abcdefghij"))
    temperature = fit_temperature(perfect)
    confidence = calibration(perfect, temperature).confidence
    assert confidence == pytest.approx(1001 / 1002, abs=1e-6)
    assert 0.05 < temperature < 1


def test_the_range_of_temperatures_is_bounded():
    labels = torch.arange(100) % 2
    flat = LabelledLogits(1e-3 * torch.nn.functional.one_hot(labels, 2).float(), labels, labels, ("a", "b"))
    assert fit_temperature(flat) == pytest.approx(0.05, rel=1e-6)
    wrong = replace(flat, labels=1 - labels, logits=1000 * flat.logits)
    assert fit_temperature(wrong) == pytest.approx(20, rel=1e-6)
    nothing = replace(flat, logits=torch.zeros(100, 2))
    assert 0.05 <= fit_temperature(nothing) <= 20
    huge = replace(flat, logits=1e6 * flat.logits)
    assert 0.05 <= fit_temperature(huge) <= 20
    alone = LabelledLogits(torch.randn(5, 1), torch.zeros(5, dtype=torch.int64), torch.arange(5), ("a",))
    assert fit_temperature(alone) == 1


def test_nothing_to_fit_on():
    with pytest.raises(UserError, match="there are none"):
        fit_temperature(simulated(10).only(torch.zeros(10, dtype=torch.bool)))


def test_json_round_trip():
    found = calibration(simulated(50))
    assert settings.from_json(Calibration, json.loads(json.dumps(found.to_json(), allow_nan=False))) == found
