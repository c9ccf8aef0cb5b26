"""Everything at once, for every kind of encoder, and its figures."""

from dataclasses import fields

import numpy as np
import pytest
import torch

from vitreous.display.figures import save, svg
from vitreous.errors import UserError
from vitreous.inspection.attention import attention
from vitreous.inspection.figures import (
    attention_figure,
    biases_figure,
    distances_figure,
    figures,
    filters_figure,
    positions_figure,
)
from vitreous.inspection.findings import Look, look_inside
from vitreous.inspection.rollout import rollout
from vitreous.models import (
    ConvNeXtSettings,
    ConvStem,
    IGPTSettings,
    PixelsSettings,
    PVTSettings,
    ResNetSettings,
    SwinSettings,
    ViTSettings,
)

TINY = {"picture_px": (16, 24), "patch": 8, "width": 16, "depth": 2, "heads": 2}
ATTENDED = ["figure7", "figure6", "layers", "heads", "receptive"]
STEM = ConvStem(widths=(8,), strides=(4,), residuals=(0,))


def tiny(**changes):
    torch.manual_seed(0)
    encoder = ViTSettings.of(**TINY | changes).build().eval()
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return encoder, torch.randn(4, 3, 16, 24)


def test_what_is_found():
    encoder, images = tiny()
    found = look_inside(encoder, images, num_shown=3)
    torch.testing.assert_close(found.attention.maps, rollout(encoder, images[:3])[:, 1:].reshape(3, 2, 3))
    torch.testing.assert_close(found.attention.heads[1], attention(encoder, images[:3]).maps(2)[:, :, 0])
    arrays = found.arrays()
    assert found.distances.num_pictures == 4 and arrays["heads"].shape == (3, 2, 2, 2, 3)
    assert arrays["distances_px"].shape == (4, 2, 2) and arrays["grid"].tolist() == [2, 3]
    assert "offset_biases" not in arrays and all(isinstance(one, np.ndarray) for one in arrays.values())


def test_looks():
    encoder, images = tiny(num_prefix=2)
    maps = attention(encoder, images, rows=[4])
    raw = look_inside(encoder, images, Look(token=(0, 2), method="raw", layer=1, head=2))
    torch.testing.assert_close(raw.attention.maps, maps.maps(1)[:, 1, 0])
    mean = look_inside(encoder, images, Look(token=(0, 2), method="raw"))
    torch.testing.assert_close(mean.attention.maps, maps.maps(2)[:, :, 0].mean(dim=1))
    product = look_inside(encoder, images, Look(token=1, method="product"))
    torch.testing.assert_close(product.attention.maps.flatten(1), rollout(encoder, images, 1, residual=False)[:, 2:])
    assert raw.attention.title == "patch (0, 2), layer 1, head 2"
    assert mean.attention.title == "patch (0, 2), layer 2, mean of heads"
    assert look_inside(encoder, images).attention.title == "class token, rollout through 2 layers"
    assert product.attention.title == "prefix token 1, plain product of 2 layers"
    for look, message in ((Look(method="raw", head=3), "no head 3"), (Look(method="raw", layer=5), "no layer 5")):
        with pytest.raises(UserError, match=message):
            look_inside(encoder, images, look)
    with pytest.raises(UserError, match="no pictures"):
        look_inside(encoder, images[:0])


KINDS = {
    "plain": {},
    "mean": {"pool": "mean", "num_prefix": 0, "positions": "sincos"},
    "bias": {"positions": "bias"},
    "relative": {"positions": "relative", "num_registers": 2},
    "hybrid": {"stem": STEM, "patch": 2},
    "one patch": {"patch": (16, 24)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_figures(kind, tmp_path):
    encoder, images = tiny(**KINDS[kind])
    found = look_inside(encoder, images)
    pictures = [np.full((16, 24, 3), 80 * number, dtype=np.uint8) for number in range(4)]
    captions = ["a $x_$ b", "<script>", "a long, long, long, long caption of a picture", ""]
    drawn = figures(found, pictures, captions)
    assert list(drawn) == ATTENDED
    text = svg(drawn["figure6"]) + svg(drawn["figure7"])
    assert "a $x_$ b" in text and "<script>" not in text and "&lt;script&gt;" in text
    long = captions[2]
    alone = svg(attention_figure(pictures[:1], torch.ones(1, 2, 3), [long]))
    assert long not in text and long in alone, "one picture is drawn larger, and has room for more"
    reasons = {
        "bias": "Position biases",
        "relative": "embeddings of offsets",
        "hybrid": "cut from a",
        "one patch": "single patch",
    }
    assert reasons.get(kind, "cosine similarity") in text
    if kind == "plain":
        for name, one in drawn.items():
            save(one, tmp_path / name)
        assert len(list(tmp_path.glob("*.png"))) == len(list(tmp_path.glob("*.svg"))) == 5


PVT = {"widths": (4, 8), "depths": (1, 1), "heads": (1, 2), "mlp_factors": (2, 2), "reductions": (2, 1)}
OTHERS = {  # settings; what there is to draw; what the report says of the rest
    "swin": (SwinSettings(patch=2, width=4, depths=(1, 2), heads=(1, 2), window=3), ATTENDED, "biases by offset"),
    "pvt v1": (PVTSettings(generation="v1", **PVT), ATTENDED, None),
    "pvt v2": (PVTSettings(**PVT), ATTENDED, "its convolutions mix neighbours"),
    "pvt linear": (PVTSettings(generation="v2-linear", **PVT), ATTENDED, "its convolutions mix neighbours"),
    "convnext": (ConvNeXtSettings(widths=(4, 8), depths=(1, 1)), ["figure7", "receptive"], "no attention over patches"),
    "bit": (ResNetSettings(depths=(1, 1), base_width=8), ["figure7", "receptive"], "no attention over patches"),
    "igpt": (IGPTSettings(width=8, depth=2, heads=2, clusters=4), ATTENDED[:-1], "no gradient reaches its pixels"),
    "pixels": (PixelsSettings(grid=(4, 6)), ["figure7", "receptive"], "no filters over pixels"),
}


@pytest.mark.parametrize("family", OTHERS)
def test_every_family_has_figures_or_a_line_that_says_why_not(family):
    settings, names, line = OTHERS[family]
    torch.manual_seed(0)
    encoder = settings.changed(picture_px=(16, 24)).build()
    found = look_inside(encoder, torch.randn(2, 3, 16, 24))
    drawn = figures(found, [np.zeros((16, 24, 3), np.uint8)] * 2, ["one", "two"])
    assert list(drawn) == names
    lines = [one for one in (getattr(found, part.name) for part in fields(found)) if isinstance(one, str)]
    assert (line is None and not lines) or any(line in one for one in lines)
    assert all("\n" not in one and one[0].islower() for one in lines)
    assert all(isinstance(one, np.ndarray) for one in found.arrays().values())


def test_panels_of_their_own():
    encoder, images = tiny(positions="bias")
    found = look_inside(encoder, images)
    assert "Filters of the first layer" in svg(filters_figure(found.filters))
    assert "over 4 pictures" in svg(distances_figure(found.distances))
    assert "Position biases" in svg(biases_figure(found.biases))
    assert "(offset_biases)" in svg(positions_figure(found.positions)).replace("\n", " ")
