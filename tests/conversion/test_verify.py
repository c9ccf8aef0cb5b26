"""Files of every kind against the libraries they belong to; what is wrong with one is found, and said in a line."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from vitreous.conversion.convert import convert
from vitreous.conversion.verify import verify
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.tasks.classify import ClassifySettings
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

CLASSES = tuple("abc")
PLAIN = ViTSettings.of(picture_px=(32, 32), patch=16, width=128, depth=2, heads=2, norm_epsilon=1e-6)
MODELS: dict[str, ViTSettings] = {
    "transformers-deit": ViTSettings(picture_px=(32, 32), width=128, depth=1, heads=2, num_prefix=2),
    "transformers-mae": PLAIN,
    "google": PLAIN.changed(gelu="tanh"),
    "google-flax": PLAIN.changed(gelu="tanh"),
    "big-vision": PLAIN.changed(gelu="tanh"),
    "transformers-dinov2": ViTSettings.of(picture_px=(28, 28), patch=14, width=64, depth=1, heads=2, layer_scale=0.1),
    "dinov2-original": ViTSettings.of(
        picture_px=(28, 28), patch=14, width=64, depth=1, heads=1, layer_scale=1.0, num_registers=2
    ),
    "clip": ViTSettings.of(
        picture_px=(32, 32),
        width=128,
        depth=1,
        heads=2,
        pre_norm=True,
        patch_bias=False,
        pool_norm="after",
        gelu="quick",
        norm_epsilon=1e-5,
        projection=8,
    ),
}
HEADS = {"transformers-deit": "distilled", "transformers-dinov2": "class-and-mean"}
HEADLESS = ("clip", "transformers-mae", "dinov2-original")


def made(format: str, folder: Path) -> Path:
    """A model with random weights, in the format."""
    torch.manual_seed(0)
    model = MODELS.get(format, PLAIN)
    task = ClassifySettings(head=HEADS.get(format, "linear"))
    built = task.build(model.build(), CLASSES)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    weights, has_head = built.state_dict(), format not in HEADLESS
    weights = {name: value for name, value in weights.items() if has_head or name.startswith("encoder.")}
    preprocessing = Preprocessing(size_px=model.picture_px, crop="squash")
    card = Card(model=model, task=task if has_head else None, classes=CLASSES, preprocessing=preprocessing)
    Trained(card, weights, "made").save(folder / "ours")
    convert(str(folder / "ours"), folder / "theirs", format)
    return folder / "theirs"


@pytest.mark.parametrize(
    ("format", "peer"),
    [
        ("transformers-vit", "ViTForImageClassification of transformers"),
        ("transformers-deit", "DeiTForImageClassificationWithTeacher of transformers"),
        ("transformers-mae", "ViTMAEModel of transformers"),
        ("transformers-dinov2", "Dinov2ForImageClassification of transformers"),
        ("clip", "CLIPVisionModelWithProjection of transformers"),
        ("timm", "vit_base_patch16_224 of timm"),
        ("deit", "vit_base_patch16_224 of timm"),
        ("dinov2-original", "Dinov2WithRegistersModel of transformers"),
        ("google", "of timm"),
        ("big-vision", "of timm"),
        ("torchvision-legacy", "VisionTransformer of torchvision"),
    ],
)
def test_every_kind_of_peer(format, peer, tmp_path):
    pytest.importorskip("timm")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (61, 48, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    found = verify(made(format, tmp_path), [tmp_path / "a.png"])
    assert peer in found.peer and found.num_pictures == (2, 1)
    assert {"features"} <= found.distances.keys() and (format in HEADLESS or "logits" in found.distances)
    for distances in found.distances.values():
        assert 0 <= distances["float64"] <= 1e-9 and 0 < distances["float32"] <= 1e-5
    text = str(found)
    assert "2 random pictures and 1 of yours" in text and "bit for bit" in text
    assert ("our own rules" in text) == (format in ("clip", "deit", "dinov2-original"))


def test_a_reader_that_the_peer_has_not_leaves_the_round_trip(tmp_path):
    found = verify(made("google-flax", tmp_path))
    assert found.peer is None and not found.distances and found.num_tensors == 40
    assert "no library owns this format" in str(found)


def test_convert_verifies_both_sides(tmp_path):
    pytest.importorskip("timm")
    start = made("transformers-vit", tmp_path)
    said = convert(str(start), tmp_path / "out", "timm", verified=True)
    assert said.count("verified ") == 2 and "read back bit for bit; outputs computed by vit_base" in said
    assert said.index("of transformers") < said.index("of timm")


# ---- what is found


def changed(folder: Path, **changes) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def test_another_model_than_it_says_is_noticed(tmp_path):
    """The same tensors with other norms: what we read and what timm builds of it are two models."""
    timm = pytest.importorskip("timm")
    assert timm.is_model("vit_base_patch16_224")
    folder = changed(made("timm", tmp_path), norm_epsilon=1e-2)
    with pytest.raises(UserError, match=r"our features and those of vit_base.* differ by .* in float64 .*1e-09"):
        verify(folder)
    with pytest.raises(UserError, match="differ by"):
        convert(str(folder), tmp_path / "out", "transformers-vit", verified=True)
    assert not (tmp_path / "out").exists()


def test_what_the_peer_does_not_take(tmp_path):
    pytest.importorskip("timm")
    folder = changed(made("timm", tmp_path), architecture="resnet50")
    with pytest.raises(UserError, match="timm itself does not take it") as error:
        verify(folder)
    assert "\n" not in str(error.value)


def test_weights_that_are_not_numbers_are_no_agreement(tmp_path):
    pytest.importorskip("timm")
    folder = made("timm", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["blocks.0.mlp.fc1.weight"][0, 0] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError):
        verify(folder)


def test_our_own_format_has_no_peer(tmp_path):
    made("google", tmp_path)
    with pytest.raises(UserError, match="no other library reads our own format"):
        verify(tmp_path / "ours")


@pytest.mark.parametrize("broken", [False, True])
def test_a_peer_that_is_not_there_is_one_line(broken, tmp_path, monkeypatch):
    folder = made("timm", tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    if broken:
        monkeypatch.delitem(sys.modules, "timm", raising=False)
        monkeypatch.syspath_prepend(tmp_path / "broken")
    else:
        monkeypatch.setitem(sys.modules, "timm", None)  # as if it were not installed
    with pytest.raises(UserError, match="installed, but does not import" if broken else "pip install timm") as error:
        verify(folder)
    assert "\n" not in str(error.value) and ("torchvision::nms" in str(error.value)) == broken


def test_importing_what_converts_imports_no_peer():
    peers = {"timm", "transformers", "torchvision"}
    code = f"import sys, vitreous.conversion.convert; assert not {peers} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
