from dataclasses import replace

import numpy as np
import pytest
import torch
from invented import blobs
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from vitreous.errors import UserError
from vitreous.evaluation import baseline
from vitreous.evaluation.features import FeatureSet
from vitreous.evaluation.probes import LINEAR_PENALTIES, few_shot, few_shot_fit, knn, knn_votes, linear_probe


def test_neighbours_equal_scikit_learn():
    train, test = blobs(300, seed=1, spread=2.0), blobs(150, seed=2, spread=2.0)
    theirs = KNeighborsClassifier(
        15, metric="cosine", algorithm="brute", weights=lambda distances: np.exp((1 - distances) / 0.07)
    ).fit(train.values, train.labels)
    votes = knn_votes(train, test.values, 4, num=15, chunk=64)
    shares = votes / votes.sum(dim=1, keepdim=True)
    torch.testing.assert_close(shares, torch.from_numpy(theirs.predict_proba(test.values)).double(), atol=1e-4, rtol=0)
    found = knn(train, test, num=15)
    assert found.accuracy.value == pytest.approx(theirs.score(test.values, test.labels))
    assert 0.4 < found.accuracy.value < 0.99


def test_more_neighbours_than_pictures():
    assert knn(blobs(8, seed=1), blobs(20, seed=2), num=50).num == 8


def test_linear_probe_equals_scikit_learn():
    """With features of very different sizes, one of them constant."""
    train, test = blobs(240, seed=1, spread=2.0), blobs(200, seed=2, spread=2.0)
    scales = torch.cat([torch.logspace(-3, 3, 11), torch.zeros(1)])
    train, test = (replace(one, values=one.values * scales + 7) for one in (train, test))
    found = linear_probe(train, test, penalties=(1e-3, 1e-2, 1e-1, 3.0))
    scaler = StandardScaler().fit(train.values)
    theirs = LogisticRegression(C=1 / (found.penalty * 240), tol=1e-6, max_iter=5000)
    theirs.fit(scaler.transform(train.values), train.labels)
    assert found.accuracy.value == pytest.approx(theirs.score(scaler.transform(test.values), test.labels), abs=0.011)
    assert len(found.held_out) == 4
    assert dict(found.held_out)[found.penalty] == max(value for _, value in found.held_out)
    assert found.at_the_edge == (found.penalty in (1e-3, 3.0))


def test_the_penalty_is_chosen_without_the_test_pictures():
    train, test = blobs(120, seed=1, spread=3.0), blobs(120, seed=2, spread=3.0)
    shuffled = replace(test, labels=test.labels.roll(1))
    assert linear_probe(train, test).held_out == linear_probe(train, shuffled).held_out
    one, two = few_shot(train, test, seeds=3), few_shot(train, shuffled, seeds=3)
    assert [point.penalties for point in one] == [point.penalties for point in two]
    assert [point.mean for point in one] != [point.mean for point in two]


def test_the_order_of_loading_changes_no_probe():
    train, test = blobs(120, seed=1, spread=2.0), blobs(120, seed=2, spread=2.0)
    turned = train.only(torch.arange(119, -1, -1))
    for one, two in zip(few_shot(train, test, seeds=2), few_shot(turned, test, seeds=2), strict=True):
        assert one.accuracies == two.accuracies
    assert linear_probe(train, test).penalty == linear_probe(turned, test).penalty


def test_penalties_whose_fits_do_not_converge_are_left_out(monkeypatch, capsys):
    train, test = blobs(240, seed=1, spread=3.0), blobs(200, seed=2, spread=3.0)
    monkeypatch.setattr(baseline, "MOST_STEPS", 12)
    found = linear_probe(train, test)
    left = [penalty for penalty, _ in found.held_out]
    assert 0 < len(left) < len(LINEAR_PENALTIES) and left == sorted(LINEAR_PENALTIES, reverse=True)[: len(left)]
    assert found.penalty in left
    assert f"a penalty of {max(set(LINEAR_PENALTIES) - set(left)):g} does not converge" in capsys.readouterr().err
    monkeypatch.setattr(baseline, "MOST_STEPS", 1)
    with pytest.raises(UserError, match="has not converged"):
        linear_probe(train, test)


def test_too_few_to_hold_out():
    with pytest.raises(UserError, match="too few"):
        linear_probe(blobs(4, seed=1), blobs(20, seed=2))


def test_a_few_shot_fit_equals_scikit_learn():
    few, test = blobs(40, width=60, seed=1, spread=3.0), blobs(300, width=60, seed=2, spread=3.0)
    classify, penalty = few_shot_fit(few, 4)
    scale = float((few.values - few.values.mean(0)).double().square().sum(1).mean())
    theirs = RidgeClassifier(alpha=penalty * scale, solver="svd").fit(few.values.double(), few.labels)
    expected = torch.from_numpy(theirs.decision_function(test.values.double()))
    torch.testing.assert_close(classify(test.values), expected, atol=1e-6, rtol=1e-6)


def test_few_shots():
    train, test = blobs(400, width=30, seed=1, spread=2.0), blobs(400, width=30, seed=2, spread=2.0)
    found = few_shot(train, test, shots=(1, 5, 10, 25, 1000))
    assert [point.shots for point in found] == [1, 5, 10, 25], "no class has 1000"
    means = [point.mean for point in found]
    assert means == sorted(means) and 0.25 < means[0] < means[-1] - 0.1
    for point in found:
        assert len(point.accuracies) == len(point.penalties) == 5
        assert point.mean == pytest.approx(np.mean(point.accuracies))
        assert point.spread == pytest.approx(np.std(point.accuracies, ddof=1))
        assert len(set(point.accuracies)) > 1, "another seed draws other pictures"
    assert set(found[0].penalties) == {1.0}, "one picture a class leaves nothing to choose by"
    assert found == few_shot(train, test)
    best, best_penalty = 0.0, 0.0
    few = train.only(torch.arange(40))
    for penalty in (1e-5, 1e-3, 1e-1, 1.0, 1e2):
        fitted, _ = few_shot_fit(few, 4, penalties=(penalty,))
        accuracy = float((fitted(test.values).argmax(1) == test.labels).double().mean())
        best, best_penalty = max((best, best_penalty), (accuracy, penalty))
    chosen, _ = few_shot_fit(few, 4)
    assert float((chosen(test.values).argmax(1) == test.labels).double().mean()) > best - 0.04


def test_features_of_any_size_give_the_same():
    train, test = blobs(120, seed=1, spread=2.0), blobs(120, seed=2, spread=2.0)
    large = [replace(one, values=4096 * one.values) for one in (train, test)]
    assert few_shot(*large, seeds=2) == few_shot(train, test, seeds=2)


def test_classes_with_few_pictures_or_none():
    train, test = blobs(80, seed=1), blobs(80, seed=2)
    kept = (train.labels != 2) | (train.ids < 12)
    found = few_shot(train.only(kept), test, shots=(1, 5), seeds=2)
    assert [point.short_classes for point in found] == [0, 1]
    without = few_shot(train.only(train.labels != 3), test, shots=(5,), seeds=2)
    assert without[0].mean <= 0.75
    knn(train.only(train.labels != 3), test)
    linear_probe(train.only(train.labels != 3), test)


def test_bad_features():
    many = FeatureSet(torch.randn(4, 3), torch.ones(4, 2), torch.arange(4))
    with pytest.raises(UserError, match="several labels"):
        knn(many, many)
    with pytest.raises(UserError, match="needs training and test"):
        knn(blobs(8), blobs(8).only(torch.zeros(8, dtype=torch.bool)))
