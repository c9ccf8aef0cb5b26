"""PVT v1 and v2: parameter counts, reduced attention written out, positions. tests/weights has the peers."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from vitreous.errors import UserError
from vitreous.models import PVTSettings, model_settings
from vitreous.models.base import Grid
from vitreous.models.flops import flops
from vitreous.models.pvt import ReducedAttention
from vitreous.models.shapes import shapes_only
from vitreous.tasks.classify import ClassifySettings
from vitreous.training.optim import slots

TINY = PVTSettings(
    picture_px=(32, 48), patch=2, widths=(8, 12), depths=(1, 2), heads=(2, 3), mlp_factors=(2, 3), reductions=(2, 1)
)


@pytest.mark.parametrize("linear", [False, True])
def test_attention_is_the_formula(linear):
    torch.manual_seed(0)
    module = ReducedAttention(8, 2, 2, linear, 1e-5).double()
    x = torch.randn(3, 48, 8, dtype=torch.float64)
    maps = x.transpose(1, 2).view(3, 8, 6, 8)
    if linear:
        coarse = F.conv2d(F.adaptive_avg_pool2d(maps, 7), module.reduce.weight, module.reduce.bias)
    else:
        coarse = F.conv2d(maps, module.reduce.weight, module.reduce.bias, stride=2)
    few = module.reduce_norm(coarse.flatten(2).transpose(1, 2))
    few = F.gelu(few) if linear else few
    assert few.shape[1] == (49 if linear else 12)
    q, (k, v) = module.queries(x), module.keys_values(few).split(8, dim=-1)
    heads = [
        (q[..., part] @ k[..., part].transpose(1, 2) / 2).softmax(-1) @ v[..., part]
        for part in (slice(0, 4), slice(4, 8))
    ]
    expected = module.project_out(torch.cat(heads, dim=-1))
    torch.testing.assert_close(module(x, Grid(6, 8)), expected, atol=1e-12, rtol=0)


def test_patches_of_v2_overlap_and_those_of_v1_do_not():
    def reach(settings):
        """Rows of the picture that the first place of the second row of the first map depends on."""
        encoder = settings.build().eval()
        images = torch.randn(1, 3, 32, 48, requires_grad=True)
        encoder.levels[0].patches(images)[0, :, 1, 0].sum().backward()
        return images.grad.abs().sum(dim=(0, 1, 3)).nonzero().flatten().tolist()

    assert reach(TINY) == [1, 2, 3] and reach(replace(TINY, generation="v1")) == [2, 3]


def test_v1_pools_a_class_token_that_comes_in_last():
    encoder = replace(TINY, generation="v1").build().eval()
    features = encoder(torch.randn(2, 3, 32, 48))
    assert features.prefix.shape == (2, 1, 12) and encoder.num_prefix == 1
    assert torch.equal(features.pooled, features.prefix[:, 0])
    assert [len(level.positions.table) for level in encoder.levels] == [16 * 24, 8 * 12 + 1]


def test_v2_pools_the_mean_of_its_last_map():
    features = TINY.build().eval()(torch.randn(2, 3, 32, 48))
    assert features.prefix is None
    torch.testing.assert_close(features.pooled, features.maps[-1].mean(dim=(2, 3)))


def test_maps_of_a_picture_that_nothing_divides():
    images = torch.randn(1, 3, 37, 51)
    for generation, sizes in (
        ("v2", [(19, 26), (10, 13)]),
        ("v2-linear", [(19, 26), (10, 13)]),
        ("v1", [(18, 25), (9, 12)]),
    ):
        encoder = replace(TINY, generation=generation).build()
        encoder.resize((37, 51))
        assert [tuple(each.shape[-2:]) for each in encoder(images).maps] == sizes
        assert torch.equal(encoder(images).pooled, encoder.features(images).pooled)


def test_flops_by_hand():
    with shapes_only():
        encoder = model_settings("pvt_v2_b2").build()
    by_hand, before = 0, 3
    for i, (width, depth, factor, reduction) in enumerate(
        zip((64, 128, 320, 512), (3, 4, 6, 3), (8, 8, 4, 4), (8, 4, 2, 1), strict=True)
    ):
        cells = (56 // 2**i) ** 2
        few = cells // reduction**2
        by_hand += 2 * cells * before * (49 if i == 0 else 9) * width
        dense = 2 * cells * width * width + few * 2 * width * width + cells * 2 * factor * width * width
        reduced = few * reduction**2 * width * width if reduction > 1 else 0
        by_hand += depth * 2 * (dense + reduced + 2 * cells * few * width + 9 * cells * factor * width)
        before = width
    assert flops(encoder) == by_hand


def test_what_cannot_be_built_is_one_clear_line():
    for changes, said in (
        ({"heads": (2,)}, "one of each per stage"),
        ({"heads": (2, 5)}, "multiple of its heads"),
        ({"picture_px": (2, 48)}, "too small"),
    ):
        with pytest.raises(UserError, match=said):
            replace(TINY, **changes).build()


def test_keys_and_values_are_two_matrices_to_an_optimizer():
    found = {slot.name: slot.parts for slot in slots(ClassifySettings().build(TINY.build(), ("a", "b")))}
    assert {found[name] for name in found if name.endswith("keys_values.weight")} == {2}
    assert {found[name] for name in found if name.endswith(("queries.weight", "project_out.weight"))} == {1}
