"""Next-pixel prediction: the palette that k-means finds, the loss, and what every objective promises."""

import math
from dataclasses import replace

import pytest
import torch

import vitreous
from promises import keep_promises, shrunk
from vitreous import keys as K
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.jobs.train import train
from vitreous.models import IGPTSettings, ViTSettings
from vitreous.objectives.igpt import NextPixelSettings, found_colours
from vitreous.recipes import finetune_recipe
from vitreous.recipes.igpt import cifar10_igpt, igpt_imagenet
from vitreous.tasks.classify import ClassifySettings
from vitreous.weights.trained import Trained

TINY = IGPTSettings(picture_px=(4, 6), clusters=8, width=16, depth=2, heads=2)
HALFWAY = torch.tensor(0.5)


def batch_of(images):
    ids = torch.arange(len(images))
    return Batch(views=(images,), targets={}, ids=ids, keys=K.sample_keys(0, 0, ids))


def objective_of(settings=TINY, **changes):
    torch.manual_seed(0)
    return NextPixelSettings(**changes).build(settings.build(), ())


def pictures(num=12, colours=200):
    """Of few colours, some of them common."""
    generator = torch.Generator().manual_seed(3)
    there = torch.randn(colours, 3, generator=generator)
    chosen = (torch.rand(num, 4, 6, generator=generator).square() * colours).long()
    return there[chosen].permute(0, 3, 1, 2).contiguous()


# ---- the palette


def test_the_rounds_of_scikit_learn():
    cluster = pytest.importorskip("sklearn.cluster")
    pixels = pictures(200, colours=1500).permute(0, 2, 3, 1).reshape(-1, 3).double()
    start = found_colours(pixels, 32, rounds=0)
    assert len(start.unique(dim=0)) == 32
    theirs = cluster.KMeans(32, init=start.numpy(), n_init=1, max_iter=4, tol=0).fit(pixels.numpy())
    found = found_colours(pixels, 32, rounds=4)
    torch.testing.assert_close(found, torch.from_numpy(theirs.cluster_centers_), atol=1e-9, rtol=0)
    torch.testing.assert_close(found_colours(pixels.flip(0), 32, rounds=4), found)  # whatever their order


def test_every_colour_is_the_mean_of_its_pixels():
    pixels = pictures(50).permute(0, 2, 3, 1).reshape(-1, 3).double()
    found = found_colours(pixels, 6, rounds=100)
    near = torch.cdist(pixels, found).argmin(dim=1)
    for i, colour in enumerate(found):
        torch.testing.assert_close(pixels[near == i].mean(dim=0), colour)


def test_a_lost_colour_finds_new_pixels():
    """All but one pixel alike: whatever the start, a round later the odd one is found."""
    pixels = torch.zeros(500, 3)
    pixels[7] = torch.tensor([5.0, 5.0, 5.0])
    pixels[8:12] = torch.tensor([0.0, 0.1, 0.0])
    assert sorted(found_colours(pixels, 3, rounds=2).sum(dim=1).tolist()) == pytest.approx([0.0, 0.1, 15.0])


def test_fewer_colours_than_wanted_lose_nothing():
    images = pictures(colours=5)
    objective = objective_of()
    objective.look([batch_of(images)])
    encoder = objective.encoder
    assert encoder.palette.isfinite().all() and encoder.has_palette
    torch.testing.assert_close(encoder.paint(encoder.read(images), (4, 6)), images)


def test_looking_is_exact_in_any_batches_and_happens_once():
    images = pictures()
    whole, parts = objective_of(), objective_of()
    whole.look([batch_of(images)])
    batch = batch_of(images)
    parts.look(reversed(batch.parts(3)))
    torch.testing.assert_close(parts.encoder.palette, whole.encoder.palette, atol=1e-6, rtol=0)
    # A model that has its colours, from a trained one perhaps, keeps them.
    other = objective_of(replace(TINY, picture_px=(4, 6)))
    other.encoder.load_state_dict(whole.encoder.state_dict())
    other.look([batch_of(pictures() * 3 + 1)])
    assert torch.equal(other.encoder.palette, whole.encoder.palette)
    with pytest.raises(UserError, match="no training pictures"):
        objective_of().look([])


# ---- the loss


