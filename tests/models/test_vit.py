"""The ViT: parameter counts, and the laws that are its alone. tests/weights holds it against its peers."""

from dataclasses import fields, replace

import pytest
import torch
from torch import nn

from vitreous.errors import UserError
from vitreous.models import ConvStem, ViTSettings, model_settings
from vitreous.models.flops import num_parameters
from vitreous.models.vit import BlockSettings, EndSettings

TINY = ViTSettings(picture_px=(8, 12), patch=4, width=16, depth=2, heads=2)

# With a linear head of 1000 classes, at 224 px.


def test_parameter_count_of_distilled_deit_b():
    with torch.device("meta"):
        encoder = model_settings("vit_b16", num_prefix=2).build()
    assert num_parameters(encoder) + 2 * 1000 * (768 + 1) == 87_338_192


def test_a_crop_that_patches_do_not_fill():
    encoder = ViTSettings(picture_px=(16, 16), patch=4, width=8, depth=1, heads=1).build()
    assert encoder.features(torch.zeros(1, 3, 8, 12)).maps[0].shape == (1, 8, 2, 3)
    with pytest.raises(UserError, match="cannot be cut"):
        encoder.features(torch.zeros(1, 3, 10, 12))


def test_depths_of_encode():
    encoder = TINY.build().eval()
    tokens, grid = encoder.embed(torch.randn(2, 3, 8, 12))
    encoded = encoder.encode(tokens, grid, depths=(1, 2))
    assert sorted(encoded.depths) == [1, 2]
    torch.testing.assert_close(encoder.norm(encoded.depths[2]), encoded.tokens)
    torch.testing.assert_close(encoder.blocks[1](encoded.depths[1]), encoded.depths[2])
    with pytest.raises(UserError, match="blocks 1 to 2"):
        encoder.encode(tokens, grid, depths=(0,))


def test_dropout_where_the_paper_has_it():
    encoder = ViTSettings(picture_px=(8, 8), patch=4, width=16, depth=2, heads=2, dropout=0.1).build()
    places = [name for name, part in encoder.named_modules() if isinstance(part, nn.Dropout)]
    per_block = [f"blocks.{i}.{part}.dropout" for i in range(2) for part in ("attention", "mlp")]
    assert places == ["dropout", *per_block]
    seen = []
    for name in places:
        encoder.get_submodule(name).register_forward_hook(lambda *_, name=name: seen.append(name))
    encoder(torch.randn(1, 3, 8, 8))
    mlp_twice = [name for name in per_block for _ in range(2 if "mlp" in name else 1)]
    assert seen == ["dropout", *mlp_twice]


def test_registers_have_no_position():
    settings = ViTSettings(picture_px=(8, 8), patch=4, width=16, depth=1, heads=2, num_registers=3)
    encoder = settings.build().eval()
    assert encoder.num_prefix == 4 and encoder.positions.tables[0].table.shape == (1 + 4, 16)
    assert encoder(torch.randn(2, 3, 8, 8)).prefix.shape == (2, 4, 16)


def test_positions_in_every_layer_matter_beyond_the_first():
    own = ViTSettings.of(
        picture_px=(8, 8), patch=4, width=16, depth=3, heads=2, positions_where="every-layer"
    ).build()  # fmt: skip
    shared = ViTSettings.of(
        picture_px=(8, 8), patch=4, width=16, depth=3, heads=2, positions_where="every-layer-shared"
    ).build()  # fmt: skip
    assert len(own.positions.tables) == 3 and len(shared.positions.tables) == 1
    images = torch.randn(1, 3, 8, 8)
    before = own(images).pooled
    with torch.no_grad():
        own.positions.tables[2].table.add_(torch.randn(5, 16))
    assert not torch.allclose(own(images).pooled, before)
    # Shared positions are those of a model whose tables are equal.
    state = shared.state_dict()
    table = state.pop("positions.tables.0.table")
    own.load_state_dict(state | {f"positions.tables.{i}.table": table for i in range(3)})
    torch.testing.assert_close(own(images).pooled, shared(images).pooled)


def test_the_last_norm_before_or_after_pooling():
    images = torch.randn(2, 3, 8, 12)
    for pool in ("class", "mean"):
        settings = TINY.changed(pool=pool, pool_norm="after")
        encoder = settings.build().eval()
        with torch.no_grad():
            encoder.norm.weight.normal_()
        features = encoder(images)
        pooled = features.prefix[:, 0] if pool == "class" else features.maps[0].mean(dim=(2, 3))
        torch.testing.assert_close(features.pooled, encoder.norm(pooled))
        before = settings.changed(pool_norm="before").build().eval()
        before.load_state_dict(encoder.state_dict())
        normed = before(images)
        torch.testing.assert_close(normed.prefix, encoder.norm(features.prefix))
        # Of one token it makes no difference.
        assert torch.allclose(normed.pooled, features.pooled, atol=1e-6) == (pool == "class")


