import pytest
import torch

from vitreous.errors import UserError
from vitreous.inspection.layout import layout
from vitreous.models import ResNetStem, ViTSettings


def test_a_picture_that_is_no_square():
    settings = ViTSettings(picture_px=(8, 12), patch=(2, 4), width=8, depth=1, heads=1, num_prefix=2, num_registers=1)
    place = layout(settings.build())
    assert place.grid == (4, 3) and place.pitch_px == (2, 4) and place.num_prefix == 3 and place.num_tokens == 15
    assert list(place.rows(None)) == [0] and list(place.rows(2)) == [2] and list(place.rows((3, 1))) == [3 + 3 * 3 + 1]
    values = torch.arange(15.0)
    assert place.as_map(values).tolist() == [[3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14]]
    centres = place.centres_px()
    assert centres[0].tolist() == [1, 2] and centres[1].tolist() == [1, 6] and centres[-1].tolist() == [7, 10]


def test_the_pitch_of_a_hybrid_counts_the_pixels_of_the_picture():
    stem = ResNetStem(depths=(1, 1), base_width=8)  # stride 8
    encoder = ViTSettings(picture_px=(64, 32), patch=2, stem=stem, width=8, depth=1, heads=1).build()
    assert layout(encoder).pitch_px == (16, 16) and layout(encoder).grid == (4, 2)


def test_tokens_that_are_not_there():
    place = layout(ViTSettings(picture_px=(8, 12), patch=4, width=8, depth=1, heads=1).build())
    for token, message in {1: "no prefix token 1", -1: "no prefix token -1", (2, 0): r"no patch \(2, 0\)"}.items():
        with pytest.raises(UserError, match=message):
            place.rows(token)
    bare = ViTSettings(picture_px=(8, 12), patch=4, width=8, depth=1, heads=1, num_prefix=0, pool="mean").build()
    assert list(layout(bare).rows(None)) == list(range(6))
    with pytest.raises(UserError, match="none at all"):
        layout(bare).rows(0)
