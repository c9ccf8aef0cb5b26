"""Encoders other than a plain ViT: objectives that hide no tokens take them, and the others refuse in one line."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from test_conformance import MODELS
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.objectives.byol import BYOLSettings
from vitreous.objectives.dino import DINOSettings
from vitreous.objectives.igpt import NextPixelSettings
from vitreous.objectives.mae import MAESettings
from vitreous.objectives.masked import MaskedSettings
from vitreous.objectives.moco import MoCoV3Settings
from vitreous.objectives.simclr import SimCLRSettings
from vitreous.objectives.swav import SwAVSettings
from vitreous.tasks.classify import ClassifySettings
from vitreous.tasks.distill import DistillSettings
from vitreous.tasks.matching import FunctionMatchingSettings

FAMILIES = ("swin", "convnext", "pvt-v1", "pvt-v2-linear", "bit-small")
TAKES = {
    "classify": ClassifySettings(),
    "simclr": SimCLRSettings(hidden=16, out=8),
    "mocov3": MoCoV3Settings(hidden=16, out=8),
    "byol": BYOLSettings(hidden=16, out=8),
    "dino": DINOSettings(hidden=16, bottleneck=8, prototypes=12),
    "swav": SwAVSettings(prototypes=6, hidden=16, projection=8),
}
REFUSES = {"masked": MaskedSettings(), "mae": MAESettings(), "igpt": NextPixelSettings()}


def encoder(name):
    torch.manual_seed(0)
    return replace(MODELS[name], picture_px=(32, 32)).build()


def batch(num=6):
    generator = torch.Generator().manual_seed(0)
    sides = (32, 32, 16)  # small crops too, which multi-crop shows
    views = tuple(torch.randn(num, 3, side, side, generator=generator) for side in sides)
    label = torch.arange(num) % 3
    return Batch(views=views, targets={"label": label}, ids=torch.arange(num), keys=torch.arange(num))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("objective", TAKES)
def test_it_learns(family, objective):
    built = TAKES[objective].build(encoder(family), ("a", "b", "c")).train()
    shown = batch()
    shown = replace(shown, views=shown.views[: {"classify": 1, "dino": 3, "swav": 3}.get(objective, 2)])
    loss = built(shown, torch.tensor(0.1))["loss"]
    loss.backward()
    moved = [parameter for parameter in built.learner.parameters() if parameter.grad is not None]
    assert loss.isfinite() and all(parameter.grad.isfinite().all() for parameter in moved)
    # A head of zeros lets nothing through in the first step; all others reach the network.
    assert objective == "classify" or any(parameter.grad.any() for parameter in moved)


@pytest.mark.parametrize("family", ["convnext", "pvt-v1", "pvt-v2"])
def test_crops_that_are_too_small_are_one_clear_line(family):
    torch.manual_seed(0)
    built = TAKES["dino"].build(replace(MODELS[family], picture_px=(32, 32), patch=16).build(), ())
    with pytest.raises(UserError, match=r"a picture of 16 x 16 is too small: .* choose larger pictures"):
        built(batch(), torch.tensor(0.1))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "settings", [DistillSettings(student=ClassifySettings()), FunctionMatchingSettings()], ids=["distill", "matching"]
)
def test_it_learns_from_a_teacher(family, settings):
    teacher = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3)).requires_grad_(False)
    built, shown = settings.build(encoder(family), ("a", "b", "c"), teacher).train(), batch()
    losses = built(replace(shown, views=shown.views[:1]), torch.tensor(0.1))
    losses["loss"].backward()
    assert all(number.isfinite() for number in losses.values())
    assert any(p.grad is not None for p in built.learner.stages()[0].parameters())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("objective", REFUSES)
def test_it_is_refused_in_one_line(family, objective):
    with pytest.raises(UserError) as error:
        REFUSES[objective].build(encoder(family), ())
    assert "\n" not in str(error.value)
