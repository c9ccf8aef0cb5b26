"""Every family of transformers against the real classes: answers equal, and tensors back bit by bit."""

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from peers import assert_close_relative, randomise
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitreous.conversion.convert import convert
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.models.base import Encoder, Features
from vitreous.models.resnet import ResNetSettings
from vitreous.tasks import ClassifySettings
from vitreous.weights.card import Card
from vitreous.weights.formats import Given
from vitreous.weights.rules import Report, apply_read, apply_write
from vitreous.weights.trained import Trained
from vitreous.weights.transformers import FORMATS, Transformers

BY_NAME = {each.name: each for each in FORMATS}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 24, "patch_size": 8}
PLAIN = SMALL | {"intermediate_size": 48}
LABELS = {"id2label": {0: "cat", 1: "dog", 2: "tree frog"}, "label2id": {"cat": 0, "dog": 1, "tree frog": 2}}
MAE = {"mask_ratio": 0.0, "decoder_hidden_size": 16, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
WIDE = PLAIN | {"image_size": [16, 32], "num_channels": 1}

# format, class, config, and what else the class is built with
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "vit": ("transformers-vit", "ViTForImageClassification", PLAIN | LABELS, {}),
    "vit-tanh": ("transformers-vit", "ViTForImageClassification", PLAIN | LABELS | {"hidden_act": "gelu_new"}, {}),
    "vit-quick": ("transformers-vit", "ViTModel", PLAIN | {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-3}, {}),
    "vit-no-bias": ("transformers-vit", "ViTModel", PLAIN | {"qkv_bias": False}, {"add_pooling_layer": False}),
    "vit-wide": ("transformers-vit", "ViTModel", WIDE | {"patch_size": [4, 8]}, {"add_pooling_layer": False}),
    "deit": ("transformers-deit", "DeiTForImageClassification", PLAIN | LABELS, {}),
    "deit-encoder": ("transformers-deit", "DeiTModel", PLAIN, {}),
    "deit-distilled": ("transformers-deit", "DeiTForImageClassificationWithTeacher", PLAIN | LABELS, {}),
    "mae": ("transformers-mae", "ViTMAEModel", PLAIN | MAE, {}),
    "msn": ("transformers-msn", "ViTMSNForImageClassification", PLAIN | LABELS, {}),
    "msn-encoder": ("transformers-msn", "ViTMSNModel", PLAIN, {}),
    "dinov2": ("transformers-dinov2", "Dinov2Model", SMALL, {}),
    "dinov2-swiglu": ("transformers-dinov2", "Dinov2Model", SMALL | {"use_swiglu_ffn": True, "mlp_ratio": 3}, {}),
    "dinov2-classes": ("transformers-dinov2", "Dinov2ForImageClassification", SMALL | LABELS, {}),
    "dinov2-registers": ("transformers-dinov2-registers", "Dinov2WithRegistersModel", SMALL, {}),
    "dinov2-registers-classes": (
        "transformers-dinov2-registers",
        "Dinov2WithRegistersForImageClassification",
        SMALL | LABELS,
        {},
    ),
    "dinov2-registers-swiglu": (
        "transformers-dinov2-registers",
        "Dinov2WithRegistersModel",
        SMALL | {"use_swiglu_ffn": True, "num_register_tokens": 2},
        {},
    ),
    "beit": (
        "transformers-beit",
        "BeitForImageClassification",
        PLAIN | LABELS | {"use_relative_position_bias": True},
        {},
    ),
    "beit-shared": (
        "transformers-beit",
        "BeitModel",
        PLAIN | {"use_shared_relative_position_bias": True, "use_mask_token": True, "layer_norm_eps": 1e-3},
        {},
    ),
    "beit-class": (
        "transformers-beit",
        "BeitForImageClassification",
        PLAIN | LABELS | {"use_mean_pooling": False, "use_absolute_position_embeddings": True},
        {},
    ),
    "beit-unscaled": ("transformers-beit", "BeitModel", PLAIN | {"layer_scale_init_value": 0.0}, {}),
}


@pytest.fixture(scope="module")
def transformers() -> ModuleType:
    module = pytest.importorskip("transformers")
    module.logging.set_verbosity_error()
    module.logging.disable_progress_bar()
    return module


