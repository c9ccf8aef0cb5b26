"""Patches and positions, and the resizing of position tables against scipy."""

import numpy as np
import pytest
import scipy.ndimage
import torch
import torch.nn.functional as F

from vitreous.nn.resizing import resize_offsets, resize_table
from vitreous.nn.tokens import (
    LearnedPositions,
    LearnedPositions2d,
    PatchEmbedding,
    Placement,
    Prefix,
    SineCosinePositions,
    position_rows,
)

GRIDS = [((3, 3), (5, 5)), ((4, 6), (7, 3)), ((2, 5), (1, 9)), ((1, 4), (3, 4))]


def test_patch_embedding_equals_a_convolution():
    module, images = PatchEmbedding(3, 10, (2, 4)).double(), torch.randn(2, 3, 6, 8, dtype=torch.float64)
    kernel = module.linear.weight.reshape(10, 3, 2, 4)
    expected = F.conv2d(images, kernel, module.linear.bias, stride=(2, 4)).flatten(2).transpose(1, 2)
    torch.testing.assert_close(module(images), expected, atol=1e-12, rtol=0)


def test_patch_embedding_without_a_bias():
    assert PatchEmbedding(3, 10, (2, 4), bias=False).linear.bias is None


def test_patch_embedding_keeps_the_scale_of_its_input():
    torch.manual_seed(0)
    module = PatchEmbedding(3, 512, (8, 8))
    assert module.linear.weight.std().item() == pytest.approx((1 / 192) ** 0.5, rel=0.02)


def test_prefix_goes_first_and_starts_at_zero():
    prefix, tokens = Prefix(2, 4, num_registers=1), torch.randn(3, 5, 4)
    out = prefix(tokens)
    assert out.shape == (3, 8, 4) and torch.equal(out[:, 3:], tokens)
    assert not prefix.tokens[:2].any() and prefix.tokens[2].all()


@pytest.mark.parametrize(("grid", "new"), GRIDS)
def test_zoom_equals_scipy(grid, new):
    table = torch.randn(1 + grid[0] * grid[1], 3, dtype=torch.float64)
    resized = resize_table(table, 1, grid, new, "zoom")
    cells = table[1:].reshape(*grid, 3).numpy()
    factors = (new[0] / grid[0], new[1] / grid[1], 1)
    expected = scipy.ndimage.zoom(cells, factors, order=1).reshape(-1, 3)
    np.testing.assert_allclose(resized[1:].numpy(), expected, atol=1e-9)
    assert torch.equal(resized[:1], table[:1])


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "zoom"])
@pytest.mark.parametrize(("grid", "new"), GRIDS)
def test_resizing_keeps_the_prefix_bit_equal_and_constants_constant(grid, new, mode):
    table = torch.cat([torch.randn(2, 3), torch.full((grid[0] * grid[1], 3), 0.7)])
    resized = resize_table(table, 2, grid, new, mode)
    assert resized.shape == (2 + new[0] * new[1], 3)
    assert torch.equal(resized[:2], table[:2])
    torch.testing.assert_close(resized[2:], torch.full_like(resized[2:], 0.7))
    assert resize_table(table, 2, grid, grid, mode) is table


def test_bilinear_is_half_pixel_centred():
    resized = resize_table(torch.tensor([[0.0], [1.0]]), 0, (1, 2), (1, 4), "bilinear")
    torch.testing.assert_close(resized[:, 0], torch.tensor([0.0, 0.25, 0.75, 1.0]))


def test_bfloat16_tables_resize():
    assert resize_table(torch.randn(4, 2).bfloat16(), 0, (2, 2), (3, 3)).dtype == torch.bfloat16


def test_offsets_keep_their_centre():
    table = torch.arange(-3.0, 4.0)[:, None]  # the embedding of offset o is o
    for mode in ("bilinear", "zoom"):
        resized = resize_offsets(table, 8, mode)
        assert resized.shape == (15, 1) and resized[7].item() == pytest.approx(0, abs=1e-6)
        torch.testing.assert_close(resized, -resized.flip(0))
    assert resize_offsets(table, 8, "zoom")[-1].item() == pytest.approx(3)


def test_learned_2d_is_column_and_row():
    module = LearnedPositions2d(1, (2, 3), 8)
    table = module()
    assert table.shape == (7, 8)
    torch.testing.assert_close(table[0], module.prefix[0])
    torch.testing.assert_close(table[1 + 1 * 3 + 2], torch.cat([module.columns[2], module.rows[1]]))
    before = module.prefix.detach().clone()
    module.resize((5, 4))
    assert module().shape == (21, 8) and torch.equal(module.prefix, before)


def test_sine_cosine_by_hand():
    module = SineCosinePositions(1, (2, 3), 8)
    assert not list(module.parameters()) and not module()[0].any()
    x, y = 2.0, 1.0
    waves = [f(place * freq) for place in (x, y) for f in (np.sin, np.cos) for freq in (1.0, 0.01)]
    np.testing.assert_allclose(module()[1 + 1 * 3 + 2].numpy(), waves, atol=1e-6)


def test_placement():
    def tables(num):
        return [LearnedPositions(1, (2, 2), 4) for _ in range(num)]

    stem, every, shared = (
        Placement(tables(1)),
        Placement(tables(3), every_layer=True),
        Placement(tables(1), every_layer=True),
    )
    assert Placement([]).at_depth(0) is None
    assert stem.at_depth(0) is stem.tables[0].table and stem.at_depth(1) is None
    assert [every.at_depth(i) is every.tables[i].table for i in range(3)] == [True] * 3
    assert all(shared.at_depth(i) is shared.tables[0].table for i in range(3))


def test_position_rows():
    table = torch.arange(5.0)[:, None]  # 1 prefix, 4 cells
    assert position_rows(table, 1, 0, None) is table
    assert position_rows(table, 1, 2, None)[:, 0].tolist() == [0, 0, 0, 1, 2, 3, 4]
    rows = position_rows(table, 1, 1, torch.tensor([[3, 0], [1, 2]]))
    assert rows[..., 0].tolist() == [[0, 0, 4, 1], [0, 0, 2, 3]]
