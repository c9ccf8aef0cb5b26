"""Every family of models, in a shrunken member, held to every promise an encoder makes."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from vitreous.errors import UserError
from vitreous.models import (
    ConvNeXtSettings,
    ConvStem,
    IGPTSettings,
    PixelsSettings,
    PVTSettings,
    ResNetSettings,
    ResNetStem,
    ResNetV1Settings,
    SwinSettings,
    TokeniserSettings,
    ViTSettings,
)
from vitreous.models.base import Encoder, TokenEncoder
from vitreous.models.shapes import shapes_only
from vitreous.settings import from_json, to_json


def vit(**changes):
    base = {"picture_px": (8, 12), "patch": 4, "width": 16, "depth": 2, "heads": 2, "mlp_width": 24}
    return ViTSettings.of(**(base | changes))


def hybrid(stem, **changes):
    return vit(**({"patch": 1, "picture_px": (16, 24), "stem": stem} | changes))


def pvt(**changes):
    sizes = {"widths": (8, 12), "depths": (1, 2), "heads": (2, 3), "mlp_factors": (2, 3), "reductions": (2, 1)}
    return PVTSettings(picture_px=(16, 24), patch=2, **(sizes | changes))


# Non-square pictures throughout: whoever takes a square root fails here.
MODELS = {
    "vit": vit(),
    "vit-non-square-patch": vit(patch=(4, 3)),
    "vit-mean": vit(pool="mean", num_prefix=0),
    "vit-mean-class": vit(pool="mean"),
    "vit-registers": vit(num_prefix=2, num_registers=2),
    "vit-layer-scale": vit(layer_scale=0.1, gelu="tanh", attention_bias="none"),
    "vit-swiglu": vit(mlp="swiglu", num_prefix=0, num_registers=2),
    "vit-clip": vit(pre_norm=True, patch_bias=False, gelu="quick", projection=10),
    "vit-beit": vit(positions="bias", attention_bias="no-key", pool="mean", pool_norm="after", layer_scale=0.1),
    "vit-beit-shared": vit(positions="bias-shared", attention_bias="no-key", num_prefix=2, num_registers=1),
    "vit-beit-no-prefix": vit(positions="bias", pool="mean", num_prefix=0),
    "vit-siglip": vit(pool="attention", num_prefix=0, gelu="tanh"),
    "vit-none": vit(positions="none"),
    "vit-2d": vit(positions="learned-2d"),
    "vit-sincos": vit(positions="sincos"),
    "vit-relative": vit(positions="relative"),
    "vit-relative-mean": vit(positions="relative", pool="mean", num_prefix=0),
    "vit-every-layer": vit(positions_where="every-layer"),
    "vit-every-layer-2d-shared": vit(positions="learned-2d", positions_where="every-layer-shared"),
    "vit-every-layer-sincos": vit(positions="sincos", positions_where="every-layer-shared", pool="mean", num_prefix=0),
    "hybrid-root": hybrid(ResNetStem(depths=(), base_width=8), patch=2),
    "hybrid-resnet": hybrid(
        ResNetStem(depths=(1, 1), base_width=8, conv_epsilon=1e-2, standardisation="deviation"), picture_px=(16, 32)
    ),
    "hybrid-conv": hybrid(ConvStem(widths=(8, 16), strides=(2, 2), residuals=(1, 0)), pool="mean", num_prefix=0),
    "bit": ResNetSettings(picture_px=(32, 48), depths=(1, 1), base_width=8),
    "bit-small": ResNetSettings(picture_px=(8, 12), depths=(1, 1), base_width=8, root="small"),
    "resnet": ResNetV1Settings(picture_px=(32, 48), depths=(1, 2), base_width=4),
    "resnet-basic": ResNetV1Settings(picture_px=(32, 48), unit="basic", depths=(1, 2), base_width=4),
    # Windows that do not fill the maps, which are padded and shift.
    "swin": SwinSettings(picture_px=(20, 28), patch=2, width=8, depths=(2, 2), heads=(1, 2), window=3, mlp_factor=2),
    # A last map that is smaller than a window, which shifts all the same.
    "swin-fixed": SwinSettings(
        picture_px=(8, 12), patch=2, width=8, depths=(2, 2), heads=(1, 2), window=3, mlp_factor=2, small_maps="shift"
    ),
    "convnext": ConvNeXtSettings(picture_px=(16, 24), patch=2, widths=(8, 12), depths=(2, 3), layer_scale=0.5),
    "pvt-v1": pvt(generation="v1"),
    "pvt-v2": pvt(),
    "pvt-v2-linear": pvt(generation="v2-linear"),
    "tokeniser": TokeniserSettings(picture_px=(8, 12), stride=4, width=16, vocabulary=10, blocks=1),
    "igpt": IGPTSettings(picture_px=(4, 6), clusters=16, width=16, depth=2, heads=2, feature_depth=2),
    "pixels": PixelsSettings(picture_px=(8, 12), grid=(4, 6)),
}
TOKEN_ENCODERS = [name for name, settings in MODELS.items() if isinstance(settings, ViTSettings)]

every_model = pytest.mark.parametrize("name", MODELS)
every_network = pytest.mark.parametrize("name", [name for name in MODELS if name != "pixels"])  # they learn nothing
every_token_encoder = pytest.mark.parametrize("name", TOKEN_ENCODERS)


def build(name, **changes) -> Encoder:
    """Random everywhere: what starts at zero would hide a part that is not connected."""
    torch.manual_seed(0)
    encoder = replace(MODELS[name], **changes).build()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return encoder.eval()


def pictures(encoder, num=2):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(num, encoder.channels, *encoder.picture_px, generator=generator)


def flat(features):
    """All of an answer in one tensor, (B, ...)."""
    prefix = [] if features.prefix is None else [features.prefix]
    return torch.cat([part.flatten(1) for part in (features.pooled, *features.maps, *prefix)], dim=1)


def loss(features):
    answer = flat(features).float()
    return (answer * torch.linspace(-1, 2, answer.shape[1])).mean()


@every_model
def test_shapes(name):
    encoder, settings = build(name), MODELS[name]
    features = encoder(pictures(encoder))
    assert features.pooled.shape == (2, encoder.width)
    h, w = encoder.picture_px
    for output, each in zip(encoder.outputs, features.maps, strict=True):  # known beforehand, and true
        assert each.shape == (
            2,
            output.width,
            *(math.ceil(px / s) for px, s in zip((h, w), output.stride, strict=True)),
        )
    assert list(encoder.outputs) == sorted(encoder.outputs, key=lambda output: output.stride)  # finest first
    _, D, map_h, map_w = features.maps[-1].shape
    assert map_w != map_h  # non-square pictures have non-square maps
    if isinstance(encoder, TokenEncoder):
        assert (map_h, map_w) == encoder.grid and encoder.token_width == D
        num = settings.num_prefix + settings.num_registers
        assert encoder.num_prefix == num
        assert features.prefix is None if num == 0 else features.prefix.shape == (2, num, encoder.token_width)
    else:
        num = encoder.num_prefix
        assert features.prefix is None if num == 0 else features.prefix.shape == (2, num, encoder.outputs[-1].width)
        assert w * map_h == h * map_w
        assert encoder.width == (D * map_h * map_w if isinstance(settings, PixelsSettings) else D)


@every_network
def test_settings_describe_themselves(name):
    settings = MODELS[name]
    assert settings.family and settings.name and settings.describe()
    cell = settings.cell_px
    assert all(side % px == 0 for side, px in zip(settings.picture_px, cell, strict=True))
    grown = replace(
        settings, picture_px=tuple(side + 3 * px for side, px in zip(settings.picture_px, cell, strict=True))
    )
    with shapes_only():
        assert grown.build().outputs == settings.build().outputs
        settings.for_side(3 * max(cell) + 1).build()
    assert settings.regularised(stochastic_depth=0.25) == (
        replace(settings, stochastic_depth=0.25) if "stochastic_depth" in settings.field_names() else settings
    )


@every_network
def test_gradients_reach_every_parameter(name):
    encoder = build(name).train()
    loss(encoder(pictures(encoder))).backward()
    silent = [key for key, value in encoder.named_parameters() if value.grad is None or not value.grad.any()]
    assert not silent


@every_model
def test_an_answer_does_not_depend_on_its_batch(name):
    encoder = build(name)
    images = pictures(encoder, 5)
    with torch.no_grad():
        torch.testing.assert_close(flat(encoder(images))[2:3], flat(encoder(images[2:3])), atol=1e-5, rtol=1e-5)


@every_model
def test_save_and_load_give_an_equal_model(name):
    encoder = build(name)
    encoder.resize(tuple(2 * size for size in encoder.picture_px))
    saved = save({key: value.contiguous() for key, value in encoder.state_dict().items()})
    other = MODELS[name].build().eval()
    other.resize(encoder.picture_px)
    other.load_state_dict(load(saved))
    images = pictures(encoder)
    assert torch.equal(flat(encoder(images)), flat(other(images)))


@every_model
def test_settings_round_trip(name):
    settings = MODELS[name]
    assert from_json(type(settings), to_json(settings)) == settings


@every_model
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "zoom"])
def test_another_resolution(name, mode):
    encoder = build(name)
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    h, w = encoder.picture_px
    encoder.resize((2 * h, w), mode)
    images = pictures(encoder)
    assert images.shape[2:] == (2 * h, w)
    features = encoder(images)
    assert flat(features).isfinite().all()
    if isinstance(encoder, TokenEncoder):
        assert features.maps[0].shape[2:] == encoder.grid
    for key, value in encoder.state_dict().items():
        if value.shape == before[key].shape:
            assert torch.equal(value, before[key])
        else:
            assert "positions" in key or "relative" in key or "bias_table" in key


@every_model
def test_a_wrong_size_is_one_clear_error(name):
    encoder = build(name)
    h, w = encoder.picture_px
    for wrong in (torch.randn(1, 3, 2 * h, w), torch.randn(1, 1, h, w), torch.randn(3, h, w)):
        with pytest.raises(UserError, match=rf"built for \(B, 3, {h}, {w}\).*resize") as error:
            encoder(wrong)
        assert "\n" not in str(error.value)


@every_network
def test_bfloat16(name):
    encoder = build(name).train()
    images = pictures(encoder)
    exact = encoder(images).pooled
    with torch.autocast("cpu", torch.bfloat16):
        features = encoder(images)
        value = loss(features)
    value.backward()
    assert all(parameter.grad.isfinite().all() for parameter in encoder.parameters())
    assert (features.pooled - exact).norm() < 0.1 * exact.norm()
    half = encoder.to(torch.bfloat16)(images.bfloat16())
    assert flat(half).dtype == torch.bfloat16
    assert (half.pooled - exact).norm() < 0.1 * exact.norm()


def compiled_equals_eager(name, backend):
    torch.compiler.reset()
    encoder = build(name, **({"depth": 1} if name in TOKEN_ENCODERS else {})).train()  # blocks are traced alike
    images = pictures(encoder)
    eager = encoder(images)
    eager_gradients = torch.autograd.grad(loss(eager), list(encoder.parameters()))
    traced = torch.compile(encoder, fullgraph=True, backend=backend)(images)
    gradients = torch.autograd.grad(loss(traced), list(encoder.parameters()))
    torch.testing.assert_close(flat(traced), flat(eager), atol=1e-4, rtol=1e-4)
    for ours, theirs in zip(gradients, eager_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


@every_network
def test_compiles_without_graph_breaks(name):
    compiled_equals_eager(name, "aot_eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own imports give some
@every_network
def test_compiles_with_inductor(name):
    compiled_equals_eager(name, "inductor")


@every_network
def test_stages_hold_every_parameter_once_shallow_to_deep(name):
    encoder = build(name)
    staged = [id(parameter) for stage in encoder.stages() for parameter in stage.parameters()]
    assert len(staged) == len(set(staged))
    missing = [key for key, value in encoder.named_parameters() if id(value) not in staged]
    # The last norm and what follows it count as the deepest.
    assert {key.split(".")[0] for key in missing} <= {"norm", "pooling", "projection"}
    order = {id(module): i for i, module in enumerate(encoder.modules())}
    depths = [max(order[id(part)] for part in stage.modules() if id(part) in order) for stage in encoder.stages()]
    assert depths[-1] == max(depths)


@every_network
def test_checkpointing_gives_equal_gradients(name):
    def gradients(checkpointing):
        encoder = build(name).train()
        encoder.checkpointing = checkpointing
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
            value = loss(encoder(pictures(encoder)))
        value.backward()
        return [parameter.grad for parameter in encoder.parameters()], len(kept)

    (plain, many), (checkpointed, few) = gradients(False), gradients(True)
    assert few < many
    for ours, theirs in zip(checkpointed, plain, strict=True):
        assert torch.equal(ours, theirs)


@every_network
def test_random_parts_are_silent_in_evaluation(name):
    settings = MODELS[name]
    if "stochastic_depth" not in settings.field_names():
        pytest.skip("it has no random part")
    changes = {"stochastic_depth": 0.5} | ({"dropout": 0.3} if isinstance(settings, ViTSettings) else {})
    torch.manual_seed(0)
    encoder = type(settings)(**(vars(settings) | changes)).build()
    images = pictures(encoder)
    state = copy.deepcopy(encoder.state_dict())
    assert not torch.equal(flat(encoder(images)), flat(encoder(images)))
    plain = settings.build().eval()
    plain.load_state_dict(state)
    assert torch.equal(flat(encoder.eval()(images)), flat(plain(images)))


# ---- The laws of embed and encode


@every_token_encoder
def test_forward_is_embed_and_encode(name):
    encoder = build(name)
    images = pictures(encoder)
    tokens, grid = encoder.embed(images)
    assert grid == encoder.grid and tokens.shape == (2, grid.cells, encoder.token_width)
    encoded = encoder.encode(tokens, grid)
    features = encoder(images)
    assert torch.equal(encoded.patches.transpose(1, 2).reshape(2, -1, *grid), features.maps[0])
    assert encoded.prefix.shape[1] == encoder.num_prefix


@every_token_encoder
def test_tokens_may_come_in_any_order(name):
    """The law that masking rests on: `at` alone says where a token sits."""
    encoder = build(name)
    tokens, grid = encoder.embed(pictures(encoder))
    at = torch.stack([torch.randperm(grid.cells, generator=torch.Generator().manual_seed(i)) for i in range(2)])
    index = at[..., None].expand(-1, -1, encoder.token_width)
    whole = encoder.encode(tokens, grid, depths=(1,))
    shuffled = encoder.encode(tokens.gather(1, index), grid, at=at, depths=(1,))
    torch.testing.assert_close(shuffled.prefix, whole.prefix, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(shuffled.patches, whole.patches.gather(1, index), atol=1e-5, rtol=1e-5)
    P = encoder.num_prefix
    torch.testing.assert_close(shuffled.depths[1][:, P:], whole.depths[1][:, P:].gather(1, index), atol=1e-5, rtol=1e-5)


@every_token_encoder
def test_dropped_tokens_leave_the_others_in_place(name):
    encoder = build(name)
    tokens, grid = encoder.embed(pictures(encoder))
    at = torch.tensor([[3, 0], [1, 2]])
    kept = encoder.encode(tokens.gather(1, at[..., None].expand(-1, -1, encoder.token_width)), grid, at=at)
    assert kept.tokens.shape == (2, encoder.num_prefix + 2, encoder.token_width)
    swapped = encoder.encode(
        tokens.gather(1, at.flip(1)[..., None].expand(-1, -1, encoder.token_width)), grid, at=at.flip(1)
    )
    torch.testing.assert_close(swapped.patches.flip(1), kept.patches, atol=1e-5, rtol=1e-5)
    if MODELS[name].positions != "none":
        elsewhere = encoder.encode(
            tokens.gather(1, at[..., None].expand(-1, -1, encoder.token_width)), grid, at=at.flip(1)
        )
        assert not torch.allclose(elsewhere.patches, kept.patches, atol=1e-3)


@every_token_encoder
def test_encode_refuses_what_does_not_fit(name):
    encoder = build(name)
    tokens, grid = encoder.embed(pictures(encoder))
    with pytest.raises(UserError, match="grid"):
        encoder.encode(tokens, type(grid)(grid.h, grid.w + 1))
    with pytest.raises(UserError, match="tokens where"):
        encoder.encode(tokens[:, 1:], grid)


def test_a_family_of_every_kind_is_here():
    """A position kind, place, pool or stem that is added must be added to the table above."""
    from typing import get_args

    from vitreous.models.vit import AttentionBias, Gelu, MlpKind, Pool, PoolNorm, PositionKind, PositionPlace

    vits = [settings for settings in MODELS.values() if isinstance(settings, ViTSettings)]
    assert {s.positions for s in vits} == set(get_args(PositionKind))
    assert {s.ends.positions_where for s in vits} == set(get_args(PositionPlace))
    assert {s.pool for s in vits} == set(get_args(Pool))
    assert {s.ends.pool_norm for s in vits} == set(get_args(PoolNorm))
    assert {s.block.mlp for s in vits} == set(get_args(MlpKind))
    assert {s.block.gelu for s in vits} == set(get_args(Gelu))
    assert {s.block.attention_bias for s in vits} == set(get_args(AttentionBias))
    assert {type(s.stem) for s in vits} == {type(None), ConvStem, ResNetStem}
    assert all(isinstance(s.build(), nn.Module) for s in MODELS.values())
