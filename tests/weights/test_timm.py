"""timm's models, with random weights, against what is read from them; then written back."""

import json
from functools import partial

import pytest
import torch
from peers import assert_bit_equal, assert_close_relative, converted, randomise
from safetensors.torch import save_file

from vitreous.errors import UserError
from vitreous.models import ResNetSettings, ViTSettings
from vitreous.tasks import ClassifySettings
from vitreous.weights import formats
from vitreous.weights.card import Card
from vitreous.weights.formats import Given
from vitreous.weights.timm import Timm

timm = pytest.importorskip("timm")

ONE_HEAD = {"config.json": {"model_args": {"num_heads": 1}}}
SMALL = {"img_size": (16, 24), "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}


def vit(**changes):
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(**(SMALL | changes))


def distilled(**changes):
    from timm.models.deit import VisionTransformerDistilled

    return VisionTransformerDistilled(**(SMALL | changes))


def beit(**changes):
    from timm.models.beit import Beit

    arguments = {"use_abs_pos_emb": False, "use_rel_pos_bias": True, "init_values": 0.1, "qkv_bias": True}
    return Beit(**(SMALL | arguments | changes))


def eva(**changes):
    """EVA of the first kind; the second has rotary positions."""
    from timm.models.eva import Eva

    return Eva(**(SMALL | {"qkv_bias": True, "init_values": None} | changes))


def hybrid(depths, **changes):
    from timm.models import vision_transformer_hybrid as parts

    trunk = parts._resnetv2(depths)
    embed = partial(parts.HybridEmbed, backbone=trunk)
    size = {"img_size": (64, 96), "patch_size": 1 if depths else 4}
    return parts.VisionTransformer(embed_layer=embed, **(SMALL | size | changes))


def swiglu(**changes):
    from timm.layers import SwiGLUPacked

    return vit(mlp_layer=SwiGLUPacked, act_layer=torch.nn.SiLU, init_values=1e-5, mlp_ratio=16 / 3, **changes)


def clip(**changes):
    from timm.layers import LayerNorm

    return vit(pre_norm=True, norm_layer=partial(LayerNorm, eps=1e-5), **changes)


# A peer, and what config.json has to say beyond size and heads, which shapes cannot tell.
PEERS = {
    "vit": (vit, {}),
    "vit-no-head": (partial(vit, num_classes=0), {}),
    "vit-no-qkv-bias": (partial(vit, qkv_bias=False), {}),
    "vit-mean-norm-after": (partial(vit, global_pool="avg"), {}),
    "vit-mean-norm-before": (partial(vit, global_pool="avg", fc_norm=False), {"global_pool": "avg"}),
    "vit-gap": (partial(vit, global_pool="avg", fc_norm=False, class_token=False), {}),
    "vit-tanh": (partial(vit, act_layer="gelu_tanh"), {"model_args": {"act_layer": "gelu_tanh"}}),
    "vit-non-square-patch": (partial(vit, patch_size=(4, 3)), {}),
    "vit-no-positions": (partial(vit, pos_embed="none"), {"model_args": {"pos_embed": "none"}}),
    "deit-distilled": (distilled, {}),
    "deit-distilled-no-head": (partial(distilled, num_classes=0), {}),
    "deit3": (partial(vit, init_values=1e-6, no_embed_class=True), {}),
    "dino": (partial(vit, num_classes=0, patch_size=8), {}),
    "dinov2": (partial(vit, init_values=1e-5, num_classes=0), {}),
    "dinov2-registers": (partial(vit, init_values=1e-5, reg_tokens=4, no_embed_class=True), {}),
    "registers-with-positions": (partial(vit, reg_tokens=3), {}),
    "registers-no-class": (
        partial(vit, reg_tokens=2, class_token=False, no_embed_class=True, global_pool="avg", fc_norm=False),
        {},
    ),
    "dinov2-swiglu": (partial(swiglu, num_classes=0), {}),
    "dinov2-swiglu-registers": (partial(swiglu, num_classes=0, reg_tokens=4, no_embed_class=True), {}),
    "clip": (clip, {"model_args": {"act_layer": "gelu"}}),
    "clip-quick": (partial(clip, act_layer="quick_gelu"), {"architecture": "vit_base_patch16_clip_quickgelu_224"}),
    "beit": (beit, {}),
    "beit-class": (partial(beit, global_pool="token"), {}),
    "beit-shared": (partial(beit, use_rel_pos_bias=False, use_shared_rel_pos_bias=True, init_values=None), {}),
    "beit-absolute": (partial(beit, use_rel_pos_bias=False, use_abs_pos_emb=True), {}),
    "eva": (eva, {}),
    "hybrid-root": (partial(hybrid, ()), {}),
    "hybrid-resnet": (partial(hybrid, (1, 1, 1)), {}),
}


def config(peer, extra):
    heads = {"num_heads": SMALL["num_heads"], "img_size": list(peer.patch_embed.img_size)}
    return {"config.json": extra | {"model_args": heads | extra.get("model_args", {})}}


@pytest.fixture(scope="module", params=PEERS)
def pair(request):
    build, extra = PEERS[request.param]
    torch.manual_seed(0)
    peer = build()
    randomise(peer)
    peer = peer.double().eval()
    card, ours = converted(Timm(), peer, config(peer, extra))
    return peer, card, ours


def agree(peer, card, ours, tolerance, dtype):
    images = torch.randn(2, 3, *card.model.picture_px, dtype=dtype, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        encoder = ours if card.task is None else ours.encoder
        features, tokens = encoder(images), peer.forward_features(images)
        if isinstance(card.model, ResNetSettings):
            assert_close_relative(features.maps[-1], tokens, tolerance)
        else:
            patches = features.maps[0].flatten(2).transpose(1, 2)
            found = patches if features.prefix is None else torch.cat([features.prefix, patches], dim=1)
            assert_close_relative(found, tokens, tolerance)
        answer = features.pooled if card.task is None else ours.predict(images).logits
        if not (card.task is None and hasattr(peer, "head_dist")):  # without heads, timm averages the two tokens
            assert_close_relative(answer, peer(images), tolerance)


def test_logits_and_features_in_float64(pair):
    agree(*pair, 1e-9, torch.float64)


def test_logits_and_features_in_float32(pair):
    peer, card, ours = pair
    try:
        agree(peer.float(), card, ours.float(), 1e-5, torch.float32)
    finally:
        peer.double(), ours.double()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_bit(dtype):
    from timm.layers import StdConv2d
    from timm.models.resnetv2 import ResNetV2

    conv = partial(StdConv2d, eps=1e-8)
    peer = ResNetV2(layers=(2, 1), channels=(128, 256), stem_chs=32, stem_type="fixed", conv_layer=conv, num_classes=5)
    randomise(peer)
    peer = peer.to(dtype).eval()
    card, ours = converted(Timm(), peer, size=(45, 64))
    assert (card.model.depths, card.model.base_width) == ((2, 1), 32)
    agree(peer, card, ours, 1e-9 if dtype == torch.float64 else 1e-5, dtype)


# ---- What is read without a config


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_tiny_patch16_224", {"width": 192, "heads": 3, "patch": 16, "picture_px": (224, 224)}),
        ("vit_base_patch32_384", {"width": 768, "heads": 12, "patch": 32, "picture_px": (384, 384)}),
        ("vit_huge_patch14_224", {"width": 1280, "heads": 16, "patch": 14, "depth": 32}),
        ("vit_giant_patch14_224", {"width": 1408, "heads": 16, "mlp_width": 6144}),
        ("vit_so400m_patch14_siglip_gap_224", {"width": 1152, "heads": 16, "pool": "mean", "num_prefix": 0}),
        ("deit_small_distilled_patch16_224", {"width": 384, "heads": 6, "num_prefix": 2}),
        ("deit3_base_patch16_224", {"num_prefix": 0, "num_registers": 1, "layer_scale": 1e-5, "pool": "class"}),
        ("vit_giant_patch14_reg4_dinov2", {"mlp": "swiglu", "mlp_width": 4096, "heads": 24, "num_registers": 4}),
        ("vit_base_patch32_siglip_gap_256", {"gelu": "tanh", "heads": 12, "pool": "mean"}),
        ("vit_giantopt_patch16_siglip_gap_256", {"gelu": "tanh", "heads": 16}),
        (
            "beit_large_patch16_384",
            {"heads": 16, "positions": "bias", "attention_bias": "no-key", "pool_norm": "after"},
        ),
        ("vit_small_r26_s32_384", {"heads": 6, "patch": 1, "picture_px": (384, 384)}),
        ("vit_base_r50_s16_224", {"heads": 12, "patch": 1, "picture_px": (224, 224)}),
        ("vit_tiny_r_s16_p8_224", {"heads": 3, "patch": 8, "picture_px": (224, 224)}),
        ("resnetv2_101x3_bit", {"depths": (3, 4, 23, 3), "base_width": 192}),
    ],
)
def test_published_models_are_known_by_their_shapes(name, expected):
    with torch.device("meta"):
        peer = timm.create_model(name)
        given = Given(peer.state_dict(), {}, name)
        card = Timm().card(given)
        encoder = card.model.build()
        ours = {f"encoder.{key}" for key in encoder.state_dict()}
        ours = ours if card.task is None else set(card.task.build(encoder, card.classes).state_dict())
    assert {field: card.model.value(field) for field in expected} == expected
    assert len(card.classes) == peer.num_classes
    wanted = {theirs for rule in Timm().rules(card) for theirs in rule.theirs}
    assert wanted == set(given.tensors)
    mine = {own for rule in Timm().rules(card) for own in rule.ours}
    assert mine == ours


