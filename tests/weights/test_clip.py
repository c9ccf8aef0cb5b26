"""CLIP's visual tower against transformers' classes, and OpenAI's names against the same tower renamed."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from peers import assert_close_relative, randomise
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.models.base import Encoder
from vitreous.tasks import ClassifySettings
from vitreous.weights.card import Card
from vitreous.weights.clip import FORMATS, OpenAiClip, TransformersClip
from vitreous.weights.formats import Given
from vitreous.weights.rules import apply_read, apply_write

# Heads of width 64, as all of OpenAI's: two of them.
SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 24, "patch_size": 8}
VISION = SMALL | {"intermediate_size": 48}


@pytest.fixture(scope="module")
def transformers() -> ModuleType:
    module = pytest.importorskip("transformers")
    module.logging.set_verbosity_error()
    module.logging.disable_progress_bar()
    return module


def tower(transformers: ModuleType, kind: str = "CLIPVisionModelWithProjection", **changes: Any) -> Any:
    peer = getattr(transformers, kind)(transformers.CLIPVisionConfig(**VISION, projection_dim=20, **changes))
    randomise(peer)
    return peer.eval()


def encoder_of(card: Card, weights: dict[str, Tensor]) -> Encoder:
    encoder = card.model.build()
    encoder.load_state_dict({name.removeprefix("encoder."): value for name, value in weights.items()})
    return encoder.eval()


@torch.no_grad()
def compare(encoder: Encoder, peer: Any) -> None:
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-9)):
        encoder, peer = encoder.to(dtype), peer.to(dtype)
        images = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1)).to(dtype)
        features, theirs = encoder(images), peer(images)
        assert features.prefix is not None
        tokens = torch.cat([features.prefix, features.maps[0].flatten(2).transpose(1, 2)], dim=1)
        assert_close_relative(tokens, theirs.last_hidden_state, tolerance)
        pooled = theirs.image_embeds if "image_embeds" in theirs else theirs.pooler_output
        assert_close_relative(features.pooled, pooled, tolerance)
    peer.float()


def given_in(folder: Path) -> Given:
    documents = {file.name: json.loads(file.read_text()) for file in folder.glob("*.json")}
    return Given(load_file(folder / "model.safetensors"), documents, str(folder))


@pytest.mark.parametrize("kind", ["CLIPVisionModelWithProjection", "CLIPVisionModel"])
@pytest.mark.parametrize("changes", [{}, {"hidden_act": "gelu", "layer_norm_eps": 1e-3}])
def test_transformers_towers_answer_the_same_and_come_back(
    kind: str, changes: dict[str, Any], transformers: ModuleType, tmp_path: Path
) -> None:
    format, peer = TransformersClip(), tower(transformers, kind, **changes)
    peer.save_pretrained(tmp_path / "theirs")
    given = given_in(tmp_path / "theirs")
    assert [each.name for each in FORMATS if each.fits(given)] == ["transformers-clip"]
    card = format.card(given)
    weights, report = apply_read(format.found_in(given).rules(card), given.tensors)
    assert report.is_exact, report
    compare(encoder_of(card, weights), peer)

    (tmp_path / "back").mkdir()
    tensors = {name: value.contiguous() for name, value in apply_write(format.rules(card), weights).items()}
    save_file(tensors, tmp_path / "back" / "model.safetensors", metadata={"format": "pt"})
    for name, document in format.documents(card).items():
        (tmp_path / "back" / name).write_text(json.dumps(document))
    again, info = type(peer).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    before, after = peer.state_dict(), again.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(value, after[name]) for name, value in before.items())
    assert format.card(given_in(tmp_path / "back")) == card


# ---- OpenAI's names

PARTS = {"layer_norm1": "ln_1", "layer_norm2": "ln_2", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}


def renamed(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of transformers' tower, by the names in OpenAI's published files."""
    model = "vision_model."
    found = {
        "visual.class_embedding": theirs[f"{model}embeddings.class_embedding"],
        "visual.positional_embedding": theirs[f"{model}embeddings.position_embedding.weight"],
        "visual.conv1.weight": theirs[f"{model}embeddings.patch_embedding.weight"],
        "visual.proj": theirs["visual_projection.weight"].T,
    }
    for kind in ("weight", "bias"):
        found[f"visual.ln_pre.{kind}"] = theirs[f"{model}pre_layrnorm.{kind}"]
        found[f"visual.ln_post.{kind}"] = theirs[f"{model}post_layernorm.{kind}"]
        for i in range(2):
            block, resblock = f"{model}encoder.layers.{i}.", f"visual.transformer.resblocks.{i}."
            three = [theirs[f"{block}self_attn.{each}_proj.{kind}"] for each in "qkv"]
            found[f"{resblock}attn.in_proj_{kind}"] = torch.cat(three)
            found[f"{resblock}attn.out_proj.{kind}"] = theirs[f"{block}self_attn.out_proj.{kind}"]
            found |= {f"{resblock}{new}.{kind}": theirs[f"{block}{old}.{kind}"] for old, new in PARTS.items()}
    return found


