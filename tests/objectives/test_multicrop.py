import copy
import os
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import vitreous
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.models.vit import EndSettings
from vitreous.objectives.multicrop import Prototypes, crossed, pooled
from vitreous.recipes.multicrop import cifar10_dino, cifar10_swav
from vitreous.settings import save
from vitreous.training.optim import SGDSettings
from vitreous.training.run import RunDirectory

SMALL = ViTSettings(picture_px=(24, 24), patch=4, width=16, depth=2, heads=2)


def encoder(**options):
    torch.manual_seed(0)
    built = SMALL.changed(**options).build()
    for p in built.parameters():  # a class token of zeros would hide much
        torch.nn.init.normal_(p, std=0.2)
    return built


# ---- crops of another size through one encoder


@pytest.mark.parametrize("resizing", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(12, 12), (8, 16), (32, 32)])
@pytest.mark.parametrize(
    "options",
    [
        {"positions": "learned"},
        {"positions": "sincos"},
        {"positions": "learned", "num_registers": 2, "pool": "mean"},
        {"positions": "learned", "ends": EndSettings(positions_where="every-layer")},
        {"positions": "none"},
    ],
)
def test_crops_are_seen_as_by_a_resized_encoder(options, size, resizing):
    ends = replace(options.get("ends", EndSettings()), resizing=resizing)
    whole = encoder(**options | {"ends": ends})
    resized = copy.deepcopy(whole)
    resized.resize(size)
    crops = torch.randn(2, 3, *size)
    a, b = whole.features(crops), resized(crops)
    torch.testing.assert_close(a.pooled, b.pooled)
    torch.testing.assert_close(a.maps[-1], b.maps[-1])
    torch.testing.assert_close(a.prefix, b.prefix)
    assert whole.picture_px == (24, 24)  # it is left as it was
    whole(torch.randn(1, 3, 24, 24))


def test_learned_positions_learn_from_small_crops():
    model = encoder(positions="learned")
    model.features(torch.randn(2, 3, 12, 12)).pooled.square().sum().backward()
    grad = model.positions.tables[0].table.grad
    assert grad[1:].abs().sum(dim=1).gt(0).float().mean() > 0.4  # from 6 x 6 to 3 x 3, each reads the nearest
    assert grad[0].abs().sum() > 0


@pytest.mark.parametrize("positions", ["relative", "bias", "bias-shared"])
def test_relative_positions_are_refused(positions):
    model = encoder(positions=positions)
    with pytest.raises(UserError, match="choose absolute positions for small crops") as caught:
        model.features(torch.randn(2, 3, 12, 12))
    assert "\n" not in str(caught.value)
    model.features(torch.randn(2, 3, 24, 24))


def test_crops_of_one_size_go_through_together(monkeypatch):
    model = encoder()
    views = [torch.randn(2, 3, side, side) for side in (24, 24, 12, 12, 12)]
    expected = torch.cat([model.features(view).pooled for view in views])
    seen, features = [], model.features
    monkeypatch.setattr(model, "features", lambda images: seen.append(tuple(images.shape)) or features(images))
    torch.testing.assert_close(pooled(model, views), expected)
    assert seen == [(4, 3, 24, 24), (6, 3, 12, 12)]


@pytest.mark.parametrize("sides", [(24,), (24, 12), (24, 12, 24)])
def test_two_global_crops_come_first(sides):
    with pytest.raises(UserError, match=r"views of a picture are 24 x 24.*--more_views"):
        pooled(encoder(), [torch.randn(2, 3, side, side) for side in sides])


def test_global_crops_have_the_model_s_size():
    with pytest.raises(UserError, match="for a model built for"):
        pooled(encoder(), [torch.randn(2, 3, 12, 12)] * 2)


# ---- prototypes


