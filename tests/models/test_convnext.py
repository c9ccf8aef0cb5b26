"""ConvNeXt: parameter counts, the block written out, maps of odd sizes. tests/weights has the peers."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitreous.errors import UserError
from vitreous.models import ConvNeXtSettings, model_settings
from vitreous.models.flops import flops, num_parameters
from vitreous.models.shapes import shapes_only

TINY = ConvNeXtSettings(picture_px=(16, 24), patch=2, widths=(8, 12), depths=(1, 2), layer_scale=0.5)


def test_imagenet_21k_has_a_larger_head_and_nothing_else():
    with shapes_only():
        encoder = model_settings("convnext_t").build()
        head = nn.Linear(encoder.width, 21_841)
    assert num_parameters(encoder) + num_parameters(head) == 28_589_128 + (21_841 - 1000) * 769


def test_a_block_is_the_formula():
    block = TINY.block(0, 0.0).double().eval()
    x = torch.randn(2, 5, 6, 8, dtype=torch.float64)
    mixed = F.conv2d(x.movedim(-1, 1), block.conv.weight, block.conv.bias, padding=3, groups=8).movedim(1, -1)
    normed = F.layer_norm(mixed, (8,), block.norm.weight, block.norm.bias, 1e-6)
    hidden = F.gelu(normed @ block.mlp.expand.weight.T + block.mlp.expand.bias)
    expected = x + 0.5 * (hidden @ block.mlp.contract.weight.T + block.mlp.contract.bias)
    torch.testing.assert_close(block(x), expected, atol=1e-12, rtol=0)


def test_without_layer_scale_nothing_is_scaled():
    block = replace(TINY, layer_scale=None).block(0, 0.0).eval()
    scaled = replace(TINY, layer_scale=1.0).block(0, 0.0).eval()
    scaled.load_state_dict(block.state_dict(), strict=False)
    x = torch.randn(1, 4, 4, 8)
    assert torch.equal(block(x), scaled(x)) and len(block.state_dict()) == len(scaled.state_dict()) - 1


def test_what_fills_no_step_is_dropped():
    encoder = TINY.build().eval()
    encoder.resize((19, 27))
    images = torch.randn(1, 3, 19, 27)
    features = encoder(images)
    assert [tuple(each.shape[1:]) for each in features.maps] == [(8, 9, 13), (12, 4, 6)]
    images[..., 18:, :], images[..., 26:] = 0, 0
    assert torch.equal(encoder(images).pooled, features.pooled)


def test_pooled_is_the_normed_mean():
    encoder = TINY.build().eval()
    features = encoder(torch.randn(2, 3, 16, 24))
    torch.testing.assert_close(features.pooled, encoder.norm(features.maps[-1].mean(dim=(2, 3))))


def test_flops_by_hand():
    with shapes_only():
        encoder = model_settings("convnext_t").build()
    by_hand = 2 * 56 * 56 * 48 * 96
    for i, depth in enumerate((3, 3, 9, 3)):
        cells, width = (56 // 2**i) ** 2, 96 * 2**i
        by_hand += depth * 2 * cells * (49 * width + 8 * width**2) + (2 * cells * 4 * (width // 2) * width if i else 0)
    assert flops(encoder) == by_hand


def test_what_cannot_be_built_is_one_clear_line():
    for changes, said in (({"depths": (1,)}, "one of each per stage"), ({"picture_px": (3, 16)}, "too small")):
        with pytest.raises(UserError, match=said):
            replace(TINY, **changes).build()


def test_small_pictures_get_a_finer_first_step():
    assert [model_settings("convnext_atto").for_side(side).patch for side in (224, 64, 32)] == [4, 2, 1]