def build(transformers: ModuleType, kind: str, config: dict[str, Any], more: dict[str, Any]) -> Any:
    model = getattr(transformers, kind)
    peer = model(model.config_class(**config), **more)
    randomise(peer)
    return peer.eval()


def given_in(folder: Path) -> Given:
    documents = {file.name: json.loads(file.read_text()) for file in folder.glob("*.json")}
    return Given(load_file(folder / "model.safetensors"), documents, str(folder))


def read(given: Given, format: Transformers) -> tuple[Card, dict[str, Tensor], Report]:
    card = format.card(given)
    return card, *apply_read(format.found_in(given).rules(card), given.tensors)


def write(card: Card, weights: dict[str, Tensor], format: Transformers, folder: Path) -> None:
    folder.mkdir()
    tensors = apply_write(format.rules(card), weights)
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    for name, document in format.found_in(Given(tensors, {}, "")).documents(card).items():
        (folder / name).write_text(json.dumps(document))


def ours(card: Card, weights: dict[str, Tensor]) -> nn.Module:
    weights = {name: value for name, value in weights.items() if not name.startswith("extra.")}
    if card.task is not None:
        task = card.task.build(card.model.build(), card.classes)
        task.load_state_dict(weights)
        return task.eval()
    encoder = card.model.build()
    encoder.load_state_dict({name.removeprefix("encoder."): value for name, value in weights.items()})
    return encoder.eval()


def tokens(features: Features) -> Tensor:
    patches = features.maps[0].flatten(2).transpose(1, 2)
    return patches if features.prefix is None else torch.cat([features.prefix, patches], dim=1)


@torch.no_grad()
def compare(mine: nn.Module, peer: Any, dtype: torch.dtype, tolerance: float) -> None:
    mine, peer = mine.to(dtype), peer.to(dtype)
    encoder = mine if isinstance(mine, Encoder) else mine.encoder
    assert isinstance(encoder, Encoder)
    images = torch.randn(2, encoder.channels, *encoder.picture_px, generator=torch.Generator().manual_seed(1)).to(dtype)
    masked = "mask_ratio" in peer.config.to_dict()  # MAE shuffles by this noise: in order, nothing moves
    noise = {"noise": torch.arange(9.0).expand(2, -1)} if masked else {}
    features = encoder(images)
    base = peer if mine is encoder else peer.base_model
    theirs = base(images, **noise)
    assert_close_relative(tokens(features), theirs.last_hidden_state, tolerance)
    if mine is not encoder:
        assert_close_relative(mine.predict(images).logits, peer(images).logits, tolerance)
    elif peer.config.model_type == "beit":
        assert_close_relative(features.pooled, theirs.pooler_output, tolerance)


@pytest.mark.parametrize("case", CASES)
def test_same_answers_and_every_tensor_back(case: str, transformers: ModuleType, tmp_path: Path) -> None:
    name, kind, config, more = CASES[case]
    peer = build(transformers, kind, config, more)
    peer.save_pretrained(tmp_path / "theirs")
    given = given_in(tmp_path / "theirs")
    assert [each.name for each in FORMATS if each.fits(given)] == [name]
    card, weights, report = read(given, BY_NAME[name])
    assert report.is_exact, report
    mine = ours(card, weights)
    compare(mine, peer, torch.float32, 1e-5)
    compare(mine, peer, torch.float64, 1e-9)

    write(card, weights, BY_NAME[name], tmp_path / "back")
    again, info = type(peer).from_pretrained(tmp_path / "back", output_loading_info=True, **more)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    before, after = peer.float().state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    for key, value in before.items():
        assert torch.equal(value, after[key]), key
    rewritten = json.loads((tmp_path / "back" / "config.json").read_text())
    expected = given.documents["config.json"]
    assert rewritten["architectures"] == [kind]
    for field in rewritten.keys() & expected.keys() - {"hidden_act", "drop_path_rate"}:
        assert rewritten[field] == expected[field], field


@pytest.mark.parametrize(
    "case", ["vit", "deit-distilled", "msn", "dinov2-swiglu", "dinov2-registers", "beit", "beit-shared"]
)
def test_the_names_of_version_5_in_memory(case: str, transformers: ModuleType, tmp_path: Path) -> None:
    name, kind, config, more = CASES[case]
    peer = build(transformers, kind, config, more)
    peer.save_pretrained(tmp_path)
    given = given_in(tmp_path)
    _, written, _ = read(given, BY_NAME[name])
    _, in_memory, report = read(replace(given, tensors=peer.state_dict()), BY_NAME[name])
    assert report.is_exact, report
    assert written.keys() == in_memory.keys()
    assert all(torch.equal(value, in_memory[key]) for key, value in written.items())


