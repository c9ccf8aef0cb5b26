"""BiT: parameter counts, agreement with timm, and the cuts for small pictures."""

import pytest
import torch
from torch import nn

from vitreous.errors import UserError
from vitreous.models import ResNetSettings, model_settings
from vitreous.models.flops import num_parameters

COUNTS = {
    "bit_r50x1": 25_549_352,
    "bit_r101x1": 44_541_480,
    "bit_r50x3": 217_319_080,
    "bit_r152x2": 236_335_208,
    "bit_r152x4": 936_533_224,
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts(name):
    with torch.device("meta"):
        encoder = model_settings(name).build()
        head = nn.Linear(encoder.width, 1000)
    assert num_parameters(encoder) + num_parameters(head) == COUNTS[name]


def test_features_equal_timm():
    resnetv2 = pytest.importorskip("timm.models.resnetv2")
    torch.manual_seed(0)
    theirs = resnetv2.resnetv2_50x1_bit(num_classes=0).double().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (parameter.ndim == 1))
    encoder = model_settings("bit_r50x1", picture_px=(45, 64), conv_epsilon=1e-8).build().double().eval()
    state, rest = {}, theirs.state_dict()
    for name in encoder.state_dict():
        if name.startswith("norm."):
            other = name
        else:
            _, _, level, unit, last = name.split(".", 4)
            last = last.replace("project.", "downsample.conv.")
            other = f"stem.{last}" if level == "0" else f"stages.{int(level) - 1}.blocks.{unit}.{last}"
        state[name] = rest.pop(other)
    assert not rest
    encoder.load_state_dict(state)
    images = torch.randn(1, 3, 45, 64, dtype=torch.float64)
    with torch.no_grad():
        features = encoder(images)
        torch.testing.assert_close(features.maps[-1], theirs.forward_features(images), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(features.pooled, theirs(images), atol=1e-5, rtol=1e-5)


def test_maps_of_the_stages():
    settings = ResNetSettings(picture_px=(64, 96), depths=(1, 1, 1, 1), base_width=8)
    features = settings.build()(torch.randn(1, 3, 64, 96))
    shapes = [tuple(m.shape[1:]) for m in features.maps]
    assert shapes == [(32, 16, 24), (64, 8, 12), (128, 4, 6), (256, 2, 3)]
    torch.testing.assert_close(features.pooled, features.maps[-1].mean(dim=(2, 3)))
    assert features.maps[-1].min() >= 0  # normed and rectified


def test_small_root_keeps_the_size():
    settings = ResNetSettings(picture_px=(8, 8), depths=(1, 2), base_width=8, root="small")
    assert [m.shape[-1] for m in settings.build()(torch.randn(1, 3, 8, 8)).maps] == [8, 4]


def test_a_stage_needs_units():
    with pytest.raises(UserError, match="at least one unit"):
        ResNetSettings(depths=(1, 0)).build()