def test_config_says_what_is_done_to_pictures():
    peer = timm.create_model("vit_tiny_patch16_224", depth=1)
    cfg = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "interpolation": "bicubic", "crop_pct": 0.95,
           "input_size": [3, 224, 224], "crop_mode": "center"}  # fmt: skip
    names = [f"n{i}" for i in range(1000)]
    documents = {"config.json": {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": cfg, "label_names": names}}
    card = Timm().card(Given(peer.state_dict(), documents, "x"))
    p = card.preprocessing
    assert (p.mean, p.std, p.interpolation) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "bicubic")
    assert (p.crop, p.crop_fraction, p.size_px) == ("centre", 0.95, (224, 224))
    assert card.classes == tuple(names)
    written = json.loads(json.dumps(Timm().documents(card)))["config.json"]
    assert {key: written["pretrained_cfg"][key] for key in cfg} == cfg
    assert Timm().card(Given(peer.state_dict(), {"config.json": written}, "x")) == card


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_base_patch16_gap_224", {"heads": 16}),
        ("vit_giantopt_patch16_siglip_gap_256", {"heads": 16, "gelu": "tanh"}),
        ("vit_large_patch14_clip_quickgelu_336", {"gelu": "quick", "norm_epsilon": 1e-5}),
    ],
)
def test_an_architecture_says_what_shapes_do_not(name, expected):
    with torch.device("meta"):
        state = timm.create_model(name).state_dict()
    model = Timm().card(Given(state, {"config.json": {"architecture": name}}, name)).model
    assert {field: model.value(field) for field in expected} == expected


