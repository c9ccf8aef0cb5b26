import hashlib
import json

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from small_models import CLASSES, blob, learned_trained, random_trained

from vitreous.errors import UserError
from vitreous.export import graph
from vitreous.export.job import export
from vitreous.prediction.predictor import Predictor
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.weights.trained import Trained


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """The folder of a model, beside 150 pictures in folders by class."""
    folder, generator = tmp_path_factory.mktemp("learned"), np.random.default_rng(1)
    learned_trained().save(folder / "model")
    for number in range(150):
        name = CLASSES[number % 3]
        (folder / "pictures" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(blob(number % 3, generator)).save(folder / "pictures" / name / f"{number}.png")
    return folder


def test_int8_answers_as_the_model_does(learned, tmp_path):
    done = export(
        learned / "model", precision="int8", check=str(learned / "pictures"), out=tmp_path / "small.int8.onnx"
    )
    near = done.certificate["agreement"]
    assert near["accuracy_eager"] > 0.9  # it has learned something
    assert near["top1_agreement"] > 0.97
    assert abs(near["accuracy_exported"] - near["accuracy_eager"]) < 0.03
    assert 0 < near["largest_difference"] < 0.1


def test_the_certificate_says_what_is_true(learned, tmp_path):
    path = tmp_path / "small.onnx"
    done = export(learned / "model", check=str(learned / "pictures"), num_checks=60, out=path)
    written = json.loads((tmp_path / "small.onnx.certificate.json").read_text())
    assert written == done.certificate
    assert sorted(file.name for file in tmp_path.iterdir()) == ["small.onnx", "small.onnx.certificate.json"]
    near = written["agreement"]
    assert near["pictures"] == 60 and near["origin"] == str(learned / "pictures")
    assert near["top1_agreement"] == 1 and near["largest_difference"] < 1e-5
    assert near["largest_input_difference_levels"] < 1.01
    assert written["result"] == {
        "file": "small.onnx",
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    source = (learned / "model" / "model.safetensors").read_bytes()
    assert written["source"]["sha256"] == hashlib.sha256(source).hexdigest()
    speed = written["speed"]  # of both in one process, in turn
    for name in ("eager_ms", "exported_ms", "times_faster"):
        low, high = speed[f"{name}_middle_half"]
        assert 0 < low <= speed[name] <= high
    assert speed["rounds"] >= 3
    assert speed["batch"] == 1 and speed["threads"] == torch.get_num_threads()
    assert written["versions"]["onnxruntime"] == onnxruntime.__version__


def test_without_pictures_it_says_so(learned, tmp_path):
    done = export(learned / "model", input="tensors", out=tmp_path / "a.onnx")
    assert "generated pictures" in done.certificate["agreement"]["origin"]
    assert "accuracy_eager" not in done.certificate["agreement"]
    assert done.certificate["agreement"]["largest_difference"] < 1e-4


def test_a_torch_program(learned, tmp_path):
    path = export(learned / "model", "torch-export", num_checks=4, out=tmp_path / "a.pt2").path
    program, eager = torch.export.load(path).module(), TorchPredictor.load(learned / "model")
    images = torch.randn(5, 3, 8, 12, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        for batch in (images, images[:1]):
            torch.testing.assert_close(program(batch), eager.task.predict(batch).logits, atol=1e-4, rtol=0)
    rounded = export(learned / "model", "torch-export", precision="bf16", num_checks=4, out=tmp_path / "b.pt2")
    assert 0 < rounded.certificate["agreement"]["largest_difference"] < 0.3


def test_our_own_folder(learned, tmp_path):
    done = export(learned / "model", "safetensors", num_checks=4, out=tmp_path / "a")
    assert done.certificate["agreement"]["largest_difference"] == 0
    again = export(learned / "model", "safetensors", precision="bf16", num_checks=4, out=tmp_path / "a")
    assert 0 < again.certificate["agreement"]["largest_difference"] < 0.3
    assert Trained.load(tmp_path / "a").weights["head.weight"].dtype == torch.bfloat16
    assert Predictor.load(tmp_path / "a").classes == CLASSES


def test_positions_are_resized_before(learned, tmp_path):
    done = export(learned / "model", picture_px=16, num_checks=4, out=tmp_path / "a.onnx")
    assert done.certificate["agreement"]["largest_difference"] < 1e-4
    assert Predictor.load(done.path).usage.fitting.size_px == (16, 16)


def test_weights_too_large_for_one_file_lie_beside_it(learned, tmp_path, monkeypatch):
    monkeypatch.setattr(graph, "PROTOBUF_LIMIT", 1000)
    done = export(learned / "model", num_checks=4, out=tmp_path / "deep" / "a.onnx")
    assert set(done.certificate["result"]["beside"]) == {"a.onnx.data"}
    assert Predictor.load(tmp_path / "deep" / "a.onnx").classes == CLASSES
    (tmp_path / "deep" / "a.onnx.data").unlink()
    with pytest.raises(UserError, match="missing; it holds the weights"):
        Predictor.load(tmp_path / "deep" / "a.onnx")


def test_bad_wishes_are_one_line(learned, tmp_path):
    encoder = random_trained()
    encoder = Trained(
        type(encoder.card)(model=encoder.card.model, preprocessing=encoder.card.preprocessing),
        {name: value for name, value in encoder.weights.items() if name.startswith("encoder.")},
        "encoder",
    )
    encoder.save(tmp_path / "encoder")
    (tmp_path / "empty").mkdir()
    for wish, match in (
        ({"to": "torch-export", "precision": "int8"}, "int8 is written as onnx"),
        ({"to": "safetensors", "input": "pictures"}, "takes tensors"),
        ({"out": tmp_path / "a.bin"}, "ends with .onnx"),
        ({"to": "safetensors", "out": tmp_path}, "a folder of something else"),
        ({"where": tmp_path / "encoder"}, "without a head"),
        ({"where": tmp_path / "nothing"}, "no such run"),
        ({"check": str(tmp_path / "nowhere")}, "no such file or folder"),
        ({"num_checks": 0}, "at least one"),
        ({"check": str(tmp_path / "empty")}, "empty"),
    ):
        with pytest.raises(UserError, match=match) as error:
            export(**({"where": learned / "model", "out": tmp_path / ("a" if "to" in wish else "a.onnx")} | wish))
        assert "\n" not in str(error.value)
    assert not list(tmp_path.glob(".*"))  # nothing half-made is left