def test_the_decoder_of_mae_is_known_and_left(transformers: ModuleType, tmp_path: Path) -> None:
    peer = build(transformers, "ViTMAEForPreTraining", PLAIN | MAE, {})
    peer.save_pretrained(tmp_path)
    card, weights, report = read(given_in(tmp_path), BY_NAME["transformers-mae"])
    assert report.is_exact and "decoder.mask_token" in report.aside
    assert isinstance(card.model, ViTSettings) and card.model.positions == "sincos"
    compare(ours(card, weights), peer.vit, torch.float64, 1e-9)


def test_beit_from_pre_training_is_an_encoder(transformers: ModuleType, tmp_path: Path) -> None:
    config = PLAIN | {"use_shared_relative_position_bias": True, "use_mask_token": True, "vocab_size": 9}
    peer = build(transformers, "BeitForMaskedImageModeling", config, {})
    peer.save_pretrained(tmp_path)
    card, weights, report = read(given_in(tmp_path), BY_NAME["transformers-beit"])
    assert report.is_exact and report.aside == ["lm_head.bias", "lm_head.weight"]
    images = torch.randn(2, 3, 24, 24)
    with torch.no_grad():
        theirs = peer.layernorm(peer.beit(images).last_hidden_state)
        assert_close_relative(tokens(ours(card, weights)(images)), theirs, 1e-5)
    with pytest.raises(UserError, match="pool_norm"):
        BY_NAME["transformers-beit"].documents(card)


@pytest.mark.parametrize("kind", ["Dinov2ForImageClassification", "Dinov2WithRegistersForImageClassification"])
def test_dinov2_at_the_size_of_its_processor(kind: str, transformers: ModuleType, tmp_path: Path) -> None:
    """Published with positions for 518 px, a table of 37 x 37, and used at 224."""
    peer = build(transformers, kind, SMALL | LABELS | {"image_size": 518, "patch_size": 14}, {})
    peer.save_pretrained(tmp_path / "theirs")
    processor = transformers.BitImageProcessor(size={"shortest_edge": 256}, crop_size={"height": 224, "width": 224})
    processor.save_pretrained(tmp_path / "theirs")
    found = Trained.load(tmp_path / "theirs")
    assert found.card.model.picture_px == (518, 518) and found.card.preprocessing.size_px == (224, 224)
    images = torch.randn(1, 3, 224, 224)
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        peer.to(dtype)
        with torch.no_grad():
            expected = peer(images.to(dtype)).logits
            assert_close_relative(found.task().to(dtype).predict(images.to(dtype)).logits, expected, tolerance)
    # The table itself stays as it was published, through our own format too, where the way of resizing is kept.
    found.save(tmp_path / "ours")
    again = Trained.load(tmp_path / "ours")
    assert again.card == found.card and len(again.weights["encoder.positions.tables.0.table"]) == 1 + 37 * 37
    with torch.no_grad():
        assert_close_relative(again.task().predict(images).logits, expected, 1e-5)
    # A format with one size for both is not written silently.
    alone = {name: value for name, value in found.weights.items() if name.startswith("encoder.")}
    replace(found, card=replace(found.card, task=None, classes=()), weights=alone).save(tmp_path / "alone")
    with pytest.raises(UserError, match=r"--picture-px 224 \(or 518\)"):
        convert(str(tmp_path / "alone"), tmp_path / "timm", "timm")
    other = "dinov2" if "Reg" in kind else "dinov2-registers"
    with pytest.raises(UserError, match="formats that can hold it: vitreous, transformers-dinov2" + r"(-registers)?\)"):
        convert(str(tmp_path / "ours"), tmp_path / "other", f"transformers-{other}")
    convert(
        str(tmp_path / "ours"), tmp_path / "back", f"transformers-{'dinov2-registers' if 'Reg' in kind else 'dinov2'}"
    )
    assert Trained.load(tmp_path / "back").card == found.card