def test_the_loss_is_the_mean_surprise():
    objective = objective_of()
    batch = batch_of(pictures(3))
    objective.look([batch])
    losses = objective(batch, HALFWAY)
    words = objective.encoder.read(batch.images)
    chances = objective.encoder.logits(words).softmax(dim=-1).gather(2, words[..., None])
    torch.testing.assert_close(losses["loss"], -chances.log().mean())
    torch.testing.assert_close(losses["bits_per_dim"], -chances.log2().mean() / 3)
    assert not losses["bits_per_dim"].requires_grad


def test_it_begins_with_an_even_guess():
    objective = objective_of(replace(TINY, clusters=64, width=64))
    loss = objective(batch_of(pictures(3)), HALFWAY)["loss"].detach()
    assert abs(float(loss) - math.log(64)) < 0.1


def test_pictures_of_one_pattern_hold_no_surprise():
    objective = objective_of()
    batch = batch_of(pictures(1).expand(4, -1, -1, -1).contiguous())
    objective.look([batch])
    optimizer = torch.optim.Adam(objective.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        objective(batch, HALFWAY)["loss"].backward()
        optimizer.step()
    assert objective(batch, HALFWAY)["loss"] < 0.1


def test_bfloat16():
    objective = objective_of()
    batch = batch_of(pictures())
    exact = objective(batch, HALFWAY)["loss"]
    with torch.autocast("cpu", torch.bfloat16):
        rounded = objective(batch, HALFWAY)["loss"]
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, atol=0.02, rtol=0)


# ---- settings and recipes


def test_settings_that_cannot_be():
    vit = ViTSettings(picture_px=(8, 8), patch=4, width=16, depth=1, heads=2).build()
    with pytest.raises(UserError, match=r"a ViT does not read pixels one after the other.*--model\.kind IGPT"):
        NextPixelSettings().build(vit, ())
    for wrong in ({"palette_pixels": 0}, {"palette_rounds": 0}):
        with pytest.raises(UserError, match="it must be at least 1"):
            objective_of(**wrong)


def test_another_objective_has_no_use_for_colours_that_nobody_found(tmp_path):
    recipe = replace(shrunk(cifar10_igpt()), model=TINY, objective=ClassifySettings())
    with pytest.raises(UserError, match=r"a palette, and this one has none yet.*NextPixel.*\(--start\)") as error:
        train(recipe, tmp_path / "run")
    assert "\n" not in str(error.value)


def test_recipes():
    recipe = cifar10_igpt()
    assert recipe.preprocessing.size_px == (32, 32) and recipe.augmentation.crop.pad_px == 4
    assert cifar10_igpt(16).preprocessing.size_px == (16, 16) and cifar10_igpt(16).augmentation.crop.pad_px == 2
    paper = igpt_imagenet()
    assert (paper.training.steps, paper.training.batch_size, paper.optimizer.beta2) == (1_000_000, 128, 0.95)
    assert paper.model.picture_px == (32, 32) and paper.data.val_fraction == 0.04


def test_promises(tmp_path):
    recipe = shrunk(cifar10_igpt(), lr=5e-3)
    model = replace(recipe.model, picture_px=(7, 7), clusters=32, width=32, depth=2, heads=2)
    augmentation = replace(recipe.augmentation, crop=replace(recipe.augmentation.crop, pad_px=1))
    recipe = replace(recipe, model=model, augmentation=augmentation)
    rows = keep_promises(recipe, tmp_path, falls_to=0.9, finetune=False)
    assert rows[-1]["bits_per_dim"] == pytest.approx(rows[-1]["loss"] / math.log(2) / 3, rel=1e-5)
    # Fine-tuned at 28 px, as others are, it would read 784 tokens of 1,200 pictures.
    changes = {"training.steps": "2", "training.batch_size": "20", "data.train_limit": "80", "picture_px": "8"}
    tuned = finetune_recipe(str(tmp_path / "one"), "fashion", changes)
    assert "val" in vitreous.train(tuned, tmp_path / "tuned", read_test=False)
    # Of the one head and of the layers up to the features' alone: the words stand for the colours they stood for.
    before, after = (Trained.load(tmp_path / name) for name in ("one", "tuned"))
    assert torch.equal(before.weights["encoder.palette"], after.weights["encoder.palette"])
    assert not torch.equal(before.weights["encoder.words.weight"], after.weights["encoder.words.weight"])
    assert torch.equal(before.weights["encoder.norm.weight"], after.weights["encoder.norm.weight"])
