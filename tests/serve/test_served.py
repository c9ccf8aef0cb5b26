"""Models as the service uses them, in this process."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from running import save_model, unpacked

from vitreous.export.job import export
from vitreous.models import ConvNeXtSettings
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.serve import inside
from vitreous.serve.answers import as_json
from vitreous.serve.body import Refused
from vitreous.serve.served import open_served
from vitreous.serve.service import Service
from vitreous.serve.settings import ServeSettings
from vitreous.weights.trained import Trained

PLAIN = {"top": 2, "coverage": None, "abstain": None}


def picture(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (37, 51, 3), dtype=np.uint8)


def test_an_encoder_alone_has_features_but_no_answers(tmp_path, run):
    whole = Trained.load(run)
    weights = {name: value for name, value in whole.weights.items() if name.startswith("encoder.")}
    replace(whole, card=replace(whole.card, task=None, classes=()), weights=weights).save(tmp_path / "encoder")
    served = open_served(str(tmp_path / "encoder"), "cpu", 1)
    assert served.describe()["can"] == ["embed", "attention"]
    assert served.embed([served.prepare(picture())]).shape == (1, 32)
    header, _ = unpacked(served.attention(served.prepare(picture()), {}))
    assert header["prediction"] is None


def test_one_without_attention_says_why(tmp_path):
    model = ConvNeXtSettings(picture_px=(32, 32), widths=(8, 12), depths=(1, 1))
    described = open_served(str(save_model(tmp_path / "convnext", model=model)), "cpu", 1).describe()
    assert described["can"] == ["embed", "predict"] and described["tokens"] is None
    assert described["closed"].startswith("it has no attention over patches")
    service = Service(ServeSettings(models=(str(tmp_path / "convnext"),)), ["convnext"])
    (process,) = service.models.values()
    process.is_ready, process.description, process.queue = True, described, 1
    with pytest.raises(Refused, match="the model convnext cannot attention: it has no attention over patches"):
        service.able("convnext", "attention")


def test_too_many_heads_are_averaged(run, monkeypatch):
    served = open_served(str(run), "cpu", 1)
    prepared = served.prepare(picture())
    _, each = unpacked(served.attention(prepared, PLAIN))
    monkeypatch.setattr(inside, "MAX_ATTENTION_BYTES", 1000)
    header, mean = unpacked(served.attention(prepared, PLAIN))
    assert header["heads_averaged"]
    assert (header["layers"][1]["heads"], mean["weights_2"].shape) == (1, (1, 1, 21, 21))
    weights, average = (one["weights_2"] / 255 * one["scale_2"][..., None] for one in (each, mean))
    np.testing.assert_allclose(weights.mean(axis=0, keepdims=True), average, atol=0.005)
    monkeypatch.setattr(inside, "MAX_ATTENTION_BYTES", 100)
    with pytest.raises(Exception, match="too large to send"):
        served.attention(prepared, PLAIN)


def test_a_batch_changes_no_answer(run):
    """Nor does the order in it."""
    served = open_served(str(run), "cpu", 1)
    prepared = [served.prepare(picture(seed)) for seed in range(16)]
    alone = [np.log(served.predict([one])[0].probabilities) for one in prepared]
    for size in (2, 3, 16):
        together = [np.log(answer.probabilities) for answer in served.predict(prepared[:size][::-1])][::-1]
        for one, other in zip(alone, together, strict=False):
            assert one.argmax() == other.argmax()
            np.testing.assert_allclose(one * 1.7, other * 1.7, atol=1e-4)


def test_an_exported_model_answers_without_torch(run, tmp_path):
    path = export(str(run), "onnx", out=tmp_path / "model.onnx", num_checks=2).path
    expected = TorchPredictor.load(run)(picture())
    np.save(tmp_path / "picture.npy", picture())
    code = """
import sys
import numpy as np
from vitreous.serve.answers import as_json
from vitreous.serve.service import Service
from vitreous.serve.body import Refused
from vitreous.serve.served import open_served
from vitreous.serve.settings import ServeSettings
served = open_served(sys.argv[1], "auto", 1)
answer = served.predict([served.prepare(np.load(sys.argv[2]))])[0]
print(served.describe()["can"], as_json(answer, {"top": 1, "coverage": 0.9, "abstain": 1.0}))
assert "torch" not in sys.modules
"""
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "picture.npy")]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("['predict'] {'label': None, 'top': [{'label': ")
    assert repr(expected.best) in ended.stdout
    assert f"'set': {list(expected.prediction_set(0.9))!r}" in ended.stdout


def test_answers_as_json(run):
    answer = TorchPredictor.load(run)(picture())
    found = as_json(answer, PLAIN)
    assert found == {
        "label": answer.best,
        "top": [{"label": label, "probability": value} for label, value in answer.top(2)],
    }
