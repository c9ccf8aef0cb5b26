from dataclasses import replace

import pytest
import torch
from torch import nn

from promises import WORLD, keep_promises, shrunk
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.jobs.build import build_loop
from vitreous.models import ViTSettings
from vitreous.objectives.byol import BYOL, BYOLSettings, distance
from vitreous.objectives.heads import projector
from vitreous.recipes.contrastive import cifar10_byol
from vitreous.training.optim import AdamWSettings
from vitreous.training.run import RunDirectory

TINY = ViTSettings(picture_px=(8, 8), patch=4, width=16, depth=1, heads=2, pool="mean", positions="sincos")


def pairs(num=6):
    generator = torch.Generator().manual_seed(0)
    views = tuple(torch.randn(num, 3, 8, 8, generator=generator) for _ in range(2))
    return Batch(views=views, targets={}, ids=torch.arange(num), keys=torch.arange(num))


def built(**changes):
    torch.manual_seed(0)
    return BYOLSettings(**{"hidden": 12, "out": 5} | changes).build(TINY.build(), ())


def small(steps=40):
    recipe = shrunk(cifar10_byol(), steps)
    return replace(recipe, objective=replace(recipe.objective, hidden=64, out=32))


def test_promises(tmp_path):
    rows = keep_promises(small(), tmp_path)
    assert all(row["projected_std"] > 0.3 and row["feature_std"] > 0.3 for row in rows)


def test_each_view_foretells_the_other_as_lightly_has_it():
    lightly = pytest.importorskip("lightly.loss")
    objective, batch = built(), pairs()
    with torch.no_grad():  # no copy any more
        for p in [*objective.target_encoder.parameters(), *objective.target_projector.parameters()]:
            p.add_(0.1 * torch.randn_like(p))
    predicted = [objective.predictor(objective.projector(objective.encoder(view).pooled)) for view in batch.views]
    targets = [objective.target_projector(objective.target_encoder(view).pooled) for view in batch.views]
    peer = lightly.NegativeCosineSimilarity()
    expected = 4 + 2 * peer(predicted[0], targets[1]) + 2 * peer(predicted[1], targets[0])
    torch.testing.assert_close(objective(batch, torch.tensor(0.0))["loss"], expected, atol=1e-5, rtol=0)


def test_distance_is_that_of_unit_vectors():
    one, other = torch.tensor([[3.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 5.0], [0.0, 7.0]])
    assert float(distance(one, other)) == pytest.approx(1.0)  # 2 for the right angle, 0 for the same direction
    assert float(distance(one, -one)) == pytest.approx(4.0)


def test_the_target_follows_and_only_the_learner_learns():
    objective = built()
    assert objective.learner is objective.encoder
    assert not any(p.requires_grad for name, p in objective.named_parameters() if name.startswith("target_"))
    start = [p.clone() for p in objective.target_projector.parameters()]
    with torch.no_grad():
        for p in objective.projector.parameters():
            p.add_(1.0)
    objective.after_step(torch.tensor(0.0))
    wanted = [p + (1 - 0.996) for p in start]
    torch.testing.assert_close(list(objective.target_projector.parameters()), wanted)
    objective.after_step(torch.tensor(1.0))
    torch.testing.assert_close(list(objective.target_projector.parameters()), wanted)


def test_a_forced_collapse_is_noticed(tmp_path, capsys):
    """Without a predictor, and with a target that follows at once, one answer for all is soon found."""
    recipe = replace(small(), optimizer=AdamWSettings(lr=2e-3))
    splits = recipe.data.build()
    torch.manual_seed(0)
    forced = BYOL(recipe.model.build(), projector(32, 64, 32), nn.Identity(), momentum=0.0)
    loop = build_loop(recipe, splits, forced, WORLD)
    with RunDirectory(tmp_path, tensorboard=False) as directory:
        loop.run(directory, None)
    last = directory.rows()[-1]
    assert last["loss"] < 0.05  # all seems well
    assert last["projected_std"] < 0.1
    warning = [line for line in capsys.readouterr().err.splitlines() if "warning at step" in line][-1]
    assert "the features are collapsing" in warning
    assert "raise objective.momentum" in warning


def test_concern():
    objective = built()
    healthy = {"feature_std": 0.8, "feature_rank": 20.0, "projected_std": 0.8}
    assert objective.concern(healthy) is None
    assert "spread is 0.020" in objective.concern(healthy | {"feature_std": 0.02})
    assert "spread is 0.030" in objective.concern(healthy | {"projected_std": 0.03})


@pytest.mark.parametrize(
    ("changes", "named"), [({"out": 0}, "objective.out is 0"), ({"momentum": -0.1}, "objective.momentum is -0.1")]
)
def test_impossible_settings_are_refused(changes, named):
    with pytest.raises(UserError, match=named):
        built(**changes)


def test_one_view_is_not_enough():
    batch = pairs()
    with pytest.raises(UserError, match="BYOL compares two views"):
        built()(replace(batch, views=batch.views[:1]), torch.tensor(0.0))
