"""DeiT, DINO, MAE and BEiT as they were published: timm's models inside, with what their files hold around them."""

from dataclasses import replace

import pytest
import torch
from peers import assert_bit_equal, assert_close_relative, randomise
from safetensors.torch import load_file
from torch import nn

from vitreous.errors import UserError
from vitreous.models import ResNetSettings
from vitreous.tasks import ClassifySettings
from vitreous.weights import formats
from vitreous.weights.card import Card
from vitreous.weights.formats import Given
from vitreous.weights.original import FORMATS
from vitreous.weights.timm import Timm
from vitreous.weights.trained import Trained

timm_vit = pytest.importorskip("timm.models.vision_transformer")

BY_NAME = {one.name: one for one in (*FORMATS, Timm())}
SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 64, "depth": 2, "num_heads": 1, "num_classes": 5}


def ready(peer):
    randomise(peer)
    return peer.double().eval()


def vit(**changes):
    return ready(timm_vit.VisionTransformer(**(SMALL | changes)))


def distilled():
    from timm.models.deit import VisionTransformerDistilled

    return ready(VisionTransformerDistilled(**SMALL))


def masked():
    """MAE in pre-training: an encoder without a head, and a decoder that its answers do not depend on."""
    peer = timm_vit.VisionTransformer(**(SMALL | {"num_classes": 0}))
    peer.decoder_embed, peer.decoder_pred = nn.Linear(64, 32), nn.Linear(32, 48)
    peer.mask_token, peer.decoder_pos_embed = nn.Parameter(torch.empty(1, 1, 32)), nn.Parameter(torch.empty(1, 17, 32))
    peer.decoder_blocks = nn.ModuleList([timm_vit.Block(32, 2, qkv_bias=True) for _ in range(3)])
    peer.decoder_norm = nn.LayerNorm(32)
    return ready(peer)


def beit(**changes):
    from timm.models.beit import Beit

    arguments = {"qkv_bias": True, "use_abs_pos_emb": False, "use_rel_pos_bias": True, "init_values": 0.1}
    return ready(Beit(**(SMALL | {"num_heads": 2} | arguments | changes)))


def with_index(peer):
    """The state of a BEiT as it was saved when the index tables still were."""
    from timm.models.beit import gen_relative_position_index

    state, index = peer.state_dict(), gen_relative_position_index((4, 4))
    places = [name for name in state if name.endswith("relative_position_bias_table")]
    return state | {name.replace("bias_table", "index"): index for name in places}


def under(prefix, state):
    return {prefix + name: tensor for name, tensor in state.items()}


OPTIMIZER = {"optimizer.state.0.exp_avg": torch.zeros(3), "scaler.scale": torch.zeros(())}


def dino(peer):
    """A training checkpoint: both networks with their projections, the loss's centre and the optimizer."""
    head = {"head.mlp.0.weight": torch.zeros(4, 64), "head.last_layer.weight_g": torch.zeros(9, 1)}
    backbone = under("backbone.", peer.state_dict())
    student = under("student.module.", {name: tensor + 1 for name, tensor in (backbone | head).items()})
    besides = student | under("teacher.", head) | OPTIMIZER | {"dino_loss.center": torch.zeros(1, 9)}
    return under("teacher.", backbone), besides