def test_a_norm_before_the_first_block():
    encoder = TINY.changed(pre_norm=True, patch_bias=False).build().eval()
    assert encoder.stem.patches.linear.bias is None
    tokens, grid = encoder.embed(torch.randn(1, 3, 8, 12))
    seen = []
    encoder.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    encoder.encode(tokens, grid)
    placed = encoder.prefix(tokens) + encoder.positions.tables[0].table
    torch.testing.assert_close(seen[0], encoder.pre_norm(placed))


def test_a_projection_of_the_pooled_answer_alone():
    encoder = TINY.changed(projection=5).build().eval()
    assert (encoder.width, encoder.token_width) == (5, 16)
    features = encoder(torch.randn(1, 3, 8, 12))
    assert features.maps[0].shape[1] == features.prefix.shape[2] == 16
    torch.testing.assert_close(features.pooled, features.prefix[:, 0] @ encoder.projection.weight.T)


def test_a_class_token_without_a_position():
    encoder = replace(TINY, num_prefix=0, num_registers=1).build()
    assert encoder.positions.tables[0].table.shape == (6, 16) and encoder.num_prefix == 1
    features = encoder(torch.randn(2, 3, 8, 12))
    assert torch.equal(features.pooled, features.prefix[:, 0])


def test_a_shared_table_is_that_of_layers_with_equal_tables():
    shared, own = (replace(TINY, positions=kind).build().eval() for kind in ("bias-shared", "bias"))
    assert shared.positions.bias_table.table.shape == (3 * 5 + 3, 2)
    state = shared.state_dict()
    table = state.pop("positions.bias_table.table").normal_()
    own.load_state_dict(state | {f"blocks.{i}.attention.bias_table.table": table for i in range(2)})
    images = torch.randn(2, 3, 8, 12)
    torch.testing.assert_close(own(images).pooled, shared(images).pooled)
    before = own(images).pooled
    with torch.no_grad():
        own.blocks[1].attention.bias_table.table.add_(torch.randn(18, 2))
    assert not torch.allclose(own(images).pooled, before)


def test_small_conv_stem():
    settings = ViTSettings(picture_px=(32, 32), patch=1, width=256, depth=6, heads=4, stem=ConvStem(), num_prefix=0,
                           pool="mean")  # fmt: skip
    with torch.device("meta"):
        encoder = settings.build()
    assert encoder.grid == (8, 8) and num_parameters(encoder.stem.trunk) < 2_000_000
    assert num_parameters(encoder) < 7_000_000
    with pytest.raises(UserError, match="as many strides"):
        ConvStem(widths=(8, 8)).build(3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, "multiple of the heads"),
        ({"num_prefix": 0}, "class token"),
        ({"patch": 5}, "cannot be cut into patches"),
        ({"positions": "sincos", "width": 6}, "multiple of 4"),
        ({"positions": "relative", "positions_where": "every-layer"}, "absolute"),
        ({"positions": "bias", "positions_where": "every-layer"}, "absolute"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(UserError, match=message):
        ViTSettings.of(**({"picture_px": (8, 8), "patch": 4, "width": 8, "depth": 1, "heads": 2} | changes)).build()


def test_unknown_resizing():
    with pytest.raises(UserError, match=r"bilinear, bicubic, zoom.* Did you mean bilinear"):
        TINY.build().resize((16, 16), "biliner")


def test_fields_are_found_by_their_own_names_whichever_part_they_are_in():
    settings = ViTSettings.of(width=64, gelu="tanh", projection=8)
    assert settings == ViTSettings(width=64, block=BlockSettings(gelu="tanh"), ends=EndSettings(projection=8))
    changed = settings.changed(heads=4, layer_scale=0.1)
    assert (changed.heads, changed.block, changed.ends) == (
        4,
        BlockSettings(gelu="tanh", layer_scale=0.1),
        settings.ends,
    )
    assert [changed.value(name) for name in ("width", "layer_scale", "projection")] == [64, 0.1, 8]
    names = ViTSettings.field_names()
    assert len(names) == len(set(names)) and {"width", "gelu", "pool_norm"} <= set(names)
    assert not {"block", "ends"} & set(names)
    assert max(len(fields(part)) for part in (ViTSettings, BlockSettings, EndSettings)) <= 15
    assert model_settings("vit_s16", layer_scale=0.1).block.layer_scale == 0.1
