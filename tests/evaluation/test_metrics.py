import json
import warnings

import pytest
import torch
from invented import simulated
from scipy.stats import binomtest
from sklearn import metrics as theirs

from vitreous import settings
from vitreous.errors import UserError
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.metrics import Scores, mean_estimate, mean_of_shares, scores, wilson


@pytest.mark.parametrize(("right", "num"), [(0, 7), (7, 7), (3, 10), (997, 1000)])
def test_wilson_equals_scipy(right, num):
    found, expected = wilson(right, num), binomtest(right, num).proportion_ci(method="wilson")
    assert (found.value, found.low, found.high) == pytest.approx((right / num, expected.low, expected.high), abs=1e-12)


def test_equal_to_scikit_learn():
    answers = simulated(500, 8, noise=2.5)
    found = scores(answers)
    labels, best = answers.labels.numpy(), answers.best().numpy()
    assert found.pictures == 500
    assert found.top1.value == pytest.approx(theirs.accuracy_score(labels, best))
    logits = answers.logits.numpy()
    assert found.top5.value == pytest.approx(theirs.top_k_accuracy_score(labels, logits, k=5, labels=range(8)))
    assert found.balanced.value == pytest.approx(theirs.balanced_accuracy_score(labels, best))
    assert found.log_loss.value == pytest.approx(theirs.log_loss(labels, answers.probabilities().numpy()))
    expected = theirs.precision_recall_fscore_support(labels, best, labels=range(8), zero_division=0)
    for number, one in enumerate(found.per_class):
        measured = (one.precision.value, one.recall.value, one.f1.value, one.pictures)
        assert measured == pytest.approx([column[number] for column in expected])
    assert found.confusion_matrix().tolist() == theirs.confusion_matrix(labels, best).tolist()
    for estimate in (found.top1, found.top5, found.balanced, found.log_loss, *(one.f1 for one in found.per_class)):
        assert 0 <= estimate.low < estimate.value < estimate.high


def test_a_temperature_changes_log_loss_alone():
    answers = simulated(300, sharpness=2.0)
    one, two = scores(answers), scores(answers, temperature=2.0)
    assert two.log_loss.value == pytest.approx(
        theirs.log_loss(answers.labels, answers.probabilities(2.0), labels=range(10))
    )
    assert two.log_loss != one.log_loss and two.per_class == one.per_class


def test_classes_without_pictures_or_answers():
    logits = torch.tensor([[2.0, 0, 0, 1], [3, 0, 0, 0], [0, 0, 0, 1]])
    found = scores(LabelledLogits(logits, torch.tensor([0, 1, 0]), torch.arange(3), ("a", "b", "c", "d")))
    a, b, c, d = found.per_class
    assert (a.pictures, a.predicted, a.right) == (2, 2, 1)
    assert b.precision is None and b.recall.value == 0 and b.f1.value == 0
    assert (c.precision, c.recall, c.f1) == (None, None, None)
    assert d.recall is None and d.precision.value == 0
    assert found.balanced.value == 1 / 4, "of the two classes that have pictures"
    assert found.top5.value == 1
    text = "\n".join(one.text() for one in found.tables())
    assert "top-5" not in text and "c  " not in text
    with pytest.raises(UserError, match="no pictures"):
        scores(LabelledLogits(logits[:0], torch.zeros(0, dtype=torch.int64), torch.zeros(0), ("a", "b", "c", "d")))


def test_one_picture():
    found = scores(LabelledLogits(torch.tensor([[1.0, 0]]), torch.tensor([0]), torch.tensor([0]), ("a", "b")))
    assert found.top1.value == 1 and found.top1.low < 0.3
    assert found.log_loss.low == found.log_loss.high == found.log_loss.value


def test_json_round_trip():
    found = scores(simulated(60, 12))
    text = json.dumps(found.to_json(), allow_nan=False)
    assert settings.from_json(Scores, json.loads(text)) == found


def test_many_classes_are_listed_from_the_worst():
    text = scores(simulated(900, 40, noise=3.0)).tables(num_classes=5)[1].text()
    assert "the lowest 5 of" in text and len(text.splitlines()) == 2 + 5


@pytest.mark.parametrize("chance", [0.6, 0.97])
def test_intervals_of_balanced_accuracy_and_means_hold_95_of_100(chance):
    """Classes of very different sizes; some are right every time in many repeats."""
    generator = torch.Generator().manual_seed(0)
    sizes, repeats = [5, 10, 40, 200], 2000
    chances = torch.tensor([chance, 0.5, 0.9, chance], dtype=torch.float64)
    hits = torch.stack(
        [(torch.rand(repeats, n, generator=generator) < p).sum(1) for n, p in zip(sizes, chances, strict=True)]
    )
    covered = 0
    for repeat in range(repeats):
        found = mean_of_shares([wilson(int(h), n) for h, n in zip(hits[:, repeat], sizes, strict=True)])
        covered += found.low <= float(chances.mean()) <= found.high
    assert 0.94 <= covered / repeats <= 0.985


def test_the_interval_of_a_mean_holds_95_of_100():
    generator = torch.Generator().manual_seed(0)
    values = torch.empty(1000, 200).exponential_(generator=generator)
    found = [mean_estimate(row) for row in values]
    assert 0.92 <= sum(one.low <= 1 <= one.high for one in found) / 1000 <= 0.97


def test_no_warning_where_all_is_right():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = scores(LabelledLogits(torch.eye(3), torch.arange(3), torch.arange(3), ("a", "b", "c")))
    assert found.balanced.value == found.top1.value == found.top1.high == 1
