"""Swin: parameter counts, windows against loops, masks, other windows and sizes. tests/weights has the peers."""

import math

import pytest
import torch
from torch import nn

from vitreous.errors import UserError
from vitreous.models import SwinSettings, model_settings
from vitreous.models.flops import flops
from vitreous.models.shapes import shapes_only
from vitreous.models.swin import PatchMerging, WindowAttention, Windows

TINY = SwinSettings(picture_px=(32, 48), patch=2, width=8, depths=(2, 2), heads=(2, 4), window=4, mlp_factor=2)


def test_strides_of_the_maps():
    with shapes_only():
        outputs = model_settings("swin_t").build().outputs
    assert [output.stride for output in outputs] == [(4, 4), (8, 8), (16, 16), (32, 32)]


def attention(window, shifted, width=8, heads=2):
    torch.manual_seed(0)
    module = WindowAttention(width, heads, window, shifted).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def by_loops(module, x, window, shift):
    """Place by place: whom it sees, at which offset. Padding is seen too, unless it came from another part."""
    (B, H, W, D), heads = x.shape, module.heads
    size = min(window, H), min(window, W)
    down, right = (shift if side > window else 0 for side in (H, W))
    padded = [math.ceil(side / each) * each for side, each in zip((H, W), size, strict=True)]
    full = torch.zeros(B, *padded, D, dtype=x.dtype)
    full[:, :H, :W] = x
    q, k, v = (full @ module.project_in.weight.T + module.project_in.bias).chunk(3, dim=-1)

    def part(place, axis):  # the window along an axis, and which side of the picture's edge
        rolled = (place - (down, right)[axis]) % padded[axis]
        return rolled // size[axis], place < (down, right)[axis], rolled % size[axis]

    out = torch.zeros_like(x)
    for y in range(H):
        for z in range(W):
            here = part(y, 0), part(z, 1)
            seen = [
                (i, j)
                for i in range(padded[0])
                for j in range(padded[1])
                if part(i, 0)[:2] == here[0][:2] and part(j, 1)[:2] == here[1][:2]
            ]
            rows = [
                (here[0][2] - part(i, 0)[2] + window - 1) * (2 * window - 1) + here[1][2] - part(j, 1)[2] + window - 1
                for i, j in seen
            ]
            keys = torch.stack([k[:, i, j] for i, j in seen], 1).view(B, -1, heads, D // heads)
            values = torch.stack([v[:, i, j] for i, j in seen], 1).view(B, -1, heads, D // heads)
            query = q[:, y, z].view(B, heads, D // heads)
            logits = torch.einsum("bhd,bnhd->bhn", query, keys) / (D // heads) ** 0.5 + module.bias_table.table[rows].T
            out[:, y, z] = torch.einsum("bhn,bnhd->bhd", logits.softmax(-1), values).flatten(1)
    return out @ module.project_out.weight.T + module.project_out.bias


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(("window", "grid"), [(3, (6, 9)), (3, (5, 7)), (4, (4, 9)), (4, (3, 6)), (5, (2, 3))])
def test_windows_are_what_loops_say(window, grid, shifted):
    module = attention(window, shifted)
    x = torch.randn(2, *grid, 8, dtype=torch.float64)
    expected = by_loops(module, x, window, window // 2 if shifted else 0)
    torch.testing.assert_close(module(x), expected, atol=1e-12, rtol=0)


def test_rolling_is_undone():
    windows = Windows((5, 7), 3, shifted=True)
    x = torch.randn(1, 5, 7, 2)
    assert windows.rolled(x).shape == (1, 6, 9, 2)
    assert torch.equal(windows.unrolled(windows.rolled(x)), x)


def test_neighbours_merge_in_the_released_order():
    x = torch.arange(4.0).view(1, 2, 2, 1)  # 0 1 / 2 3
    merging = PatchMerging(1, 1e-5)
    merging.norm, merging.linear = nn.Identity(), nn.Identity()
    assert merging(x).flatten().tolist() == [0, 2, 1, 3]  # down first, then right
    assert merging(torch.ones(1, 3, 3, 1)).sum(-1).flatten().tolist() == [4, 2, 2, 1]  # padded with zeros


def test_maps_of_a_picture_that_nothing_divides():
    encoder = TINY.build()
    encoder.resize((37, 51))
    features = encoder(torch.randn(1, 3, 37, 51))
    assert [tuple(each.shape[1:]) for each in features.maps] == [(8, 19, 26), (16, 10, 13)]


def test_another_window_has_tables_of_its_own():
    encoder = TINY.build().eval()
    images = torch.randn(1, 3, 32, 48)
    before = encoder(images).pooled
    table = encoder.levels[0].blocks[0].attention.bias_table
    encoder.resize_windows(6)
    assert table.grid == (6, 6) and len(table.table) == 11 * 11
    after = encoder(images).pooled
    assert after.isfinite().all() and not torch.allclose(before, after)
    other = SwinSettings(**(vars(TINY) | {"window": 6})).build().eval()
    other.load_state_dict(encoder.state_dict())
    assert torch.equal(other(images).pooled, after)


def test_trained_weights_take_another_window(tmp_path):
    from dataclasses import replace

    from vitreous.data.transforms import Preprocessing
    from vitreous.weights.card import Card
    from vitreous.weights.trained import Trained

    encoder = TINY.build().eval()
    card = Card(model=TINY, preprocessing=Preprocessing(size_px=TINY.picture_px))
    trained = Trained(card, encoder.state_dict(prefix="encoder."), "here")
    images = torch.randn(1, 3, 32, 48)
    assert torch.equal(trained.encoder().eval()(images).pooled, encoder(images).pooled)
    encoder.resize_windows(6)
    wider = trained.encoder(replace(TINY, window=6)).eval()
    assert torch.equal(wider(images).pooled, encoder(images).pooled)


def test_flops_by_hand():
    def stage(cells, window, width, depth, mlp_factor):
        dense = 2 * cells * (4 + 2 * mlp_factor) * width**2
        return depth * (dense + 2 * 2 * cells * window**2 * width)

    with shapes_only():
        encoder = model_settings("swin_t").build()
    by_hand = 2 * 56 * 56 * 48 * 96
    for i, depth in enumerate((2, 2, 6, 2)):
        cells, width = (56 // 2**i) ** 2, 96 * 2**i
        by_hand += stage(cells, 7, width, depth, 4) + (2 * cells * 2 * width * width if i else 0)
    assert flops(encoder) == by_hand


def test_what_cannot_be_built_is_one_clear_line():
    for changes, said in (
        ({"heads": (2,)}, "one of each per stage"),
        ({"heads": (3, 4)}, "multiple of its heads"),
        ({"window": 0}, "at least 1"),
    ):
        with pytest.raises(UserError, match=said):
            SwinSettings(**(vars(TINY) | changes)).build()


def test_small_pictures_get_finer_patches():
    swin = model_settings("swin_t")
    assert [swin.for_side(side).patch for side in (224, 128, 96, 64, 32, 28)] == [4, 4, 2, 2, 1, 1]
    assert swin.for_side(100).picture_px == (96, 96)  # in whole places of the last map: nothing is padded
    assert swin.for_side(32, places=2).patch == 2


def test_windows_fill_the_maps_of_other_pictures():
    swin = model_settings("swin_t")
    windows = {side: swin.for_side(side).window for side in (32, 96, 160, 224, 256)}
    assert windows == {32: 8, 96: 6, 160: 5, 224: 7, 256: 8}
    assert swin.for_side(288).window == 7  # of 4 to 8 places none fills maps of 72, 36, 18 and 9
    for side, window in windows.items():
        assert all(Windows(grid, window, shifted=True).padding == (0, 0) for grid in swin.for_side(side).maps)