def test_prototypes_answer_cosines():
    torch.manual_seed(0)
    prototypes = Prototypes(5, 7)
    x = torch.randn(4, 5)
    expected = F.cosine_similarity(x[:, None], prototypes.weight[None], dim=-1)
    torch.testing.assert_close(prototypes(x), expected)
    with torch.no_grad():
        prototypes.weight *= 3.0
    torch.testing.assert_close(prototypes(x), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(prototypes(x), expected)  # not in bfloat16


def test_frozen_prototypes_let_the_gradient_through_to_the_features_alone():
    torch.manual_seed(0)
    prototypes, x = Prototypes(5, 7), torch.randn(4, 5, requires_grad=True)
    for frozen in (True, False):
        prototypes.weight.grad = x.grad = None
        answers = prototypes(x, torch.tensor(frozen))
        assert torch.equal(answers, prototypes(x))
        answers.square().sum().backward()
        assert (prototypes.weight.grad.abs().sum() == 0) == frozen
        assert x.grad.abs().sum() > 0


# ---- the loss between crops


def test_no_crop_is_compared_with_itself():
    """Every pair by hand: a global crop gives the target, another crop answers."""
    torch.manual_seed(0)
    targets, logits = torch.randn(2, 3, 5).softmax(-1), torch.randn(4, 3, 5, requires_grad=True)
    pairs = [(0, 1), (0, 2), (0, 3), (1, 0), (1, 2), (1, 3)]
    by_hand = [F.cross_entropy(logits[answer], targets[target]) for target, answer in pairs]
    torch.testing.assert_close(crossed(targets, logits), torch.stack(by_hand).mean())

    # Without small crops, a crop's own target has no part in the gradient of its answer.
    (grad,) = torch.autograd.grad(crossed(targets, logits[:2]), logits)
    expected = (logits[0].softmax(-1) - targets[1]) / (2 * 3)
    torch.testing.assert_close(grad[0], expected.detach())


# ---- ranks

RANK = """
import sys
from pathlib import Path
from vitreous import settings
from vitreous.jobs.train import train
from vitreous.recipes.recipe import Recipe
for path in sys.argv[1:]:
    train(settings.load(Recipe, Path(path + ".json")), path, read_test=False)
"""


def tiny(recipe, **objective):
    second, local = recipe.more_views
    return replace(
        recipe,
        data=replace(recipe.data, where="fashion", train_limit=100, val_fraction=0.01),
        model=replace(recipe.model, picture_px=(28, 28), patch=7, width=16, depth=1, heads=2),
        objective=replace(recipe.objective, prototypes=12, hidden=16, freeze_fraction=0.2, **objective),
        more_views=(second, replace(local, times=1, size_px=(14, 14))),
        optimizer=SGDSettings(lr=0.05),  # AdamW makes much of a rounding error where a gradient is small
        training=replace(
            recipe.training, steps=6, batch_size=20, precision="fp32", compile=False, log_every_steps=2, workers=0
        ),
    )


def test_two_ranks_equal_one(tmp_path):
    """Centre, codes over all ranks, queue and batch norm."""
    recipes = {
        "dino": tiny(
            cifar10_dino(), bottleneck=8, momentum=0.5, teacher_temperature=0.3, teacher_temperature_start=0.3
        ),
        "swav": tiny(cifar10_swav(), projection=8, queue=40, queue_fraction=0.4),
    }
    two = tmp_path / "two"
    two.mkdir()
    for name, recipe in recipes.items():
        save(recipe, two / f"{name}.json")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, *(str(two / name) for name in recipes)],
            env=shared | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the ranks: sums are rounded alike
    for name, recipe in recipes.items():
        vitreous.train(recipe, tmp_path / name, read_test=False)
    torch.set_num_threads(threads)
    said = [process.communicate(timeout=100)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    for name in recipes:
        alone, together = (
            RunDirectory(folder / name).latest_checkpoint().tensors["objective"] for folder in (tmp_path, two)
        )
        for key, value in alone.items():
            torch.testing.assert_close(together[key], value, atol=5e-4, rtol=1e-5)  # batch norm enlarges rounding
