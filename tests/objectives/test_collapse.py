"""Spread by hand, and the loop that tells of a collapse once."""

import pytest
import torch

from promises import WORLD, shrunk
from vitreous.jobs.build import build_loop, build_objective
from vitreous.objectives.collapse import LEAST_RANK, LEAST_STD, collapsed, spread
from vitreous.recipes.contrastive import cifar10_simclr
from vitreous.training.run import RunDirectory


def numbers(features):
    return {name: float(value) for name, value in spread(features).items()}


def test_orthogonal_vectors():
    found = numbers(3 * torch.eye(8))  # lengths do not count
    assert found["feature_rank"] == pytest.approx(7, rel=1e-5)  # the mean takes one direction away
    assert found["feature_std"] == pytest.approx((7 / 8) ** 0.5, rel=1e-5)


def test_opposite_vectors():
    axes = torch.eye(6)[:2]
    found = numbers(torch.cat([axes, -axes, 5 * axes]))
    assert found["feature_rank"] == pytest.approx(2, abs=0.2)
    line = numbers(torch.cat([axes[:1], -axes[:1]]))
    assert line == {"feature_std": pytest.approx(1), "feature_rank": pytest.approx(1)}


def test_all_equal():
    found = numbers(torch.randn(1, 16).expand(10, -1))
    assert found["feature_std"] == pytest.approx(0, abs=1e-3)
    assert "almost the same features" in collapsed(found, "this and that")
    assert collapsed(found, "this and that").endswith("Usual causes: this and that")
    assert not any(value != value for value in numbers(torch.zeros(4, 3)).values())  # no NaN where all are zero


@pytest.mark.parametrize("shape", [(40, 8), (8, 40), (16, 16)])
def test_the_rank_is_that_of_the_principal_axes(shape):
    torch.manual_seed(0)
    features = torch.randn(shape) * torch.linspace(0.1, 3, shape[1])
    unit = torch.nn.functional.normalize(features, dim=1)
    variances = torch.linalg.eigvalsh(torch.cov(unit.T, correction=0).double())
    found = spread(features)
    assert float(found["feature_rank"]) == pytest.approx(float(variances.sum() ** 2 / variances.square().sum()), 1e-4)
    assert float(found["feature_std"]) == pytest.approx(float(variances.sum().sqrt()), 1e-4)


def test_random_features_are_spread_and_raise_no_concern():
    torch.manual_seed(0)
    found = numbers(torch.randn(512, 64))
    assert found["feature_std"] == pytest.approx(1, abs=0.02)
    assert found["feature_rank"] > 50
    assert collapsed(found, "") is None
    assert collapsed({}, "") is None  # an objective that logs no spread


def test_few_directions_are_told():
    assert "only 1.1 directions" in collapsed({"feature_std": 1.0, "feature_rank": 1.1}, "")
    assert collapsed({"feature_std": LEAST_STD, "feature_rank": LEAST_RANK}, "") is None


def test_no_gradient_and_float32():
    features = torch.randn(6, 4, requires_grad=True)
    assert not any(value.requires_grad for value in spread(features).values())
    assert all(value.dtype == torch.float32 for value in spread(features.bfloat16()).values())


# ---- the loop


def loop_of(recipe):
    splits = recipe.data.build()
    return build_loop(recipe, splits, build_objective(recipe, splits.train.classes), WORLD)


def test_a_collapse_is_told_once_for_as_long_as_it_lasts(capsys):
    loop = loop_of(shrunk(cifar10_simclr()))
    good, bad = {"feature_std": 1.0, "feature_rank": 9.0}, {"feature_std": 0.01, "feature_rank": 9.0}
    for step, found in enumerate((good, bad, bad, bad, good, bad), start=1):
        loop._warn(step, found)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["warning at step 2", "warning at step 6"]
    assert "spread is 0.010" in lines[0]


def test_a_run_whose_encoder_answers_one_thing_says_so(tmp_path, capsys):
    loop = loop_of(shrunk(cifar10_simclr(), steps=3))
    loop.settings = type(loop.settings)(steps=3, batch_size=40, log_every_steps=1)
    norm = loop.objective.encoder.norm
    with torch.no_grad():
        norm.weight.zero_()
        norm.bias.fill_(0.5)
    loop.optimizer.set_rate = lambda multiplier: loop.optimizer._rates.zero_()  # nothing learns its way out
    with RunDirectory(tmp_path, tensorboard=False) as directory:
        loop.run(directory, None)
    assert [row["feature_std"] for row in RunDirectory(tmp_path).rows()] == pytest.approx([0, 0, 0], abs=1e-3)
    assert capsys.readouterr().err.count("the features are collapsing") == 1
