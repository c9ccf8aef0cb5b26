"""BiT: parameter counts, and the cuts for small pictures. tests/weights holds it against its peers."""

import pytest
import torch

from vitreous import settings
from vitreous.errors import UserError
from vitreous.models import ResNetSettings, ResNetStem


def test_maps_of_the_stages():
    bit = ResNetSettings(picture_px=(64, 96), depths=(1, 1, 1, 1), base_width=8)
    features = bit.build()(torch.randn(1, 3, 64, 96))
    shapes = [tuple(m.shape[1:]) for m in features.maps]
    assert shapes == [(32, 16, 24), (64, 8, 12), (128, 4, 6), (256, 2, 3)]
    torch.testing.assert_close(features.pooled, features.maps[-1].mean(dim=(2, 3)))
    assert features.maps[-1].min() >= 0  # normed and rectified


def test_small_root_keeps_the_size():
    bit = ResNetSettings(picture_px=(8, 8), depths=(1, 2), base_width=8, root="small")
    assert [m.shape[-1] for m in bit.build()(torch.randn(1, 3, 8, 8)).maps] == [8, 4]


def test_a_stage_needs_units():
    with pytest.raises(UserError, match="at least one unit"):
        ResNetSettings(depths=(1, 0)).build()


@pytest.mark.parametrize("kind", [ResNetSettings, ResNetStem])
def test_settings_from_before_there_were_two_standardisations_keep_theirs(kind):
    stored = settings.to_json(kind())
    assert stored.pop("standardisation") == "variance"
    assert settings.from_json(kind, stored, where="model.json") == kind(standardisation="variance")
