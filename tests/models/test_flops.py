"""FLOPs against hand calculation."""

import pytest
import torch

from vitreous.models import ResNetSettings, ViTSettings, model_settings
from vitreous.models.flops import flops, training_flops


def vit_flops(tokens, patches, patch_inputs, width, depth, mlp_width):
    dense = 2 * tokens * (4 * width * width + 2 * width * mlp_width)
    products = 2 * 2 * tokens * tokens * width  # queries with keys, weights with values
    return depth * (dense + products) + 2 * patches * patch_inputs * width


def test_vit_b16():
    with torch.device("meta"):
        encoder = model_settings("vit_b16").build()
    by_hand = vit_flops(197, 196, 768, 768, 12, 3072)
    assert by_hand == 35_126_120_448
    assert flops(encoder) == by_hand
    assert training_flops(encoder) == 3 * by_hand


def test_another_picture_size_leaves_the_encoder_alone():
    encoder = ViTSettings.of(picture_px=(8, 8), patch=4, width=8, depth=2, heads=2, mlp_width=24).build()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    assert flops(encoder, (8, 16)) == vit_flops(9, 8, 48, 8, 2, 24)
    assert encoder.picture_px == (8, 8) and encoder.training
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())
    assert flops(encoder) == vit_flops(5, 4, 48, 8, 2, 24)


def test_half_precision_counts_the_same():
    encoder = ViTSettings(picture_px=(8, 8), patch=4, width=8, depth=1, heads=2).build()
    assert flops(encoder) == flops(encoder.bfloat16())


def test_resnet():
    encoder = ResNetSettings(picture_px=(32, 64), depths=(1, 1), base_width=8).build()
    cells = [8 * 16, 4 * 8]  # after the root (stride 4), and after stage 2
    by_hand = 16 * 32 * 3 * 8 * 49  # the 7x7 root at stride 2
    by_hand += cells[0] * (8 * 8 + 8 * 8 * 9 + 8 * 32 + 8 * 32)
    by_hand += cells[0] * 32 * 16 + cells[1] * (16 * 16 * 9 + 16 * 64 + 32 * 64)
    assert flops(encoder) == 2 * by_hand


@pytest.mark.parametrize("positions", ["none", "relative"])
def test_relative_positions_are_counted(positions):
    encoder = ViTSettings(picture_px=(8, 8), patch=4, width=8, depth=1, heads=2, positions=positions).build()
    extra = 2 * 5 * 8 * (2 * 5 - 1) if positions == "relative" else 0  # every query with every offset, in each head
    assert flops(encoder) == vit_flops(5, 4, 48, 8, 1, 32) + extra
