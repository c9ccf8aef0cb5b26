import json
from dataclasses import replace

import pytest
import torch
from invented import simulated
from scipy.stats import betabinom

from vitreous import settings
from vitreous.errors import UserError
from vitreous.evaluation.calibration import fit_temperature
from vitreous.evaluation.conformal import Sets, expected_range, fit_threshold, measure_sets, prediction_sets
from vitreous.evaluation.logits import LabelledLogits


def test_the_threshold_has_the_correction_for_few_pictures():
    """Nine pictures whose labels have known probabilities: 0.9 needs all nine, 0.8 eight of them, 0.91 has too few."""
    chances = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.55, 0.5, 0.4, 0.3, 0.2], dtype=torch.float64)
    logits = torch.stack([chances, 1 - chances], dim=1).log().float()
    val = LabelledLogits(logits, torch.zeros(9, dtype=torch.int64), torch.arange(9), ("a", "b"))
    assert fit_threshold(val, 0.9) == pytest.approx(0.2, rel=1e-5)
    assert fit_threshold(val, 0.8) == pytest.approx(0.3, rel=1e-5)
    assert fit_threshold(val, 0.91) == 0
    assert prediction_sets(val, fit_threshold(val, 0.8)).tolist()[:2] == [[True, False], [True, False]]
    assert prediction_sets(val, fit_threshold(val, 0.8)).tolist()[5:] == [[True, True]] * 3 + [[False, True]]
    assert prediction_sets(val, 0.0).all()


@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_the_promise_holds_on_average(coverage):
    """Many validation sets of 60 pictures, the temperature fitted on them too: the mean coverage is within three
    standard errors of what is promised, for a model that is far too sure of itself."""
    covered = []
    for repeat in range(150):
        both = simulated(560, seed=repeat, sharpness=3.0)
        val, test = both.only(both.ids < 60), both.only(both.ids >= 60)
        covered.append(measure_sets(val, test, coverage, fit_temperature(val)).measured.value)
    found = torch.tensor(covered)
    error = float(found.std()) / 150**0.5
    promised = -(-61 * coverage // 1) / 61  # exactly: rank / (n + 1)
    assert abs(float(found.mean()) - promised) < 3 * error + 0.005


def test_measured_coverage_lies_in_the_expected_range():
    inside = 0
    for repeat in range(100):
        both = simulated(700, seed=1000 + repeat)
        found = measure_sets(both.only(both.ids < 200), both.only(both.ids >= 200), 0.9)
        inside += found.expected_low <= found.measured.value <= found.expected_high
        assert found.holds == (found.measured.value >= found.expected_low)
    assert 89 <= inside <= 100


def test_a_broken_promise_is_noticed():
    """Test pictures unlike the validation pictures."""
    val, test = simulated(500, seed=1), simulated(500, seed=2)
    assert measure_sets(val, test).holds
    assert not measure_sets(val, replace(test, labels=test.labels.flip(0))).holds


@pytest.mark.parametrize(("num_val", "num_test", "coverage"), [(50, 200, 0.9), (1000, 10_000, 0.95), (9, 20, 0.9)])
def test_the_expected_range_equals_scipy(num_val, num_test, coverage):
    rank = -(-(num_val + 1) * coverage // 1)
    law = betabinom(num_test, rank, num_val + 1 - rank)
    expected = tuple(law.ppf([0.025, 0.975]) / num_test)
    assert expected_range(num_val, num_test, coverage) == pytest.approx(expected, abs=1e-9)


def test_counts_of_sizes():
    both = simulated(900, noise=4.0)
    found = measure_sets(both.only(both.ids < 300), both.only(both.ids >= 300), 0.7)
    assert sum(found.sizes) == 600
    assert found.sizes[0] / 600 == found.empty.value > 0, "a good model and a low coverage: some sets are empty"
    assert sum(size * num for size, num in enumerate(found.sizes)) / 600 == pytest.approx(found.mean_size.value)


def test_float32_gives_the_same_sets():
    val = simulated(300, sharpness=4.0)
    threshold = fit_threshold(val, 0.9, 1.3)
    single = (val.logits / 1.3).softmax(dim=1) >= threshold
    assert torch.equal(single, prediction_sets(val, threshold, 1.3))


def test_bad_coverage():
    for coverage in (0, 1, 95):
        with pytest.raises(UserError, match="between 0 and 1"):
            fit_threshold(simulated(20), coverage)


def test_json_round_trip():
    both = simulated(100)
    found = measure_sets(both, both)
    assert settings.from_json(Sets, json.loads(json.dumps(found.to_json(), allow_nan=False))) == found
