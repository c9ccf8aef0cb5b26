from dataclasses import replace

import pytest
import torch

from promises import keep_promises, shrunk
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.objectives.simclr import SimCLRSettings, nt_xent
from vitreous.recipes.contrastive import cifar10_simclr

TINY = ViTSettings(picture_px=(8, 8), patch=4, width=16, depth=1, heads=2, pool="mean", positions="sincos")
PROGRESS = torch.tensor(0.0)


def pairs(num=6, sizes=((8, 8), (8, 8))):
    generator = torch.Generator().manual_seed(0)
    views = tuple(torch.randn(num, 3, *size, generator=generator) for size in sizes)
    return Batch(views=views, targets={}, ids=torch.arange(num), keys=torch.arange(num))


def built(settings):
    torch.manual_seed(0)
    return settings.build(TINY.build(), ())


def test_promises(tmp_path):
    recipe = shrunk(cifar10_simclr())
    rows = keep_promises(replace(recipe, objective=replace(recipe.objective, hidden=64)), tmp_path)
    assert all(row["feature_std"] > 0.3 for row in rows)


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_the_loss_is_lightlys(temperature):
    lightly = pytest.importorskip("lightly.loss")
    torch.manual_seed(0)
    ours = torch.randn(14, 5, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    loss = nt_xent(ours, temperature)
    expected = lightly.NTXentLoss(temperature=temperature)(*theirs.chunk(2))
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=0)


def test_the_objective_compares_its_projections():
    objective, batch = built(SimCLRSettings(hidden=12, out=5)), pairs()
    features = torch.cat([objective.encoder(view).pooled for view in batch.views])
    expected = nt_xent(objective.projector(features), 0.1)
    torch.testing.assert_close(objective(batch, PROGRESS)["loss"], expected, atol=1e-5, rtol=0)


def test_the_projector_is_as_deep_as_asked():
    objective = built(SimCLRSettings(hidden=12, out=5, layers=3))
    layers = [layer for layer in objective.projector if isinstance(layer, torch.nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in layers] == [(16, 12), (12, 12), (12, 5)]


def test_similarities_are_in_float32_under_autocast():
    """At a temperature of 0.01, bfloat16 would be off by about a third."""
    torch.manual_seed(0)
    projected = torch.randn(40, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = nt_xent(projected, 0.01)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, nt_xent(projected, 0.01))


def test_collapse_is_noticed():
    objective = built(SimCLRSettings(hidden=12))
    with torch.no_grad():
        healthy = objective(pairs(32), PROGRESS)
        assert objective.concern({name: float(number) for name, number in healthy.items()}) is None
        objective.encoder.norm.weight.zero_()  # every picture gets the same answer
        objective.encoder.norm.bias.normal_()
        numbers = {name: float(number) for name, number in objective(pairs(32), PROGRESS).items()}
    assert "collapsing" in objective.concern(numbers)
    assert "temperature" in objective.concern(numbers)


@pytest.mark.parametrize("sizes", [((8, 8),), ((8, 8), (4, 4)), ((8, 8), (8, 8), (8, 8))])
def test_two_views_of_one_size_are_needed(sizes):
    with pytest.raises(UserError, match="SimCLR compares two views"):
        built(SimCLRSettings())(pairs(sizes=sizes), PROGRESS)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden": 0}, "objective.hidden is 0: it must be at least 1"),
        ({"out": 0}, "out is 0"),
        ({"layers": 0}, "layers is 0"),
        ({"temperature": 0.0}, "temperature is 0.0: it must be above 0"),
    ],
)
def test_impossible_settings_are_refused(changes, named):
    with pytest.raises(UserError, match=named):
        built(SimCLRSettings(**changes))
