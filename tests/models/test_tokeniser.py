"""The tokeniser beyond what every encoder promises (tests/test_conformance.py)."""

import pytest
import torch

from vitreous.errors import UserError
from vitreous.models import TokeniserSettings, model_settings
from vitreous.models.flops import num_parameters
from vitreous.models.shapes import shapes_only

SMALL = {"picture_px": (16, 24), "stride": 4, "width": 16, "vocabulary": 10, "blocks": 1}


def small(**changes):
    torch.manual_seed(0)
    tokeniser = TokeniserSettings(**(SMALL | changes)).build()
    with torch.no_grad():
        for parameter in tokeniser.parameters():  # what starts at zero would hide a part that is not connected
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return tokeniser.eval()


@pytest.mark.parametrize("stride", [1, 2, 4, 8])
def test_a_word_for_every_cell(stride):
    tokeniser = small(stride=stride)
    features = tokeniser(torch.randn(2, 3, 16, 24))
    assert features.maps[-1].shape == (2, 10, 16 // stride, 24 // stride)
    assert features.prefix is None and len(tokeniser.stages()) == stride.bit_length() + 1


def test_pooled_is_the_share_of_each_word():
    features = small()(torch.randn(2, 3, 16, 24))
    torch.testing.assert_close(features.pooled, features.maps[-1].softmax(1).mean(dim=(2, 3)))
    torch.testing.assert_close(features.pooled.sum(1), torch.ones(2))


@torch.no_grad()
def test_a_code_depends_on_what_is_near_alone():
    """No norm sees the whole picture: what changes in a far corner changes nothing here."""
    tokeniser = small(picture_px=(64, 64))
    images = torch.randn(1, 3, 64, 64)
    before = tokeniser(images).maps[-1]
    images[..., :4, :4] += 1
    change = (tokeniser(images).maps[-1] - before).abs().amax(dim=1)[0]
    assert change[0, 0] > 1e-3 and change[8:].max() == 0 and change[:, 8:].max() == 0


def test_brightness_reaches_the_codes():
    """A grey picture has nothing else to tell (standardised filters, as of BiT, would not see it)."""
    tokeniser = small()
    dark, bright = (tokeniser(torch.full((1, 3, 16, 24), level)).maps[-1] for level in (-1.0, 1.0))
    assert (dark - bright).abs().mean() > 1e-2


def test_the_named_one_cuts_112_px_as_a_vit_b16_cuts_224():
    settings = model_settings("tokeniser_8")
    assert settings == TokeniserSettings() and settings.picture_px == (112, 112) and settings.vocabulary == 8192
    with shapes_only():
        tokeniser, vit = settings.build(), model_settings("vit_b16").build()
    assert tuple(side // tokeniser.stride for side in tokeniser.picture_px) == vit.grid
    assert round(num_parameters(tokeniser) / 1e6, 1) == 5.6  # as its name is listed


def test_a_picture_that_has_no_grid_is_one_clear_error():
    with pytest.raises(UserError, match="multiple of 4"):
        small(picture_px=(18, 24))
    tokeniser = small()
    with pytest.raises(UserError, match="multiple of 4"):
        tokeniser.resize((16, 26))
    assert tokeniser.picture_px == (16, 24)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stride": 3}, "power of 2"),
        ({"stride": 0}, "power of 2"),
        ({"width": 18}, "multiple of the stride"),
        ({"vocabulary": 1}, "at least two words"),
        ({"blocks": -1}, "blocks"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(UserError, match=message) as error:
        small(**changes)
    assert "\n" not in str(error.value)
