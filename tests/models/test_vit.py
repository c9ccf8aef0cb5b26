"""The ViT: parameter counts, agreement with timm, and the laws of embed and encode that are its alone."""

import pytest
import torch
from torch import nn

from vitreous.errors import UserError
from vitreous.models import ConvStem, ResNetStem, ViTSettings, model_settings
from vitreous.models.flops import num_parameters

TINY = ViTSettings(picture_px=(8, 12), patch=4, width=16, depth=2, heads=2)

# With a linear head of 1000 classes, at 224 px.
COUNTS = {
    "vit_ti16": 5_717_416,
    "vit_s16": 22_050_664,
    "vit_b16": 86_567_656,
    "vit_b32": 88_224_232,
    "vit_l16": 304_326_632,
    "vit_h14": 632_045_800,
    "r_vit_ti16": 6_337_704,
    "r26_vit_s32": 36_431_912,
    "r50_vit_l32": 328_994_856,
    "r50_vit_b16": 98_659_112,  # of the weights released with the paper, as timm counts them
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts(name):
    with torch.device("meta"):
        encoder = model_settings(name).build()
        head = nn.Linear(encoder.width, 1000)
    assert num_parameters(encoder) + num_parameters(head) == COUNTS[name]


def test_parameter_count_of_distilled_deit_b():
    with torch.device("meta"):
        encoder = model_settings("vit_b16", num_prefix=2).build()
    assert num_parameters(encoder) + 2 * 1000 * (768 + 1) == 87_338_192


def _randomise(module):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3 + (parameter.ndim == 1))
    return module.double().eval()


BLOCK = {
    "attention_norm": "norm1",
    "attention.project_in": "attn.qkv",
    "attention.project_out": "attn.proj",
    "mlp_norm": "norm2",
    "mlp.expand": "mlp.fc1",
    "mlp.contract": "mlp.fc2",
}


def _load_blocks(encoder, theirs):
    """timm's state dict into the transformer part of ours; what is left over is returned."""
    theirs = {name: value for name, value in theirs.items() if not name.startswith("head")}
    ours = {
        "prefix.tokens": theirs.pop("cls_token")[0],
        "positions.tables.0.table": theirs.pop("pos_embed")[0],
        "stem.patches.linear.weight": theirs.pop("patch_embed.proj.weight").flatten(1),
        "stem.patches.linear.bias": theirs.pop("patch_embed.proj.bias"),
    }
    for kind in ("weight", "bias"):
        ours[f"norm.{kind}"] = theirs.pop(f"norm.{kind}")
        for i in range(len(encoder.blocks)):
            for mine, other in BLOCK.items():
                ours[f"blocks.{i}.{mine}.{kind}"] = theirs.pop(f"blocks.{i}.{other}.{kind}")
    return ours, theirs


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_logits_equal_timm(pool):
    timm_vit = pytest.importorskip("timm.models.vision_transformer")
    theirs = _randomise(
        timm_vit.VisionTransformer(
            img_size=(8, 12), patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=5,
            global_pool=pool, fc_norm=False,
        )
    )  # fmt: skip
    settings = ViTSettings(
        picture_px=(8, 12), patch=4, width=16, depth=2, heads=2, pool="class" if pool == "token" else "mean"
    )
    encoder = settings.build().double().eval()
    ours, rest = _load_blocks(encoder, theirs.state_dict())
    assert not rest
    encoder.load_state_dict(ours)
    images = torch.randn(3, 3, 8, 12, dtype=torch.float64)
    torch.testing.assert_close(theirs.head(encoder(images).pooled), theirs(images), atol=1e-9, rtol=1e-9)


UNIT = {f"{part}{i}.": f"{part}{i}." for part in ("conv", "norm") for i in (1, 2, 3)} | {
    "project.": "downsample.conv.",
    "project_norm.": "downsample.norm.",
}


@pytest.mark.parametrize("depths", [(), (2, 1, 1)])
def test_hybrid_equals_timm(depths):
    hybrid = pytest.importorskip("timm.models.vision_transformer_hybrid")
    size, patch = (32, 48), 1 if depths else 4
    trunk = hybrid._resnetv2(depths)
    theirs = _randomise(
        hybrid.VisionTransformer(
            img_size=size, patch_size=patch, embed_dim=16, depth=1, num_heads=2, num_classes=0,
            embed_layer=lambda **options: hybrid.HybridEmbed(backbone=trunk, **options),
        )
    )  # fmt: skip
    stem = ResNetStem(depths=depths, norm_epsilon=1e-5, conv_epsilon=1e-8)  # timm's epsilons
    settings = ViTSettings(picture_px=size, patch=patch, width=16, depth=1, heads=2, stem=stem)
    encoder = settings.build().double().eval()
    ours, rest = _load_blocks(encoder, theirs.state_dict())
    for name in encoder.state_dict():
        if not name.startswith("stem.trunk.levels."):
            continue
        _, _, _, level, unit, last = name.split(".", 5)
        if level == "0":
            other = f"patch_embed.backbone.{'stem.' if depths else ''}{last}"
        else:
            mine = next(part for part in UNIT if last.startswith(part))
            other = f"patch_embed.backbone.stages.{int(level) - 1}.blocks.{unit}.{UNIT[mine]}{last[len(mine) :]}"
        ours[name] = rest.pop(other)
    assert not rest
    encoder.load_state_dict(ours)
    images = torch.randn(2, 3, *size, dtype=torch.float64)
    torch.testing.assert_close(encoder(images).pooled, theirs(images), atol=1e-8, rtol=1e-8)


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
    own = ViTSettings(
        picture_px=(8, 8), patch=4, width=16, depth=3, heads=2, positions_where="every-layer"
    ).build()  # fmt: skip
    shared = ViTSettings(
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
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(UserError, match=message):
        ViTSettings(**({"picture_px": (8, 8), "patch": 4, "width": 8, "depth": 1, "heads": 2} | changes)).build()


def test_unknown_resizing():
    with pytest.raises(UserError, match=r"bilinear, bicubic, zoom.* Did you mean bilinear"):
        TINY.build().resize((16, 16), "biliner")
