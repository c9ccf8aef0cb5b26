"""Distances by hand: no attention but to itself, even attention, a known grid."""

import math

import pytest
import torch

from vitreous.errors import UserError
from vitreous.inspection import attention as blocks
from vitreous.inspection.attention import attention
from vitreous.inspection.distance import attention_distances, mean_distance, pair_distances
from vitreous.inspection.layout import attention_layers, layout
from vitreous.models import ConvStem, ViTSettings
from vitreous.models.base import Grid
from vitreous.models.layout import AttentionLayer, Layout, one_group


def place(grid, pitch, num_prefix=1):
    size = (grid[0] * pitch[0], grid[1] * pitch[1])
    layout = Layout(grid=Grid(*grid), num_prefix=num_prefix, picture_px=size, pitch_px=pitch, pool="class")
    tokens = one_group(layout)
    layer = AttentionLayer(
        name="", module=torch.nn.Identity(), heads=1, looking=layout, seen=layout, queries=tokens, keys=tokens
    )
    return pair_distances(layer)


def test_a_known_grid():
    # 1 x 3 patches, 4 px apart, two prefix tokens: every patch puts half on the prefix and half on the first patch.
    weights = torch.tensor([0.25, 0.25, 0.5, 0, 0]).expand(1, 1, 1, 5, 5)
    found = mean_distance(weights, place((1, 3), (9, 4), num_prefix=2))
    assert found.tolist() == [[pytest.approx((0 + 4 + 8) / 3)]]


def test_down_and_right_have_their_own_pitch():
    distances = place((2, 2), (3, 4))[0, 1:, 1:]
    assert distances.tolist() == [[0, 4, 3, 5], [4, 0, 5, 3], [3, 5, 0, 4], [5, 3, 4, 0]]


def test_attention_to_itself_has_no_distance():
    assert mean_distance(torch.eye(7).expand(2, 1, 3, 7, 7), place((2, 3), (16, 16))).tolist() == [[0.0] * 3] * 2


def test_even_attention():
    # 2 x 2 patches 10 px apart: (0 + 10 + 10 + sqrt(200)) / 4, whatever share the prefix takes.
    weights = torch.tensor([0.6, 0.1, 0.1, 0.1, 0.1]).expand(1, 1, 1, 5, 5)
    found = mean_distance(weights, place((2, 2), (10, 10)))
    assert found.item() == pytest.approx((20 + math.sqrt(200)) / 4, rel=1e-6)


def test_rows_that_see_the_prefix_alone_are_left_out():
    weights = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0]]).expand(1, 1, 1, 3, 3)
    assert mean_distance(weights, place((1, 2), (5, 5))).item() == 5.0


def tiny(**changes):
    torch.manual_seed(0)
    settings = {"picture_px": (16, 24), "patch": 8, "width": 16, "depth": 2, "heads": 2, "num_registers": 1}
    encoder = ViTSettings.of(**settings | changes).build().eval()
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return encoder, torch.randn(5, 3, 16, 24)


@pytest.mark.parametrize("block", [2**24, 60])
@pytest.mark.parametrize("hybrid", [False, True])
def test_of_a_model_over_pictures_and_batches(block, hybrid, monkeypatch):
    stem = ConvStem(widths=(8,), strides=(4,), residuals=(0,))
    encoder, images = tiny(**{"stem": stem, "patch": 2} if hybrid else {})
    assert layout(encoder).pitch_px == (8, 8)
    apart = pair_distances(attention_layers(encoder)[0])
    whole = attention(encoder, images, rows=range(8)).weights
    expected = [mean_distance(one[:, None], apart) for one in whole]
    monkeypatch.setattr(blocks, "BLOCK_VALUES", block)
    found = attention_distances(encoder, images)
    assert found.layers == (1, 2) and found.num_pictures == 5
    torch.testing.assert_close(found.per_picture, torch.stack(expected, dim=1).double())
    assert found.mean.shape == (2, 2) and found.mean.std() > 0.03
    batches = attention_distances(encoder, iter(images.split(2)), num=3)
    torch.testing.assert_close(batches.per_picture, found.per_picture[:3])


def test_what_has_no_distance():
    encoder, images = tiny()
    with pytest.raises(UserError, match="no pictures"):
        attention_distances(encoder, images[:0])
    single, images = tiny(patch=(16, 24))
    with pytest.raises(UserError, match="single patch"):
        attention_distances(single, images)
