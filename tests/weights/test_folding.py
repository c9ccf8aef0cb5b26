"""What is folded into the weights leaves the function as it was."""

from dataclasses import replace

import pytest
import torch
from peers import assert_close_relative, randomise

from vitreous.data.transforms import Preprocessing
from vitreous.models import ResNetSettings, ResNetStem, ViTSettings
from vitreous.tasks.classify import ClassifySettings
from vitreous.weights.calibration import ClassCalibration
from vitreous.weights.card import Card
from vitreous.weights.folding import (
    Folded,
    fold_epsilon,
    fold_normalisation,
    fold_standardisation,
    fold_temperature,
)
from vitreous.weights.trained import Trained

CLASSES = tuple("abc")
PLAIN = ViTSettings(picture_px=(8, 12), patch=4, width=16, depth=2, heads=2)


def made(model, task=None, **changes) -> Trained:
    """In float64, so that folding can be told from rounding."""
    task = task or ClassifySettings()
    built = task.build(model.build().double(), CLASSES).double()
    randomise(built)
    preprocessing = Preprocessing(size_px=model.picture_px)
    card = Card(model=model, task=task, classes=CLASSES, preprocessing=preprocessing)
    return Trained(replace(card, **changes), built.state_dict(), "made")


@torch.no_grad()
def logits(trained, images):
    task = trained.card.task.build(trained.card.model.build(), CLASSES).double().eval()
    task.load_state_dict(trained.weights)
    return task.predict(images).logits / trained.card.temperature


def same_function(before: Trained, folded: Folded, tolerance=1e-12) -> None:
    assert folded.notes and folded.card != before.card
    images = torch.randn(2, 3, *before.card.model.picture_px, dtype=torch.float64)
    after = replace(before, card=folded.card, weights=folded.weights)
    assert_close_relative(logits(after, images), logits(before, images), tolerance)
    unfolded = replace(before, card=folded.card)
    with pytest.raises(AssertionError):
        assert_close_relative(logits(unfolded, images), logits(before, images), tolerance)


@pytest.mark.parametrize("head", ["linear", "tanh", "distilled", "class-and-mean"])
def test_temperature(head):
    trained = made(
        replace(PLAIN, num_prefix=2), ClassifySettings(head=head), calibration=ClassCalibration(temperature=1.7)
    )
    same_function(trained, fold_temperature(Folded(trained.card, trained.weights)))


@pytest.mark.parametrize("epsilon", [1e-12, 1e-2])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layer_scale": 0.3, "num_registers": 2},
        {"pre_norm": True, "patch_bias": False},
        {"positions": "sincos", "mlp": "swiglu", "mlp_width": 24},
        {"pool": "mean", "num_prefix": 0, "pool_norm": "after"},
        {"positions": "bias", "attention_bias": "no-key"},
    ],
)
def test_epsilon(epsilon, changes):
    trained = made(PLAIN.changed(norm_epsilon=epsilon, **changes))
    there = replace(trained.card, model=trained.card.model.changed(norm_epsilon=1e-6))
    folded = fold_epsilon(Folded(trained.card, trained.weights), there)
    assert folded.card.model.block.norm_epsilon == 1e-6
    same_function(trained, folded, 1e-10)


def test_tokens_that_go_through_no_norm_are_left_as_they_are():
    trained = made(PLAIN.changed(pool_norm="after", norm_epsilon=1e-2))
    alone = replace(trained.card, task=None)
    there = replace(alone, model=alone.model.changed(norm_epsilon=1e-6))
    assert fold_epsilon(Folded(alone, trained.weights), there) == Folded(alone, trained.weights)


def test_normalisation():
    mean, std = (0.48, 0.45, 0.4), (0.23, 0.22, 0.3)
    trained = made(replace(PLAIN, patch=(2, 4)))
    trained = replace(
        trained, card=replace(trained.card, preprocessing=replace(trained.card.preprocessing, mean=mean, std=std))
    )
    there = replace(trained.card, preprocessing=Preprocessing(size_px=(8, 12)))
    folded = fold_normalisation(Folded(trained.card, trained.weights), there)
    pixels = torch.rand(2, 3, 8, 12, dtype=torch.float64)
    seen = [
        (pixels - torch.tensor(p.mean).double()[:, None, None]) / torch.tensor(p.std).double()[:, None, None]
        for p in (trained.card.preprocessing, folded.card.preprocessing)
    ]
    after = replace(trained, card=folded.card, weights=folded.weights)
    assert_close_relative(logits(after, seen[1]), logits(trained, seen[0]), 1e-6)  # means are float32 here
    assert folded.card.preprocessing.mean == (0.5, 0.5, 0.5)


KINDS = [("variance", 1e-8), ("variance", 1e-3), ("deviation", 1e-5), ("deviation", 1e-2)]


@pytest.mark.parametrize("after", KINDS)
@pytest.mark.parametrize("before", KINDS)
def test_standardisation(before, after):
    if before == after:
        return
    known = [dict(zip(("standardisation", "conv_epsilon"), kind, strict=True)) for kind in (before, after)]
    for model in (
        ResNetSettings(picture_px=(16, 16), depths=(1,), base_width=4, root="small", **known[0]),
        replace(PLAIN, picture_px=(16, 16), stem=ResNetStem(depths=(), base_width=64, **known[0])),
    ):
        trained = made(model)
        weights = {n: t * 0.01 if t.ndim == 4 else t for n, t in trained.weights.items()}  # so that epsilon tells
        trained = replace(trained, weights=weights)
        stem = known[1] if isinstance(model, ResNetSettings) else {"stem": replace(model.stem, **known[1])}
        there = replace(trained.card, model=model.changed(**stem))
        folded = fold_standardisation(Folded(trained.card, trained.weights), there)
        assert folded.card.model == there.model
        same_function(trained, folded, 1e-9)


def test_half_precision_is_not_rounded_again():
    trained = made(PLAIN, calibration=ClassCalibration(temperature=1.7))
    halves = {name: tensor.to(torch.bfloat16) for name, tensor in trained.weights.items()}
    folded = fold_temperature(Folded(trained.card, halves))
    assert folded.weights["head.weight"].dtype == torch.float32
    torch.testing.assert_close(folded.weights["head.weight"] * 1.7, halves["head.weight"].float())
