import pytest
import torch
from sklearn.linear_model import Ridge

from vitreous.evaluation.ridge import LeastSquares


def problem(num, width, offset=0.0):
    generator = torch.Generator().manual_seed(num + width)
    values = torch.randn(num, width, generator=generator, dtype=torch.float64) * torch.logspace(-1, 1, width) + offset
    targets = torch.randn(num, 3, generator=generator, dtype=torch.float64) + values[:, :3]
    return values, targets


SHAPES = [(20, 50), (50, 20), (30, 30), (1, 5), (2, 5)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("penalty", [1e-3, 1.0, 1e4])
def test_equals_scikit_learn(shape, penalty):
    values, targets = problem(*shape, offset=3.0)
    theirs = Ridge(alpha=penalty, solver="svd").fit(values, targets)
    ours = LeastSquares(values, targets).fit(penalty)
    torch.testing.assert_close(ours.weights.T, torch.from_numpy(theirs.coef_), atol=1e-6, rtol=1e-6)
    expected = torch.from_numpy(theirs.predict(values))
    torch.testing.assert_close(ours(values), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("shape", [(20, 50), (50, 20)])
@pytest.mark.parametrize("penalty", [1e-2, 10.0])
def test_leaving_one_out_is_exact(shape, penalty):
    values, targets = problem(*shape, offset=1.0)
    found = LeastSquares(values, targets).left_out(penalty)
    for place in range(0, shape[0], 7):
        others = torch.arange(shape[0]) != place
        refit = LeastSquares(values[others], targets[others]).fit(penalty)
        torch.testing.assert_close(found[place], refit(values[place : place + 1])[0], atol=1e-6, rtol=1e-6)


def test_copied_and_constant_features():
    values, targets = problem(20, 5)
    copied = torch.cat([values, values, torch.ones(20, 1, dtype=torch.float64)], dim=1)
    theirs = Ridge(alpha=0.5, solver="svd").fit(copied, targets)
    ours = LeastSquares(copied, targets).fit(0.5)
    torch.testing.assert_close(ours.weights.T, torch.from_numpy(theirs.coef_), atol=1e-6, rtol=1e-6)
    constant = LeastSquares(torch.ones(6, 3), targets[:6])
    torch.testing.assert_close(constant.fit(1.0)(torch.ones(1, 3))[0], targets[:6].mean(dim=0))
    assert constant.scale == 0


def test_the_scale_is_the_mean_squared_length():
    values, targets = problem(40, 7, offset=5.0)
    expected = float((values - values.mean(dim=0)).square().sum(dim=1).mean())
    assert LeastSquares(values, targets).scale == pytest.approx(expected)