def test_norms_that_come_last_are_refused():
    with pytest.raises(UserError, match="norms after"):
        Timm().card(Given(vit().state_dict(), {"config.json": {"architecture": "vit_base_patch16_rpn_224"}}, "x"))


@pytest.mark.parametrize(
    "damaged",
    [
        [1],
        {"model_args": {"num_heads": "many"}},
        {"pretrained_cfg": {"input_size": 3.5}},
        {"pretrained_cfg": {"mean": 1}},
    ],
)
def test_a_damaged_config_is_one_clear_error(damaged):
    peer = vit(img_size=16)
    with pytest.raises(UserError, match=r"config\.json"):
        Timm().card(Given(peer.state_dict(), {"config.json": damaged}, "x"))


# ---- What is written is a folder that timm builds and loads by itself


def plain(**changes):
    base = {"picture_px": (32, 48), "patch": 16, "width": 64, "depth": 1, "heads": 4, "mlp_width": 96}
    return ViTSettings.of(**(base | changes))


WRITTEN = {
    "vit": (plain(), "linear"),
    "mean": (plain(pool="mean", pool_norm="after", gelu="tanh"), "linear"),
    "distilled": (plain(num_prefix=2), "distilled"),
    "deit3": (plain(num_prefix=0, num_registers=1, layer_scale=0.1), "linear"),
    "dinov2": (plain(num_registers=4, layer_scale=0.1, mlp="swiglu"), "linear"),
    "sincos": (plain(positions="sincos"), "linear"),
    "clip": (plain(pre_norm=True, patch_bias=False, gelu="quick", norm_epsilon=1e-5), "linear"),
    "beit": (
        # timm's own loader takes every table of biases for a square's.
        plain(
            picture_px=(32, 32),
            positions="bias",
            attention_bias="no-key",
            layer_scale=0.1,
            pool="mean",
            pool_norm="after",
        ),
        "linear",
    ),
    "bit": (ResNetSettings(picture_px=(32, 48), conv_epsilon=1e-8), "linear"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_timm_builds_what_we_write(name, tmp_path):
    model, head = WRITTEN[name]
    classes = tuple("abc")
    task = ClassifySettings(head=head)
    ours = task.build(model.build(), classes)
    randomise(ours)
    ours.double().eval()
    card = Card(model=model, task=task, classes=classes, preprocessing=Timm().card(_any_given()).preprocessing)
    written = formats.write(card, ours.state_dict(), Timm())
    save_file({key: value.contiguous() for key, value in written.tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(written.documents["config.json"]))
    peer = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).double().eval()
    peer.load_state_dict(written.tensors)
    assert_bit_equal(peer.state_dict(), written.tensors)
    images = torch.randn(2, 3, *model.picture_px, dtype=torch.float64)
    with torch.no_grad():
        assert_close_relative(ours.predict(images).logits, peer(images), 1e-9)


def _any_given():
    with torch.device("meta"):
        documents = {"config.json": {"architecture": "vit_tiny_patch16_224"}}
        return Given(timm.create_model("vit_tiny_patch16_224", depth=1).state_dict(), documents, "x")


# ---- What does not fit


def test_a_table_that_is_no_square_needs_the_size():
    given = Given(vit(embed_dim=64, num_heads=1, img_size=(16, 32)).state_dict(), ONE_HEAD, "file")
    with pytest.raises(UserError, match=r"do not form a square; give the picture size"):
        Timm().card(given)
    assert Timm().card(given, (32, 16)).model.picture_px == (32, 16)


def test_a_size_settles_which_tokens_have_a_position():
    """4 x 6 cells and a class token, or 5 x 5 cells and a class token without a position: 25 rows both."""
    given = Given(vit(embed_dim=64, num_heads=1).state_dict(), ONE_HEAD, "file")
    for size, num_prefix, num_registers in (((16, 24), 1, 0), ((20, 20), 0, 1)):
        model = Timm().card(given, size).model
        assert (model.picture_px, model.num_prefix, model.num_registers) == (size, num_prefix, num_registers)


@pytest.mark.parametrize(("width", "depth"), [(24, 2), (64, 1), (192, 3), (1792, 1)])
def test_heads_that_cannot_be_told(width, depth):
    with torch.device("meta"):
        state = vit(img_size=16, embed_dim=width, depth=depth, num_heads=1).state_dict()
    with pytest.raises(UserError, match="num_heads"):
        Timm().card(Given(state, {}, "file"))
    assert Timm().card(Given(state, ONE_HEAD, "file")).model.heads == 1


# Published models whose tensors are those of another published model.
TWINS = {
    "vit_base_patch16_clip_quickgelu_224": ("vit_base_patch16_clip_224", "exact GELU and with the quick one", "gelu"),
    "vit_base_patch16_rpn_224": (None, "norms come last", None),
    "vit_base_patch16_gap_224": ("vit_base_patch16_siglip_gap_224", "12 heads or .* with 16", "heads"),
}


@pytest.mark.parametrize("name", TWINS)
def test_one_of_two_models_is_not_guessed(name):
    twin, message, field = TWINS[name]
    with torch.device("meta"):
        state, other = (timm.create_model(each or name, num_classes=5).state_dict() for each in (name, twin))
    assert {key: value.shape for key, value in state.items()} == {key: value.shape for key, value in other.items()}
    with pytest.raises(UserError, match=rf"{message}.*timm:NAME.*config\.json"):
        Timm().card(Given(state, {}, "file"))
    if twin is None:
        return
    found = [Timm().card(Given(state, {"config.json": {"architecture": each}}, "file")).model for each in (name, twin)]
    assert found[0].value(field) != found[1].value(field)


@pytest.mark.parametrize("with_config", [False, True])
@pytest.mark.parametrize(
    "name", ["eva02_tiny_patch14_224", "vit_small_patch16_dinov3_qkvb", "vit_medium_patch16_rope_reg1_gap_256"]
)
def test_rotary_positions_leave_no_trace_and_are_refused(name, with_config):
    with torch.device("meta"):
        state = timm.create_model(name).state_dict()
    documents = {"config.json": {"architecture": name}} if with_config else {}
    with pytest.raises(UserError, match="rotary"):
        Timm().card(Given(state, documents, "file"))


def test_what_was_assumed_is_said():
    name = "vit_so400m_patch14_siglip_gap_384"  # of 384 px its patches cover 378
    with torch.device("meta"):
        given = Given(timm.create_model(name).state_dict(), {}, "file")
    told = {"architecture": name, "pretrained_cfg": {"input_size": [3, 384, 384]}}
    for documents, num in (({}, 3), ({"config.json": told}, 1)):
        found = Given(given.tensors, documents, "file")
        lines = Timm().assumed(found, Timm().card(found))
        assert len(lines) == num and "378 x 378" in lines[-1] and "384 x 384" in lines[-1]
    assert "16 heads" in Timm().assumed(given, Timm().card(given))[0]
    assert formats.read(_any_given(), Timm())[2].assumed == Timm().assumed(_any_given(), Timm().card(_any_given()))


def test_strangers_are_named():
    peer = vit(img_size=16, embed_dim=64, num_heads=1, qk_norm=True)
    _, _, report = formats.read(Given(peer.state_dict(), ONE_HEAD, "file"), Timm())
    assert "blocks.0.attn.q_norm.weight" in report.unused and not report.is_exact
    state = vit(img_size=16, embed_dim=64, num_heads=1).state_dict()
    del state["blocks.1.norm2.bias"]
    _, _, report = formats.read(Given(state, ONE_HEAD, "file"), Timm())
    assert report.missing == ["blocks.1.norm2.bias"]
    broken = state | {"pos_embed": torch.zeros(3)}
    with pytest.raises(UserError, match=r"pos_embed has the shape \(3,\)"):
        Timm().card(Given(broken, ONE_HEAD, "file"))


def test_a_class_position_beside_registers_becomes_part_of_the_token():
    model = plain(num_registers=2)
    encoder = model.build()
    randomise(encoder)
    card = Card(model=model, preprocessing=Timm().card(_any_given()).preprocessing)
    weights = {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}
    theirs = formats.write(card, weights, Timm()).tensors
    expected = weights["encoder.prefix.tokens"][0] + weights["encoder.positions.tables.0.table"][0]
    assert torch.equal(theirs["cls_token"][0, 0], expected)
    assert theirs["pos_embed"].shape == (1, 6, 64) and theirs["reg_token"].shape == (1, 2, 64)


def test_no_place_for_a_hidden_layer_in_the_head():
    card = Card(
        model=plain(), task=ClassifySettings(head="tanh"), preprocessing=Timm().card(_any_given()).preprocessing
    )
    with pytest.raises(UserError, match="tanh head"):
        Timm().rules(card)