def test_labels_and_loss_travel(transformers: ModuleType, tmp_path: Path) -> None:
    config = PLAIN | LABELS | {"problem_type": "multi_label_classification"}
    build(transformers, "ViTForImageClassification", config, {}).save_pretrained(tmp_path / "theirs")
    card, weights, _ = read(given_in(tmp_path / "theirs"), BY_NAME["transformers-vit"])
    assert card.classes == ("cat", "dog", "tree frog") and card.task == ClassifySettings(loss="sigmoid")
    write(card, weights, BY_NAME["transformers-vit"], tmp_path / "back")
    assert read(given_in(tmp_path / "back"), BY_NAME["transformers-vit"])[0] == card


# ---- refusals: no peer needed


def plain(**changes: Any) -> Given:
    config = {"model_type": "vit", **PLAIN, **changes}
    patches = torch.zeros(32, 3, 8, 8)
    return Given({"embeddings.patch_embeddings.projection.weight": patches}, {"config.json": config}, "here")


@pytest.mark.parametrize(
    "field, value",
    [
        ("hidden_act", "relu"),
        ("head_dim", 24),
        ("quantization_config", {"bits": 4}),
        ("hidden_size", "wide"),
        ("layer_norm_eps", None),
        ("image_size", [1, 2, 3]),
        ("patch_size", 16),
    ],
)
def test_a_config_we_cannot_follow_is_refused_by_its_field(field: str, value: Any) -> None:
    with pytest.raises(UserError, match=field):
        BY_NAME["transformers-vit"].card(plain(**{field: value}))


def test_beit_with_two_kinds_of_positions_is_refused() -> None:
    both = {"use_absolute_position_embeddings": True, "use_shared_relative_position_bias": True}
    with pytest.raises(UserError, match="use_shared_relative_position_bias"):
        BY_NAME["transformers-beit"].card(plain(model_type="beit", **both))


def test_without_a_config_the_error_says_what_is_missing() -> None:
    given = replace(plain(), documents={})
    assert [each.name for each in FORMATS if each.fits(given)] == ["transformers-vit"]
    with pytest.raises(UserError, match=r"config\.json"):
        BY_NAME["transformers-vit"].card(given)


def test_labels_that_do_not_fit_the_head_are_refused() -> None:
    given = plain(id2label={"0": "cat"})
    given = replace(given, tensors={**given.tensors, "classifier.weight": torch.zeros(3, 32)})
    with pytest.raises(UserError, match="id2label"):
        BY_NAME["transformers-vit"].card(given)


@pytest.mark.parametrize(
    "name, change",
    [
        ("transformers-vit", {"pool": "mean"}),
        ("transformers-vit", {"num_registers": 2}),
        ("transformers-vit", {"layer_scale": 0.1}),
        ("transformers-deit", {"num_prefix": 1}),
        ("transformers-dinov2", {"mlp_width": 50}),
        ("transformers-beit", {"attention_bias": "all"}),
    ],
)
def test_a_model_that_a_family_cannot_hold_is_not_written(name: str, change: dict[str, Any]) -> None:
    format = BY_NAME[name]
    fitting: dict[str, Any] = {"transformers-dinov2": {"layer_scale": 1.0}, "transformers-deit": {"num_prefix": 2}}
    base = ViTSettings.of(picture_px=(24, 24), patch=8, width=32, depth=1, heads=2, **fitting.get(name, {}))
    card = Card(model=base.changed(**change), preprocessing=format.preprocessing)
    with pytest.raises(UserError, match=next(iter(change))):
        format.documents(card)


def test_heads_and_models_of_other_kinds_are_not_written() -> None:
    vit, mae = BY_NAME["transformers-vit"], BY_NAME["transformers-mae"]
    model, preprocessing = ViTSettings(picture_px=(24, 24), patch=8, width=32, depth=1, heads=2), vit.preprocessing
    with pytest.raises(UserError, match="linear head"):
        mae.documents(Card(model=model, task=ClassifySettings(), classes=("a",), preprocessing=preprocessing))
    with pytest.raises(UserError, match="tanh head"):
        vit.documents(
            Card(model=model, task=ClassifySettings(head="tanh"), classes=("a",), preprocessing=preprocessing)
        )
    with pytest.raises(UserError, match="plain ViT"):
        vit.rules(Card(model=ResNetSettings(), preprocessing=preprocessing))
