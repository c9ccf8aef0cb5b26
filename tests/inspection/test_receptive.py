"""Receptive fields by finite differences, and of networks whose field is known."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitreous import keys as K
from vitreous.display.figures import svg
from vitreous.errors import UserError
from vitreous.inspection import receptive
from vitreous.inspection.receptive import ReceptiveField, receptive_fields
from vitreous.inspection.receptive_figures import receptive_figure
from vitreous.models import (
    ConvNeXtSettings,
    IGPTSettings,
    PixelsSettings,
    PVTSettings,
    ResNetSettings,
    SwinSettings,
    ViTSettings,
)
from vitreous.models.base import Encoder, Features

PVT = {"widths": (4, 8), "depths": (1, 1), "heads": (1, 2), "mlp_factors": (2, 2), "reductions": (2, 1)}
FAMILIES = {
    "vit": ViTSettings(picture_px=(16, 16), patch=4, width=8, depth=4, heads=2),
    "swin": SwinSettings(picture_px=(16, 16), patch=2, width=4, depths=(1, 2), heads=(1, 2), window=2),
    "pvt": PVTSettings(picture_px=(16, 16), **PVT),
    "convnext": ConvNeXtSettings(picture_px=(16, 16), widths=(4, 8), depths=(1, 1), layer_scale=1.0),
    "bit": ResNetSettings(picture_px=(16, 16), depths=(1, 1), base_width=8, root="small"),
}


def built(settings):
    torch.manual_seed(0)
    encoder = settings.build().double().eval()
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.3)
    return encoder


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_to_finite_differences(family):
    encoder = built(FAMILIES[family])
    image = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    found = receptive_fields(encoder, image).fields
    step = 1e-5
    moved = torch.eye(3 * 16 * 16, dtype=torch.float64).view(-1, 3, 16, 16) * step
    with torch.no_grad():
        after, before = (encoder.depth_maps(image + sign * moved) for sign in (1, -1))
    for field in found:
        row, column = field.cell
        slopes = (after[field.name] - before[field.name])[:, :, row, column] / (2 * step)  # (pixels, D)
        keys = K.sample_keys(0, 0, torch.arange(1))
        signs = (K.uniform(keys, f"receptive.{field.name}", slopes.shape[1]) < 0.5) * 2.0 - 1
        energy = (slopes @ signs[0].double()).view(3, 16, 16).square().sum(dim=0).sqrt()
        torch.testing.assert_close(field.field, energy / energy.max(), atol=1e-5, rtol=0)
    assert len(found) == (4 if family == "vit" else 2)


class OneConvolution(Encoder):
    """A depthwise 7 x 7 convolution, and a second one on every second place of it."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Conv2d(3, 3, 7, padding=3, groups=3, stride=n) for n in (1, 2))
        self.picture_px, self.channels = (32, 40), 3

    def features(self, images):
        first = self.first(images)
        return Features(maps=(first, self.second(first)), prefix=None, pooled=first.mean(dim=(2, 3)))


def test_a_convolution_sees_its_kernel():
    torch.manual_seed(0)
    encoder = OneConvolution()
    first, second = receptive_fields(encoder, torch.randn(2, 3, 32, 40)).fields
    seen = first.field.nonzero()
    assert seen.min(dim=0).values.tolist() == [13, 17] and seen.max(dim=0).values.tolist() == [19, 23]  # around 16, 20
    seen = second.field.nonzero()
    assert seen.min(dim=0).values.tolist() == [10, 14] and seen.max(dim=0).values.tolist() == [22, 26]  # 13 x 13
    kernel = encoder.first.weight.detach().square().sum(dim=(0, 1)).sqrt()
    torch.testing.assert_close(first.field[13:20, 17:24].float(), kernel / kernel.max())


def test_more_pictures_come_nearer_to_the_whole_jacobian():
    """Signs are drawn, one set per picture: on the average, the squares of all channels are added up."""
    encoder = built(FAMILIES["convnext"])
    image = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    jacobian = torch.func.jacrev(lambda pixels: encoder.depth_maps(pixels)["stage 2"][0, :, 1, 1])(image)
    energy = jacobian.square().sum(dim=(0, 1, 2)).sqrt()
    found = receptive_fields(encoder, image.expand(400, -1, -1, -1), num=400).fields[1].field
    assert F.cosine_similarity(found.flatten(), energy.flatten(), dim=0) > 0.99


def test_how_wide():
    field = torch.zeros(20, 30, dtype=torch.float64)
    field[8:12, 13:17] = 1.0  # around (10, 15)
    one = ReceptiveField(name="stage 1", cell=(0, 0), field=field)
    assert one.centre_px == (10, 15) and one.side_px(1.0) == 4 and one.side_px(0.25) == 2
    faint = replace(one, field=field.where(field > 0, 1e-3))  # everywhere: the centre stays, and most is still inside
    assert faint.centre_px == pytest.approx((10, 15), abs=0.01) and faint.side_px(0.9) == 4


def test_batches_and_the_model_left_as_it_was(monkeypatch):
    encoder = built(FAMILIES["swin"]).train()
    images = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    whole = receptive_fields(encoder, images).fields[1].field
    monkeypatch.setattr(receptive, "BATCH_SIZE", 2)
    with torch.inference_mode():
        parts = receptive_fields(encoder, images).fields[1].field
    torch.testing.assert_close(parts, whole)
    assert encoder.training and all(parameter.grad is None for parameter in encoder.parameters())


def test_what_has_none():
    words = IGPTSettings(picture_px=(4, 4), width=8, depth=2, heads=2, clusters=4).build()
    with pytest.raises(UserError, match="no gradient reaches its pixels"):
        receptive_fields(words, torch.randn(1, 3, 4, 4))
    with pytest.raises(UserError, match="no pictures"):
        receptive_fields(words, torch.randn(0, 3, 4, 4))
    (itself,) = receptive_fields(PixelsSettings(picture_px=(8, 8), grid=(4, 4)).build(), torch.randn(2, 3, 8, 8)).fields
    assert itself.field.nonzero().tolist() == [[4, 4], [4, 5], [5, 4], [5, 5]]  # a cell of 2 x 2 px


def test_models_side_by_side():
    torch.manual_seed(0)
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    fields = {name: receptive_fields(built(FAMILIES[name]), images) for name in ("vit", "convnext")}
    text = svg(receptive_figure(fields | {"words": "no gradient reaches its pixels"}))
    assert all(word in text for word in ("vit", "layer 3: ", "stage 2: ", "over 2 pictures"))
    assert "No gradient reaches its pixels" in text.replace("\n", " ")
