from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import vitreous
from promises import keep_promises, shrunk
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.objectives.swav import SwAVSettings, sinkhorn
from vitreous.recipes.multicrop import cifar10_swav

SMALL = ViTSettings(picture_px=(16, 16), patch=4, width=16, depth=1, heads=2)
SETTINGS = SwAVSettings(prototypes=12, hidden=32, projection=8)


def built(**options):
    torch.manual_seed(0)
    return replace(SETTINGS, **options).build(SMALL.build(), ())


def some_batch(num=10, local=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sides = (16, 16, *(8,) * local)
    views = tuple(torch.randn(num, 3, side, side, generator=generator) for side in sides)
    ids = torch.arange(num)
    return Batch(views=views, targets={}, ids=ids, keys=ids)


def at(progress):
    return torch.tensor(float(progress))


def projections(objective, batch):
    """(V, B, D): the head normalises over all crops of the batch, so it sees them at once."""
    features = torch.cat([objective.encoder.features(view).pooled for view in batch.views])
    return F.normalize(objective.projector(features), dim=1).unflatten(0, (len(batch.views), -1))


def few_crops(recipe, **objective):
    """A recipe with a small head and one small crop of each picture."""
    second, local = recipe.more_views
    return replace(
        recipe,
        objective=replace(recipe.objective, hidden=64, projection=32, **objective),
        more_views=(second, replace(local, times=1, size_px=(14, 14))),
    )


def test_promises(tmp_path):
    recipe = few_crops(shrunk(cifar10_swav(), steps=30), prototypes=32, queue=80, queue_fraction=0.3)
    keep_promises(recipe, tmp_path)


# ---- Sinkhorn


@pytest.mark.parametrize(("epsilon", "iterations"), [(0.05, 3), (0.5, 1), (0.03, 10)])
def test_codes_are_those_of_lightly(epsilon, iterations):
    from lightly.loss import swav_loss

    torch.manual_seed(0)
    scores = 2 * torch.rand(20, 7) - 1
    expected = swav_loss.sinkhorn(scores, iterations=iterations, epsilon=epsilon)
    torch.testing.assert_close(sinkhorn(scores, epsilon, iterations), expected, atol=1e-6, rtol=1e-5)


def test_codes_share_the_batch_evenly():
    torch.manual_seed(0)
    scores = torch.rand(40, 5) + torch.tensor([0.5, 0, 0, 0, 0])  # all prefer the first prototype
    assert (scores.argmax(1) == 0).float().mean() > 0.6
    codes = sinkhorn(scores, 0.05, 50)
    torch.testing.assert_close(codes.sum(1), torch.ones(40))
    torch.testing.assert_close(codes.sum(0), torch.full((5,), 8.0), atol=0.05, rtol=0)


def test_samples_without_weight_do_not_count():
    torch.manual_seed(0)
    scores, others = 2 * torch.rand(8, 5) - 1, 2 * torch.rand(6, 5) - 1
    weights = torch.cat([torch.ones(8), torch.zeros(6)])
    alone = sinkhorn(scores, 0.05, 3)
    torch.testing.assert_close(sinkhorn(torch.cat([scores, others]), 0.05, 3, weights)[:8], alone)
    together = sinkhorn(torch.cat([scores, others]), 0.05, 3)
    torch.testing.assert_close(sinkhorn(torch.cat([scores, others]), 0.05, 3, torch.ones(14)), together)
    assert not torch.allclose(together[:8], alone, atol=1e-3)


@pytest.mark.parametrize("epsilon", [0.05, 0.03, 0.5])
def test_codes_are_those_of_float64(epsilon):
    """The powers themselves, as equations 3 to 5 have them."""
    torch.manual_seed(0)
    scores, weights = 2 * torch.rand(40, 30) - 1, (torch.rand(40) > 0.3).double()
    codes = (scores.double() / epsilon).exp()
    for _ in range(3):
        codes = codes / (codes * weights[:, None]).sum(dim=0)
        codes = codes / codes.sum(dim=1, keepdim=True)
    found = sinkhorn(scores, epsilon, 3, weights.float())
    torch.testing.assert_close(found.double(), codes, atol=1e-6, rtol=0)


def test_a_small_epsilon_stays_finite():
    scores = torch.tensor([[0.95, -0.9], [0.9, -1.0], [-1.0, -1.0]])  # exp(0.95 / 0.01) is beyond float32
    codes = sinkhorn(scores, 0.01, 3)
    torch.testing.assert_close(codes.sum(dim=1), torch.ones(3))
    again = sinkhorn(torch.cat([scores, torch.ones(1, 2)]), 0.01, 3, torch.tensor([1.0, 1.0, 1.0, 0.0]))
    torch.testing.assert_close(again[:3], codes)


# ---- the loss


@pytest.mark.parametrize("local", [0, 3])
def test_the_loss_is_that_of_lightly(local):
    from lightly.loss import SwaVLoss

    objective, batch = built(), some_batch(local=local)
    scores = list(objective.prototypes(projections(objective, batch).flatten(0, 1)).unflatten(0, (2 + local, -1)))
    found = objective(batch, at(0.5))["loss"]
    torch.testing.assert_close(found, SwaVLoss()(scores[:2], scores[2:])[0], atol=1e-5, rtol=1e-5)


def test_the_loss_with_a_full_queue_is_that_of_lightly():
    from lightly.loss import SwaVLoss

    objective = built(queue=20, queue_fraction=0.25)
    for step in range(2):
        objective(some_batch(seed=step), at(0))
    batch = some_batch(seed=2)
    scores = list(objective.prototypes(projections(objective, batch).flatten(0, 1)).unflatten(0, (4, -1)))
    queued = [objective.prototypes(objective.queue[view].clone()) for view in range(2)]
    with_queue = SwaVLoss()(scores[:2], scores[2:], queued)[0]
    without = SwaVLoss()(scores[:2], scores[2:])[0]
    assert not torch.allclose(with_queue, without, atol=1e-3)
    saved = objective.queue.clone()
    torch.testing.assert_close(objective(batch, at(0.2))["loss"], without, atol=1e-5, rtol=1e-5)  # too early
    objective.queue.copy_(saved)
    torch.testing.assert_close(objective(batch, at(0.25))["loss"], with_queue, atol=1e-5, rtol=1e-5)


def test_the_queue_holds_the_newest_first():
    objective = built(queue=24)
    batches = [some_batch(seed=step) for step in range(3)]
    seen = [projections(objective, batch) for batch in batches]
    address = objective.queue.data_ptr()
    objective(batches[0], at(0))
    torch.testing.assert_close(objective.queue[:, :10], seen[0][:2])
    assert not objective.queue[:, 10:].any()
    for batch in batches[1:]:
        objective(batch, at(0))
    expected = torch.cat([seen[2][:2], seen[1][:2], seen[0][:2, :4]], dim=1)
    torch.testing.assert_close(objective.queue, expected)
    assert objective.queue.data_ptr() == address
    assert "queue" in objective.state_dict()


def test_a_queue_that_is_not_full_yet_counts_as_far_as_it_goes():
    objective, batch = built(queue=30, queue_fraction=0.0), some_batch(seed=5)
    first = objective(batch, at(0.5))["loss"]
    plain = built()(batch, at(0.5))["loss"]
    torch.testing.assert_close(first, plain)  # it was empty
    kept = objective.queue.clone()
    with_some = objective(batch, at(0.5))["loss"]
    shorter = built(queue=10, queue_fraction=0.0)
    shorter.queue.copy_(kept[:, :10])
    torch.testing.assert_close(shorter(batch, at(0.5))["loss"], with_some)


def test_codes_have_no_gradient():
    objective, batch = built(), some_batch()
    both = projections(objective, batch)[:2]
    scores = objective.prototypes(both.flatten(0, 1)).unflatten(0, (2, -1))
    assert scores.requires_grad
    assert not objective.codes(scores, both, at(0.5)).requires_grad


def test_prototypes_are_frozen_at_first():
    objective = built(freeze_fraction=0.1)
    for progress, moves in ((0.0, False), (0.09, False), (0.1, True)):
        objective.zero_grad()
        objective(some_batch(), at(progress))["loss"].backward()
        assert bool(objective.prototypes.weight.grad.any()) == moves
        assert objective.projector[0].weight.grad.any()


def test_bf16_keeps_the_loss_near_that_in_float32():
    objective, batch = built(queue=20), some_batch()
    plain = objective(batch, at(0.5))["loss"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = objective(batch, at(0.0))["loss"]
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(plain.item(), rel=0.03)


def test_a_collapse_is_noticed():
    objective = built()
    with torch.no_grad():
        objective.encoder.norm.weight.zero_()
        objective.encoder.norm.bias.fill_(0.5)
    found = objective(some_batch(), at(0.5))
    said = objective.concern({name: value.item() for name, value in found.items()})
    assert "almost the same features" in said
    assert "try 0.03" in said


def test_codes_that_say_nothing_are_noticed(tmp_path, capsys):
    recipe = few_crops(shrunk(cifar10_swav(), steps=3), prototypes=16, epsilon=10.0)
    vitreous.train(replace(recipe, training=replace(recipe.training, log_every_steps=1)), tmp_path, read_test=False)
    said = capsys.readouterr().err
    assert said.count("the codes collapse: they are even over all prototypes (entropy 2.77 of at most 2.77)") == 1
    assert "try 0.03" in said


def test_a_healthy_run_raises_no_concern(tmp_path, capsys):
    recipe = few_crops(shrunk(cifar10_swav(), steps=20), prototypes=32)
    vitreous.train(replace(recipe, training=replace(recipe.training, log_every_steps=1)), tmp_path, read_test=False)
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prototypes": 0}, "prototypes is 0: it must be at least 1"),
        ({"epsilon": 0.0}, "epsilon is 0.0: it must be above 0"),
        ({"queue_fraction": 2.0}, "queue_fraction is 2.0: it must be between 0 and 1"),
        ({"queue": -1}, "queue is -1"),
    ],
)
def test_wrong_settings(options, said):
    with pytest.raises(UserError, match=said):
        built(**options)


def test_a_queue_shorter_than_a_batch_is_refused():
    with pytest.raises(UserError, match=r"queue is 8, less than the 10 pictures of a batch: give --objective\.queue"):
        built(queue=8)(some_batch(), at(0))


def test_batches_cannot_be_cut():
    assert built().across_samples
