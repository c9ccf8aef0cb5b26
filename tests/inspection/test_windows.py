"""Attention inside windows, and from a fine map at a coarse one: equal to transformers', each weight at its place."""

import math

import numpy as np
import pytest
import torch

from vitreous.display.figures import svg
from vitreous.errors import UserError
from vitreous.inspection.attention import attention, attention_from
from vitreous.inspection.distance import attention_distances
from vitreous.inspection.figures import figures
from vitreous.inspection.findings import Look, look_inside
from vitreous.inspection.layout import attention_layers
from vitreous.inspection.rollout import rollout
from vitreous.models import IGPTSettings, PVTSettings, SwinSettings
from vitreous.weights.trained import Trained

SWIN = {"patch_size": 4, "embed_dim": 8, "depths": [2, 2], "num_heads": [1, 2], "window_size": 4}
SIZES = {"hidden_sizes": [8, 12, 18, 24], "num_attention_heads": [1, 2, 3, 4], "mlp_ratios": [2, 3, 2, 2]}
REDUCED = SIZES | {"depths": [2, 1, 1, 1]}
V2 = REDUCED | {"sr_ratios": [8, 4, 2, 1]}


def peer_and_ours(kind, folder, side_px, **config):
    """With the same large random weights, and the attention of every block of the peer for two pictures."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = getattr(transformers, f"{kind}ForImageClassification")
    size = {} if kind == "PvtV2" else {"image_size": side_px}
    settings = model.config_class(num_labels=3, hidden_act="gelu", **size, **config)
    theirs = model._from_config(settings, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in theirs.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * (0.3 if kind == "Swin" else 0.8)
    theirs.save_pretrained(folder)
    ours = Trained.load(folder).encoder().eval()
    ours.resize((side_px, side_px))
    images = torch.randn(2, 3, side_px, side_px, generator=generator)
    every = []  # `attentions` of Swin holds the last block of each stage alone
    for block in theirs.modules():
        if type(block).__name__ == "SwinLayer":
            block.register_forward_hook(lambda _, given, made: every.append(made[1]))
    with torch.no_grad():
        told = theirs(images, output_attentions=True).attentions
    nested = [one for stage in told for one in (stage if isinstance(stage, tuple) else [stage])]  # v2 nests them
    return ours, images, every or nested


def in_place(weights, side, window, shift):
    """(B * windows, heads, N, N) -> (B, heads, cells, cells) by going, cell by cell, where the released code moves it:
    the map is padded at the right and bottom, rolled up and left, and cut into windows line by line."""
    padded = math.ceil(side / window) * window
    across = padded // window
    place = {}  # cell -> window, place in it
    for row in range(side):
        for column in range(side):
            down, right = (row - shift) % padded, (column - shift) % padded
            number = (down // window) * across + right // window
            place[row * side + column] = number, (down % window) * window + right % window
    windows = weights.view(-1, across * across, *weights.shape[1:])
    found = torch.zeros(len(windows), weights.shape[1], side * side, side * side)
    for query, (number, row) in place.items():
        for key, (other, column) in place.items():
            if number == other:
                found[:, :, query, key] = windows[:, number, :, row, column]
    return found


@pytest.mark.filterwarnings("ignore")  # the peer gives some
@pytest.mark.parametrize("side_px", [32, 40, 36])  # windows that fill the maps, and padded ones
def test_windows_are_where_they_were_cut_from(side_px, tmp_path):
    ours, images, theirs = peer_and_ours("Swin", tmp_path, side_px, **SWIN)
    side = side_px // 4
    found = attention(ours, images, rows=range(math.ceil(side / 2) ** 2))
    assert len(theirs) == len(found.weights) == 4
    for number, (mine, other) in enumerate(zip(found.weights, theirs, strict=True)):
        of_stage = side if number < 2 else math.ceil(side / 2)
        window = min(4, of_stage)
        expected = in_place(other, of_stage, window, 2 if number % 2 and of_stage > 4 else 0)
        torch.testing.assert_close(mine, expected[:, :, : mine.shape[2]], atol=1e-5, rtol=0)
        mean = attention(ours, images).weights[number][:, :, 0]
        torch.testing.assert_close(mean, expected.mean(dim=2), atol=1e-5, rtol=0)
    assert theirs[0].std() > 0.015  # the rows are no even ones, which anything would equal
    if side_px == 36:  # what falls on padding is cut off, and that is something
        assert found.weights[0].sum(dim=-1).min() < 0.9


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("Pvt", REDUCED | {"sequence_reduction_ratios": [8, 4, 2, 1]}),
        ("PvtV2", V2),
        ("PvtV2", V2 | {"linear_attention": True}),
    ],
)
def test_reduced_attention_is_the_peers(kind, config, tmp_path):
    ours, images, theirs = peer_and_ours(kind, tmp_path, 64, **config)
    layers = attention_layers(ours)
    assert len(theirs) == len(layers) == 5
    linear = config.get("linear_attention", False)
    for layer, other in zip(layers, theirs, strict=True):
        rows = range(layer.looking.num_tokens)
        (mine,) = attention(ours, images, [layers.index(layer) + 1], rows=rows).weights
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=0)
    assert theirs[-1].std() > 0.02
    assert [layer.looking.grid for layer in layers] == [(16, 16), (16, 16), (8, 8), (4, 4), (2, 2)]
    assert {layer.seen.grid for layer in layers} == {(7, 7) if linear else (2, 2)}
    pitch = 64 / 7 if linear else 32
    assert layers[0].seen.pitch_px == pytest.approx((pitch, pitch)) and layers[0].looking.pitch_px == (4, 4)
    assert layers[-1].looking.num_prefix == layers[-1].seen.num_prefix == (1 if kind == "Pvt" else 0)


def tiny_swin(**changes):
    torch.manual_seed(0)
    sizes = {"picture_px": (40, 56), "patch": 4, "width": 8, "depths": (2, 2), "heads": (1, 2), "window": 4}
    encoder = SwinSettings(**sizes | changes).build().eval()
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return encoder, torch.randn(3, 3, *encoder.picture_px)


def test_a_patch_is_followed_to_its_place_in_every_stage():
    encoder, images = tiny_swin()  # maps of 10 x 14 and 5 x 7
    found = attention_from(encoder, images, (3, 5), layer=-1)
    fine = attention(encoder, images, [1, 2], rows=[7 * 14 + 11])  # (3.5, 5.5) of 8 px is (7, 11) of 4 px
    coarse = attention(encoder, images, [3, 4], rows=[3 * 7 + 5])
    for mine, other in zip(found.weights, (*fine.weights, *coarse.weights), strict=True):
        assert torch.equal(mine, other)
    lit = found.maps(1)[0, 0, 0].nonzero()
    assert lit.min(dim=0).values.tolist() == [4, 8] and lit.max(dim=0).values.tolist() == [7, 11]  # its window
    lit = found.maps(2)[0, 0, 0].nonzero()
    assert lit.min(dim=0).values.tolist() == [6, 10] and lit.max(dim=0).values.tolist() == [9, 13]  # shifted


def test_distances_stay_inside_windows():
    encoder, images = tiny_swin()
    found = attention_distances(encoder, images)
    assert found.per_picture.shape == (3, 4, 2) and found.per_picture[:, :2, 1].isnan().all()
    assert found.names == ("stage 1, block 1", "stage 1, block 2", "stage 2, block 1", "stage 2, block 2")
    # By hand, from whole matrices and the centres of cells.
    for layer, (number, heads) in zip(attention_layers(encoder), enumerate((1, 1, 2, 2)), strict=True):
        whole = attention(encoder, images, [number + 1], rows=range(layer.looking.num_tokens)).weights[0]
        centres = layer.looking.centres_px()
        apart = (centres[:, None] - centres).square().sum(dim=-1).sqrt()
        expected = ((whole * apart).sum(dim=-1) / whole.sum(dim=-1)).mean(dim=-1)
        torch.testing.assert_close(found.per_picture[:, number, :heads], expected.double(), atol=1e-4, rtol=0)
        sees = (whole[0, 0] > 0).float()
        even = ((sees * apart).sum(dim=-1) / sees.sum(dim=-1)).mean()
        torch.testing.assert_close(found.even[number], even.double(), atol=1e-4, rtol=0)
    assert found.even[0] == found.even[0].clamp(4, 12)


def test_layers_that_cannot_be_multiplied():
    encoder, images = tiny_swin()
    with pytest.raises(UserError, match="look at one layer instead"):
        rollout(encoder, images)
    found = look_inside(encoder, images).attention
    assert found.title == "mean of the patches, stage 2, block 2, windows of 4 x 4, shifted, mean of heads"
    found = look_inside(encoder, images, Look(token=(9, 13), layer=2, head=1))
    assert found.attention.title == "patch (9, 13), stage 1, block 2, windows of 4 x 4, shifted, head 1"
    assert found.attention.patch_px == (36, 52, 40, 56) and found.attention.window_px == (24, 40, 40, 56)
    drawn = figures(found, [np.zeros((40, 56, 3), np.uint8)] * 3)
    assert "in its window" in svg(drawn["figure6"]) and "2: stage 1, block 2" in svg(drawn["layers"])
    assert "first layer's heads" in svg(drawn["figure7"])
    with pytest.raises(UserError, match="no head 2: stage 1, block 2 has heads 1 to 1"):
        look_inside(encoder, images, Look(layer=2, head=2))


def test_keys_of_a_map_that_cannot_be_reduced_evenly_lie_where_they_were_read():
    sizes = {"widths": (8, 12), "depths": (1, 1), "heads": (1, 1), "mlp_factors": (1, 1), "reductions": (4, 1)}
    encoder = PVTSettings(picture_px=(40, 60), generation="v1", **sizes).build()
    first, last = attention_layers(encoder)
    assert first.looking.grid == (10, 15) and first.seen.grid == (2, 3) and first.seen.pitch_px == (16, 16)
    assert first.seen.covered == (32 / 40, 48 / 60) and last.seen.grid == (5, 7)


def test_pixels_see_the_start_and_those_before():
    torch.manual_seed(0)
    encoder = IGPTSettings(picture_px=(3, 4), width=8, depth=4, heads=2, clusters=4).build()
    found = attention(encoder, torch.randn(1, 3, 3, 4), rows=[6])
    assert len(found.weights) == 2  # those that the features have gone through
    assert ((found.weights[0] > 0) == torch.tensor([True] * 7 + [False] * 6)).all()  # the start token, six pixels
    torch.testing.assert_close(found.weights[0].sum(dim=-1), torch.ones(1, 2, 1))
