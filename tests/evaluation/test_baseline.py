import pytest
import torch
from sklearn.linear_model import LogisticRegression

from vitreous.errors import UserError
from vitreous.evaluation.baseline import Pixels, fit


def data(num, seed, num_classes=4, pixels=12):
    """Classes that overlap, so that no fit is perfect."""
    torch.manual_seed(0)
    centres = torch.rand(num_classes, pixels, dtype=torch.float64)
    torch.manual_seed(seed)
    labels = torch.arange(num) % num_classes
    return Pixels((centres[labels] + 0.4 * torch.randn(num, pixels, dtype=torch.float64)).clamp(0, 1), labels)


def probabilities(weights, pixels):
    return (pixels.values @ weights[:-1] + weights[-1]).softmax(dim=1)


@pytest.mark.parametrize("penalty", [1e-4, 1e-2])
def test_equals_scikit_learn(penalty):
    """scikit-learn sums the loss over N pictures and weighs it with C, so C = 1 / (penalty * N)."""
    train, test = data(160, 1), data(80, 2)
    theirs = LogisticRegression(C=1 / (penalty * 160), tol=1e-8, max_iter=10_000).fit(train.values, train.labels)
    ours = fit(train, penalty, tolerance=1e-8)
    expected = torch.from_numpy(theirs.predict_proba(test.values))
    torch.testing.assert_close(probabilities(ours, test), expected, atol=1e-4, rtol=0)
    right = probabilities(ours, test).argmax(dim=1) == test.labels
    assert float(right.double().mean()) == theirs.score(test.values, test.labels)


def test_a_warm_start_ends_at_the_same_place():
    train = data(160, 1)
    cold = fit(train, 1e-3, tolerance=1e-8)
    warm = fit(train, 1e-3, start=fit(train, 1e-2), tolerance=1e-8)
    torch.testing.assert_close(probabilities(cold, train), probabilities(warm, train), atol=1e-4, rtol=0)


def test_features_that_go_together():
    """As those of a model that has hardly learned: a valley so narrow that plain L-BFGS needs thousands of steps."""
    torch.manual_seed(0)
    turned, _ = torch.linalg.qr(torch.randn(200, 200, dtype=torch.float64))
    values = torch.randn(300, 200, dtype=torch.float64) * torch.logspace(0, -4, 200, dtype=torch.float64) @ turned
    train = Pixels(values / values.std(dim=0), torch.arange(300) % 4)
    cold = fit(train, 1e-5, tolerance=1e-7)
    theirs = LogisticRegression(C=1 / (1e-5 * 300), tol=1e-10, max_iter=1000, solver="newton-cg").fit(
        train.values, train.labels
    )
    expected = torch.from_numpy(theirs.predict_proba(train.values))
    torch.testing.assert_close(probabilities(cold, train), expected, atol=1e-4, rtol=0)


def test_what_has_not_converged_says_so():
    with pytest.raises(UserError, match="has not converged"):
        fit(data(40, 1), 1e-4, tolerance=1e-300)


def test_features_that_are_not_finite():
    train = data(40, 1)
    train.values[3, 3] = torch.nan
    with pytest.raises(UserError, match="not finite"):
        fit(train, 1e-4)