def test_openais_names(transformers: ModuleType) -> None:
    format, peer = OpenAiClip(), tower(transformers)
    tensors = renamed(peer.state_dict())
    text = {"text_projection": torch.zeros(4, 4), "transformer.resblocks.0.ln_1.weight": torch.zeros(4)}
    text |= {"positional_embedding": torch.zeros(7, 4), "logit_scale": torch.zeros(()), "vocab_size": torch.tensor(9)}
    given = Given(tensors | text, {}, "here")
    assert [each.name for each in FORMATS if each.fits(given)] == ["clip"]
    card = format.card(given)
    weights, report = apply_read(format.rules(card), given.tensors)
    assert report.is_exact, report
    compare(encoder_of(card, weights), peer)
    back = apply_write(format.rules(card), weights)
    assert back.keys() == tensors.keys() and all(torch.equal(value, tensors[name]) for name, value in back.items())
    assert format.card(Given(back, format.documents(card), "there")) == card


def test_open_clips_config_tells_the_gelu_and_the_heads(transformers: ModuleType) -> None:
    format, peer = OpenAiClip(), tower(transformers, hidden_act="gelu")
    peer.config.num_attention_heads = 4
    peer = type(peer)(peer.config)
    randomise(peer)
    tensors = renamed(peer.eval().state_dict())
    vision = {"width": 128, "head_width": 32, "layers": 2, "patch_size": 8, "image_size": 24}
    preprocess = {
        "mean": [0.5, 0.5, 0.5],
        "std": [0.25, 0.25, 0.25],
        "interpolation": "bilinear",
        "resize_mode": "squash",
    }
    document = {"model_cfg": {"embed_dim": 20, "vision_cfg": vision}, "preprocess_cfg": preprocess}
    given = Given(tensors, {"open_clip_config.json": document}, "here")
    card = format.card(given)
    assert card.preprocessing.std == (0.25, 0.25, 0.25) and card.preprocessing.crop == "squash"
    weights, _ = apply_read(format.rules(card), tensors)
    compare(encoder_of(card, weights), peer)
    assert format.card(Given(tensors, format.documents(card), "there")) == card


def small() -> dict[str, Tensor]:
    return {
        "visual.conv1.weight": torch.zeros(64, 3, 8, 8),
        "visual.class_embedding": torch.zeros(64),
        "visual.ln_pre.weight": torch.zeros(64),
        "visual.positional_embedding": torch.zeros(9, 64),
        "visual.transformer.resblocks.0.attn.in_proj_weight": torch.zeros(192, 64),
        "visual.transformer.resblocks.0.mlp.c_fc.weight": torch.zeros(256, 64),
    }


def test_a_grid_that_is_no_square_needs_the_picture_size() -> None:
    with pytest.raises(UserError, match="8 positions"):
        OpenAiClip().card(Given(small(), {}, "here"))
    card = OpenAiClip().card(Given(small(), {}, "here"), (16, 32))
    assert card.model.picture_px == (16, 32) == card.preprocessing.size_px


def test_what_open_clip_may_be_asked_for_and_we_have_not_is_refused_by_its_field() -> None:
    for name, value in (("ls_init_value", 0.1), ("pool_type", "avg"), ("attentional_pool", True)):
        document = {"model_cfg": {"vision_cfg": {name: value}}}
        with pytest.raises(UserError, match=name):
            OpenAiClip().card(Given(small(), {"open_clip_config.json": document}, "here"), (16, 32))


@pytest.mark.parametrize("format", FORMATS, ids=lambda each: each.name)
def test_other_models_are_not_written(format: TransformersClip | OpenAiClip) -> None:
    model = ViTSettings.of(
        picture_px=(16, 16), patch=8, width=64, depth=1, heads=1, norm_epsilon=1e-5, pre_norm=True, patch_bias=False
    )
    with pytest.raises(UserError, match="pool_norm"):
        format.documents(Card(model=model, preprocessing=Preprocessing(size_px=(16, 16), crop_fraction=1.0)))
    headed = Card(model=model, task=ClassifySettings(), classes=("a",), preprocessing=Preprocessing())
    with pytest.raises(UserError, match="head"):
        format.rules(headed)
