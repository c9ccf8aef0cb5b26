import math
from dataclasses import replace

import pytest
import torch

import vitreous
from promises import keep_promises, shrunk
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.objectives.dino import DINOSettings, Head
from vitreous.recipes.contrastive import mocov3_imagenet
from vitreous.recipes.multicrop import cifar10_dino, dino_imagenet

SMALL = ViTSettings(picture_px=(16, 16), patch=4, width=16, depth=1, heads=2)
SETTINGS = DINOSettings(prototypes=24, hidden=32, bottleneck=8)


def built(**options):
    torch.manual_seed(0)
    return replace(SETTINGS, **options).build(SMALL.build(), ())


def some_batch(num=6, local=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sides = (16, 16, *(8,) * local)
    views = tuple(torch.randn(num, 3, side, side, generator=generator) for side in sides)
    ids = torch.arange(num)
    return Batch(views=views, targets={}, ids=ids, keys=ids)


def at(progress):
    return torch.tensor(float(progress))


def scores(objective, batch):
    """What student and teacher say, view by view."""
    student = [objective.student.head(objective.student.encoder.features(view).pooled) for view in batch.views]
    return student, [objective.teacher(view) for view in batch.views[:2]]


def few_crops(recipe, **objective):
    """A recipe with a small head and one small crop of each picture."""
    second, local = recipe.more_views
    return replace(
        recipe,
        objective=replace(recipe.objective, prototypes=64, hidden=64, bottleneck=32, **objective),
        more_views=(second, replace(local, times=1, size_px=(14, 14))),
    )


def test_promises(tmp_path):
    recipe = few_crops(shrunk(cifar10_dino(), steps=50))
    # The centre makes the targets softer as it settles, so the loss may rise: what must fall is the divergence.
    rows = keep_promises(recipe, tmp_path, falls_to=1.5)
    assert rows[-1]["teacher_kl"] < 0.5 * rows[0]["teacher_kl"]


@pytest.mark.parametrize("local", [0, 3])
def test_loss_and_centre_are_those_of_lightly(local):
    from lightly.loss import DINOLoss

    objective = built(teacher_temperature_start=0.05, teacher_temperature=0.05)
    peer = DINOLoss(output_dim=24, teacher_temp=0.05, warmup_teacher_temp=0.05)
    for step in range(4):  # from the second one on, the centre counts
        batch = some_batch(local=local, seed=step)
        student, teacher = scores(objective, batch)
        found = objective(batch, at(0.5))["loss"]
        torch.testing.assert_close(found, peer(teacher, student), atol=1e-5, rtol=1e-5)
        objective.after_step(at(0.5))
        torch.testing.assert_close(objective.centre, peer.center.flatten(), atol=1e-6, rtol=1e-5)
    assert objective.centre.abs().max() > 0.01


def test_parts_of_a_batch_move_the_centre_as_the_whole():
    batch = some_batch(6)
    whole, parts = built(), built()
    whole(batch, at(0))
    for part in batch.parts(3):
        parts(part, at(0))
    for objective in (whole, parts):
        objective.after_step(at(0))
        assert objective.num_parts == 0
    torch.testing.assert_close(whole.centre, parts.centre)


def test_what_remains_is_the_teacher_and_the_student_learns():
    objective = built()
    assert objective.encoder is objective.teacher.module.encoder
    assert objective.learner is objective.student.encoder
    assert objective.encoder is not objective.learner
    objective(some_batch(), at(0.5))["loss"].backward()
    assert all(p.grad is None for p in objective.teacher.parameters())
    assert all(p.grad is not None for p in objective.student.parameters())


def test_the_teacher_follows_by_the_ramp():
    objective = built(momentum=0.9)
    before = objective.encoder.norm.bias.clone()
    with torch.no_grad():
        objective.learner.norm.bias += 1
    objective(some_batch(), at(0.5))
    objective.after_step(at(0.5))  # halfway between 0.9 and 1
    torch.testing.assert_close(objective.encoder.norm.bias, before + 0.05)
    objective(some_batch(), at(1))
    objective.after_step(at(1))
    torch.testing.assert_close(objective.encoder.norm.bias, before + 0.05)


def test_the_temperature_rises_and_stays():
    objective = built(temperature_fraction=0.2)
    found = [float(objective.temperature(at(progress))) for progress in (0, 0.1, 0.2, 1)]
    assert found == pytest.approx([0.04, 0.055, 0.07, 0.07])
    at_once = built(temperature_fraction=0.0)
    assert float(at_once.temperature(at(0.001))) == pytest.approx(0.07)


def test_the_last_layer_is_frozen_at_first():
    objective = built(freeze_fraction=0.1)
    for progress, moves in ((0.0, False), (0.09, False), (0.11, True)):
        objective.zero_grad()
        objective(some_batch(), at(progress))["loss"].backward()
        assert bool(objective.student.head.prototypes.weight.grad.any()) == moves
        assert objective.student.head.layers[0].weight.grad.any()


def test_the_head_is_that_of_the_paper():
    head = Head(384, 2048, 256, 1000)
    count = 384 * 2048 + 2048 + 2048 * 2048 + 2048 + 2048 * 256 + 256 + 1000 * 256
    assert sum(p.numel() for p in head.parameters()) == count
    found = head(torch.randn(4, 384))
    assert found.abs().max() <= 1  # both sides have length 1
    assert DINOSettings().prototypes == 65_536


def test_bf16_keeps_the_loss_near_that_in_float32():
    objective, batch = built(), some_batch()
    plain = objective(batch, at(0.5))["loss"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = objective(batch, at(0.5))["loss"]
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(plain.item(), rel=0.02)


# ---- collapse


def concern(objective, batch=None):
    for _ in range(3):
        found = objective(batch or some_batch(), at(0.5))
        objective.after_step(at(1))
    return objective.concern({name: value.item() for name, value in found.items()})


def test_a_healthy_start_raises_no_concern():
    objective = built()
    found = {name: value.item() for name, value in objective(some_batch(), at(0.5)).items()}
    assert objective.concern(found | {"feature_rank": 5.0}) is None


def test_even_answers_are_told():
    objective = built()
    with torch.no_grad():
        objective.teacher.module.head.prototypes.weight.fill_(1.0)  # every prototype is the same
    said = concern(objective)
    assert "even over all prototypes" in said
    assert f"of at most {math.log(24):.2f}" in said
    assert "\n" not in said


def test_one_answer_for_all_is_told():
    objective = built(centre_momentum=1.0)  # without centring
    with torch.no_grad():
        last, prototypes = objective.teacher.module.head.layers[-1], objective.teacher.module.head.prototypes.weight
        last.weight.zero_()
        last.bias.copy_(prototypes[3])
        prototypes.copy_(-last.bias.expand_as(prototypes))
        prototypes[3] *= -1
    found = objective(some_batch(), at(0.5))
    assert float(found["teacher_entropy"]) < 0.1
    assert float(found["prototypes_used"]) == pytest.approx(1, abs=0.1)
    assert "nearly all pictures the same prototype" in concern(objective)


def test_equal_features_are_told():
    objective = built()
    with torch.no_grad():
        objective.learner.norm.weight.zero_()
        objective.learner.norm.bias.fill_(0.5)
    assert "the features are collapsing" in concern(objective)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"teacher_entropy": math.log(24)}, None),  # those of random weights are even too
        ({"prototypes_used": 1.1}, "nearly all pictures the same prototype"),
        ({"feature_std": 0.01}, "almost the same features"),
        ({"feature_rank": 1.1}, "the features use only 1.1 directions"),
    ],
)
def test_only_even_answers_are_not_told_while_the_temperature_rises(numbers, said):
    objective = built(temperature_fraction=1.0)
    found = {name: value.item() for name, value in objective(some_batch(), at(0.99)).items()}
    told = objective.concern(found | {"feature_rank": 5.0} | numbers)
    assert told is None if said is None else said in told