# The format, the peer, its file, and what the file holds besides.
CASES = {
    "deit": lambda: ("deit", peer := vit(), under("model.", peer.state_dict()), {}),
    "deit-training": lambda: ("deit", peer := vit(), under("model.", peer.state_dict()), OPTIMIZER),
    "deit-distilled": lambda: ("deit", peer := distilled(), under("model.", peer.state_dict()), {}),
    "deit-bare": lambda: ("timm", peer := distilled(), peer.state_dict(), {}),
    "dino": lambda: ("dino", peer := vit(num_classes=0), *dino(peer)),
    "dino-student": lambda: (
        "dino-student",
        peer := vit(num_classes=0),
        under("student.module.backbone.", peer.state_dict()),
        OPTIMIZER,
    ),
    "dino-bare": lambda: ("timm", peer := vit(num_classes=0), peer.state_dict(), {}),
    "mae": lambda: ("mae", peer := masked(), under("model.", peer.state_dict()), OPTIMIZER),
    "mae-bare": lambda: ("mae-bare", peer := masked(), peer.state_dict(), {}),
    "mae-fine-tuned": lambda: ("mae", peer := vit(global_pool="avg"), under("model.", peer.state_dict()), {}),
    "beit": lambda: ("beit", peer := beit(), under("model.", with_index(peer)), {}),
    "beit-shared": lambda: (
        "beit",
        peer := beit(use_rel_pos_bias=False, use_shared_rel_pos_bias=True, global_pool="token"),
        under("model.", with_index(peer)),
        {},
    ),
    "beit-bare": lambda: ("beit-bare", peer := beit(), with_index(peer), {}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_read_compared_and_written_back(case, dtype, tolerance):
    name, peer, file, besides = CASES[case]()
    peer.to(dtype)
    file = {key: tensor.to(dtype) if tensor.is_floating_point() else tensor for key, tensor in file.items()}
    known = {"config.json": {"model_args": {"num_heads": 1}}} if name == "timm" else {}
    given = Given(file | besides, known, "file")
    format = formats.recognised(given)
    assert format.name == name
    card, weights, report = formats.read(given, format)
    assert report.is_exact, report.mismatch()
    assert report.aside == sorted(besides)
    images = torch.randn(2, 3, 16, 16, dtype=dtype)
    encoder = card.model.build().to(dtype).eval()
    model = encoder if card.task is None else card.task.build(encoder, card.classes).to(dtype).eval()
    prefix = "encoder." if card.task is None else ""
    model.load_state_dict({n.removeprefix(prefix): t for n, t in weights.items() if not n.startswith("extra.")})
    with torch.no_grad():
        features = encoder(images)
        tokens = torch.cat([features.prefix, features.maps[0].flatten(2).transpose(1, 2)], dim=1)
        assert_close_relative(tokens, peer.forward_features(images), tolerance)
        answer = features.pooled if card.task is None else model.predict(images).logits
        assert_close_relative(answer, peer(images), tolerance)
    assert_bit_equal(formats.write(card, weights, format).tensors, file)


# ---- DINOv2, against transformers, whose names are changed here to the published ones

HF = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1, "image_size": 28, "patch_size": 7}
PARTS = {
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.": "",
    "encoder.layer.": "blocks.",
    "attention.output.dense": "attn.proj",
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
    "weights_in": "w12",
    "weights_out": "w3",
    "layernorm": "norm",
}


def as_published(folder):
    """transformers' file under the names of the original code, queries, keys and values in one."""
    state, found = load_file(folder / "model.safetensors"), {}
    for name, tensor in state.items():
        if ".attention.attention." in name:
            start, _, kind = name.partition(".attention.attention.")
            if kind.startswith("query."):
                three = [name.replace("query", each) for each in ("query", "key", "value")]
                end = kind.removeprefix("query.")
                found[f"{start}.attn.qkv.{end}".replace("encoder.layer.", "blocks.")] = torch.cat(
                    [state[n] for n in three]
                )
            continue
        published = name
        for theirs, part in PARTS.items():
            published = published.replace(theirs, part)
        found[published] = tensor
    return found


@pytest.mark.parametrize("swiglu", [False, True])
@pytest.mark.parametrize("registers", [0, 3])
def test_dinov2_as_published(registers, swiglu, tmp_path):
    transformers = pytest.importorskip("transformers")
    kind = "Dinov2WithRegisters" if registers else "Dinov2"
    more = {"num_register_tokens": registers} if registers else {}
    config = getattr(transformers, f"{kind}Config")(**HF, use_swiglu_ffn=swiglu, **more)
    peer = getattr(transformers, f"{kind}Model")(config)
    randomise(peer)
    peer.eval().save_pretrained(tmp_path)
    published = as_published(tmp_path)
    assert {"mask_token", "cls_token", "blocks.1.attn.qkv.bias", "blocks.0.ls1.gamma", "norm.bias"} <= published.keys()
    assert ("blocks.0.mlp.w12.weight" in published) == swiglu and ("register_tokens" in published) == bool(registers)
    given = Given(published, {}, "file")
    format = formats.recognised(given)
    assert format.name == "dinov2-original"
    card, weights, report = formats.read(given, format)
    assert report.is_exact, report.mismatch()
    assert card.model.num_registers == registers and card.model.block.mlp == ("swiglu" if swiglu else "gelu")
    back = formats.write(card, weights, format)
    assert_bit_equal(back.tensors, published)
    assert format.card(back) == card
    trained = Trained(card, weights, "file")
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        for size in (28, 56):  # at another size, positions are resized as transformers does
            images, encoder = torch.randn(2, 3, size, size).to(dtype), trained.resized((size, size)).encoder().to(dtype)
            with torch.no_grad():
                features = encoder.eval()(images)
                tokens = torch.cat([features.prefix, features.maps[0].flatten(2).transpose(1, 2)], dim=1)
                assert_close_relative(tokens, peer.to(dtype)(images).last_hidden_state, tolerance)
    # The mask token goes along to transformers' own files; where there is none, the published code gets its zeros.
    name = f"transformers-dinov2{'-registers' if registers else ''}"
    assert_bit_equal(
        formats.write(card, weights, formats.named(name)).tensors, load_file(tmp_path / "model.safetensors")
    )
    bare = {name: tensor for name, tensor in weights.items() if not name.startswith("extra.")}
    assert not formats.write(card, bare, format).tensors["mask_token"].any()


def test_dinov2_has_no_place_for_other_models():
    file = vit(init_values=0.1, num_classes=0).state_dict() | {"mask_token": torch.zeros(1, 64)}
    format = BY_NAME["dinov2-original"]
    card = format.card(Given(file, {}, "file"))
    for changes in ({"pool": "mean"}, {"num_prefix": 2}, {"layer_scale": None}, {"positions": "none"}):
        with pytest.raises(UserError, match="dinov2-original has"):
            format.rules(replace(card, model=card.model.changed(**changes)))
    with pytest.raises(UserError, match="has a head"):
        format.rules(replace(card, task=ClassifySettings()))


def test_the_teacher_is_what_remains():
    name, peer, file, besides = CASES["dino"]()
    _, weights, _ = formats.read(Given(file | besides, {}, "file"), BY_NAME[name])
    assert torch.equal(weights["encoder.norm.weight"], peer.norm.weight)


def test_a_decoder_is_kept():
    name, peer, file, _ = CASES["mae"]()
    _, weights, _ = formats.read(Given(file, {}, "file"), BY_NAME[name])
    kept = {key for key in weights if key.startswith("extra.")}
    assert kept == {f"extra.{key}" for key in peer.state_dict() if "decoder" in key or key == "mask_token"}


def test_an_index_table_of_another_grid_is_refused():
    name, _, file, _ = CASES["beit"]()
    file["model.blocks.1.attn.relative_position_index"] = torch.zeros(17, 17, dtype=torch.int64)
    with pytest.raises(UserError, match=r"blocks\.1\.attn\.relative_position_index"):
        formats.read(Given(file, {}, "file"), BY_NAME[name])


def test_unknown_tensors_are_not_set_aside():
    name, _, file, _ = CASES["deit"]()
    _, _, report = formats.read(Given(file | {"model.adapter.weight": torch.zeros(1)}, {}, "file"), BY_NAME[name])
    assert report.unused == ["model.adapter.weight"] and not report.aside


def test_preprocessing_is_that_of_imagenet():
    name, _, file, _ = CASES["deit"]()
    p = BY_NAME[name].card(Given(file, {}, "file")).preprocessing
    assert (p.mean, p.crop_fraction, p.interpolation) == ((0.485, 0.456, 0.406), 0.875, "bicubic")


def test_no_place_for_a_resnet():
    card = Card(
        model=ResNetSettings(), preprocessing=BY_NAME["deit"].card(Given(CASES["deit"]()[2], {}, "x")).preprocessing
    )
    with pytest.raises(UserError, match="cannot store a ResNet"):
        BY_NAME["deit"].rules(card)
