import json

import numpy as np
import pytest
import torch
from sklearn import metrics as theirs

from vitreous.errors import UserError
from vitreous.evaluation.figures import drawn
from vitreous.evaluation.full import evaluate_fully, evaluation_of
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.many import (
    LEAST,
    ManyEvaluation,
    choose_thresholds,
    evaluate_many,
    false_labels,
    label_probabilities,
    missed_labels,
)
from vitreous.weights.calibration import ManyCalibration

CLASSES = tuple("abcdef")


def simulated(num, seed, *, sharpness=1.0):
    """Labels of which some are rare, and logits that know them somewhat; the last one is on no picture."""
    generator = torch.Generator().manual_seed(seed)
    shift = torch.tensor([0.0, 0.5, 1.0, 1.5, -0.5, 99.0])
    truth = 2 * torch.randn(num, 6, generator=generator) - shift
    labels = (torch.rand(num, 6, generator=generator) < truth.sigmoid()).float()
    return LabelledLogits(sharpness * truth, labels, torch.arange(num), CLASSES)


@pytest.fixture(scope="module")
def parts():
    return simulated(500, seed=1, sharpness=3.0), simulated(700, seed=2, sharpness=3.0)


@pytest.fixture(scope="module")
def found(parts):
    return evaluate_fully(*parts)


def test_scores_are_those_of_scikit_learn(parts, found):
    test = parts[1]
    labels, scores = test.labels.numpy(), found.scores
    given = (label_probabilities(test, found.temperature) >= torch.tensor(found.thresholds)).numpy()
    expected = theirs.precision_recall_fscore_support(labels, given, zero_division=0)
    for number, one in enumerate(scores.per_class[:5]):
        measured = (one.precision.value, one.recall.value, one.f1.value, one.pictures)
        assert measured == pytest.approx([column[number] for column in expected])
        ranked = theirs.average_precision_score(labels[:, number], test.logits[:, number])
        assert one.average_precision.value == pytest.approx(ranked)
    assert scores.per_class[5].average_precision is scores.per_class[5].recall is None
    macro = theirs.average_precision_score(labels[:, :5], test.logits[:, :5], average="macro")
    assert scores.mean_average_precision.value == pytest.approx(macro)
    assert scores.macro_f1.value == pytest.approx(np.mean(expected[2][:5]))
    assert scores.micro_f1.value == pytest.approx(theirs.f1_score(labels, given, average="micro"))
    assert scores.all_right.value == pytest.approx(theirs.accuracy_score(labels, given))
    binary = [theirs.log_loss(labels[:, k], label_probabilities(test, found.temperature)[:, k]) for k in range(5)]
    assert scores.log_loss.value == pytest.approx(sum(binary), rel=1e-4)


def test_the_headline_is_the_mean_average_precision_with_its_interval(found):
    assert (found.headline_name, found.headline) == ("mAP", found.scores.mean_average_precision)
    for one in (found.headline, *(each.average_precision for each in found.scores.per_class[:5])):
        assert 0 <= one.low < one.value < one.high <= 1


def test_intervals_hold_the_truth_about_as_often_as_promised():
    truth = evaluate_many(None, simulated(20_000, seed=9)).headline.value
    held = [evaluate_many(None, simulated(150, seed=seed)).headline for seed in range(100, 140)]
    assert sum(one.low <= truth <= one.high for one in held) >= 34  # 38 expected; by chance below this 1 in 50


def test_the_temperature_takes_back_what_the_logits_overstate(parts, found):
    assert found.temperature == pytest.approx(3.0, rel=0.15)
    assert found.after.ece.value < 0.5 * found.before.ece.value
    assert found.calibration == ManyCalibration(temperature=found.temperature, thresholds=found.thresholds)


def test_thresholds_have_the_highest_f1_on_validation_pictures(parts):
    val = parts[0]
    chosen, probabilities = choose_thresholds(val, 3.0), label_probabilities(val, 3.0).numpy()
    for number in range(5):
        labels = val.labels[:, number]
        precision, recall, _ = theirs.precision_recall_curve(labels, probabilities[:, number])
        best = (2 * precision * recall / (precision + recall)).max()
        found = theirs.f1_score(labels, probabilities[:, number] >= chosen[number])
        assert found == pytest.approx(best)
    assert chosen[5] == LEAST  # no validation picture has it


def test_equal_probabilities_are_not_told_apart():
    logits = torch.tensor([2.0, 2.0, 2.0, 1.0, 1.0, 0.0, 0.0, 0.0])[:, None]
    labels = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0])[:, None]
    answers = LabelledLogits(logits, labels, torch.arange(8), ("a",))
    (threshold,) = choose_thresholds(answers)
    assert torch.tensor(0.0).sigmoid() < threshold < torch.tensor(1.0).sigmoid()


def test_what_the_model_carries_is_not_fitted_again(parts):
    carried = ManyCalibration(temperature=2.0, thresholds=(0.3,) * 6)
    found = evaluate_fully(*parts, calibration=carried)
    assert found.calibration == carried


def test_without_validation_pictures_nothing_is_fitted(parts):
    found = evaluate_fully(None, parts[1])
    assert (found.temperature, found.thresholds, found.validation_pictures) == (1.0, (LEAST,) * 6, 0)
    assert found.before == found.after


def test_it_is_shown_and_read_back(found):
    text = found.summary()
    for word in ("mean average precision (mAP)", "labels per picture", "threshold", "500 validation pictures"):
        assert word in text
    assert isinstance(found, ManyEvaluation)
    assert evaluation_of(json.loads(json.dumps(found.to_json(), allow_nan=False)), "here") == found
    assert drawn(found).keys() == {"per_class", "reliability"}


def test_pairs_swaps_and_mistakes():
    """Three pictures by hand: labels on the left, given on the right."""
    labels = torch.tensor([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]])  # ab, ab, c
    logits = torch.tensor([[4.0, 3, -2], [4, -1, 2], [-3, 5, -6]])  # ab, ac, b
    answers = LabelledLogits(logits, labels, torch.tensor([7, 8, 9]), ("a", "b", "c"))
    found = evaluate_many(None, answers)
    pairs = {(one.one, one.other): (one.pictures, one.given) for one in found.scores.pairs}
    assert pairs == {("a", "b"): (2, 1), ("a", "c"): (0, 1)}
    swaps = {(one.missed, one.false): one.pictures for one in found.scores.swaps}
    assert swaps == {("b", "c"): 1, ("c", "b"): 1}
    assert [(one.id, one.label, one.labels) for one in missed_labels(answers, found)] == [
        (9, "c", ("c",)),
        (8, "b", ("a", "b")),
    ]
    assert [(one.id, one.label) for one in false_labels(answers, found)] == [(9, "b"), (8, "c")]
    assert false_labels(answers, found, 1)[0].probability == pytest.approx(float(torch.tensor(5.0).sigmoid()))


def test_nothing_to_measure(parts):
    with pytest.raises(UserError, match="no pictures to score"):
        evaluate_many(None, parts[1].only(torch.zeros(700, dtype=torch.bool)))
    bare = LabelledLogits(torch.zeros(3, 2), torch.zeros(3, 2), torch.arange(3), ("a", "b"))
    with pytest.raises(UserError, match="none of the pictures has a label"):
        evaluate_many(None, bare)