def test_a_healthy_run_is_not_told_of_anything_while_the_temperature_rises(tmp_path, capsys):
    recipe = few_crops(shrunk(cifar10_dino(), steps=20), teacher_temperature=0.07, temperature_fraction=1.0)
    vitreous.train(replace(recipe, training=replace(recipe.training, log_every_steps=1)), tmp_path, read_test=False)
    assert "warning" not in capsys.readouterr().err


def test_entropy_and_divergence_make_up_the_loss():
    objective, batch = built(), some_batch()
    found = objective(batch, at(0.5))
    _, teacher = scores(objective, batch)
    shares = (torch.cat(teacher) / 0.07).softmax(-1)
    by_hand = -(shares * shares.log()).sum(-1).mean()
    torch.testing.assert_close(found["teacher_entropy"], by_hand)
    torch.testing.assert_close(found["teacher_kl"] + found["teacher_entropy"], found["loss"].detach())
    assert found["teacher_kl"] > 0


# ---- settings and recipes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prototypes": 0}, "prototypes is 0: it must be at least 1"),
        ({"teacher_temperature": 0.0}, "teacher_temperature is 0.0: it must be above 0"),
        ({"momentum": 1.5}, "momentum is 1.5: it must be between 0 and 1"),
        ({"freeze_fraction": -0.1}, "freeze_fraction is -0.1"),
    ],
)
def test_wrong_settings(options, said):
    with pytest.raises(UserError, match=said):
        built(**options)


def test_views_of_the_cifar10_recipe():
    recipe = cifar10_dino(local_crops=3)
    assert recipe.augmentation.crop.scale == (0.3, 1.0)
    assert recipe.augmentation.colour.solarize == 0
    second, local = recipe.more_views
    assert (second.augmentation.crop.scale, second.augmentation.colour.solarize, second.size_px) == (
        (0.3, 1.0),
        0.2,
        None,
    )
    assert (local.times, local.size_px, local.augmentation.crop.scale) == (3, (16, 16), (0.08, 0.3))
    with pytest.raises(UserError, match="times is -1"):
        cifar10_dino(local_crops=-1)


def test_numbers_of_the_paper():
    recipe = dino_imagenet(epochs=300)
    assert (recipe.optimizer.lr, recipe.optimizer.weight_decay, recipe.training.batch_size) == (0.002, 0.04, 1024)
    assert recipe.objective == DINOSettings(temperature_fraction=0.1, freeze_fraction=1 / 300)
    assert [(one.times, one.size_px) for one in recipe.more_views] == [(1, None), (10, (96, 96))]
    assert [one.augmentation.colour.blur for one in recipe.more_views] == [0.1, 0.5]
    assert (recipe.model.width, recipe.model.ends.resizing) == (384, "bicubic")
    assert dino_imagenet(epochs=5).objective.temperature_fraction == 1
    for shortest in (dino_imagenet(epochs=0), mocov3_imagenet(epochs=0)):
        assert shortest.schedule.warmup_fraction == 1
