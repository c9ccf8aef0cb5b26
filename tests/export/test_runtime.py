import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from small_models import CLASSES, probabilities, random_trained

from vitreous.data.images import BadPicture
from vitreous.errors import UserError
from vitreous.export import runtime
from vitreous.export.job import export
from vitreous.prediction.predictor import Predictor
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.tasks.classify import ClassifySettings
from vitreous.weights.calibration import ClassCalibration, ManyCalibration


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("exported")


@pytest.fixture(scope="module")
def trained(folder):
    trained = random_trained(calibration=ClassCalibration(temperature=2.0, sets=((0.9, 0.3), (0.99, 0.05))))
    trained.save(folder / "source")
    return trained


@pytest.fixture(scope="module")
def files(folder, trained):
    """Both kinds of input."""
    return {
        kind: export(folder / "source", input=kind, num_checks=3, out=folder / kind / "model.onnx").path
        for kind in ("pictures", "tensors")
    }


def pictures():
    generator = np.random.default_rng(0)
    return [generator.integers(0, 256, (*size, 3), dtype=np.uint8) for size in ((8, 12), (30, 20), (8, 12), (5, 70))]


@pytest.mark.parametrize("kind", ["pictures", "tensors"])
def test_answers_are_those_of_torch(kind, files, trained):
    expected = probabilities(TorchPredictor(trained), pictures())
    for where in (files[kind], str(files[kind].parent)):
        predictor = Predictor.load(where)
        np.testing.assert_allclose(probabilities(predictor, pictures()), expected, atol=1e-5)
    first = predictor(pictures()[1])
    assert first.classes == CLASSES
    assert first.prediction_set(0.99) == tuple(name for name, value in first.top(3) if value >= 0.05)


@pytest.mark.parametrize("kind", ["pictures", "tensors"])
def test_several_labels_have_a_sigmoid_each(kind, tmp_path):
    trained = random_trained(task=ClassifySettings(loss="sigmoid"), calibration=ManyCalibration(temperature=3.0))
    trained.save(tmp_path / "source")
    path = export(tmp_path / "source", input=kind, num_checks=2, out=tmp_path / "model.onnx").path
    expected = probabilities(TorchPredictor(trained), pictures())
    np.testing.assert_allclose(probabilities(Predictor.load(path), pictures()), expected, atol=1e-5)


def test_many_pictures_come_in_order_with_the_bad_ones(files):
    predictor = Predictor.load(files["pictures"])
    given = [pictures()[1], b"no picture", pictures()[0], b"", pictures()[2]]
    found = list(predictor.outcomes(given, batch_size=2))
    assert [isinstance(one, BadPicture) for one in found] == [False, True, False, True, False]
    for place in (0, 2, 4):
        np.testing.assert_allclose(found[place].probabilities, predictor(given[place]).probabilities, atol=1e-6)


def test_answers_stream(files):
    """A picture is answered before the next is asked for."""
    asked = []

    def given():
        for number, picture in enumerate(pictures()):
            asked.append(number)
            yield picture

    stream = Predictor.load(files["pictures"]).outcomes(given(), batch_size=1)
    next(stream)
    assert asked == [0]


@pytest.mark.parametrize("kind", ["pictures", "tensors"])
def test_no_torch_is_imported(kind, files, tmp_path):
    from PIL import Image

    Image.fromarray(pictures()[1]).save(tmp_path / "a.png")
    code = """
import sys
from vitreous.cli import Parser
from vitreous.verbs import predict

parser = Parser()
predict.add(parser)
predict.run(parser.parse_args(sys.argv[1:]))
assert "onnxruntime" in sys.modules
assert not {name for name in sys.modules if name.split(".")[0] in ("torch", "pyarrow")}, "imported after all"
"""
    words = [str(files[kind]), str(tmp_path / "a.png"), "--format", "jsonl", "--coverage", "0.9"]
    ended = subprocess.run(
        [sys.executable, "-c", code, *words], check=False, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["label"] in CLASSES


def test_a_flipped_bit_is_noticed(files, tmp_path):
    data = bytearray(files["pictures"].read_bytes())
    data[len(data) // 2] ^= 1
    damaged = tmp_path / "model.onnx"
    damaged.write_bytes(data)
    beside = "model.onnx.certificate.json"
    (tmp_path / beside).write_bytes((files["pictures"].parent / beside).read_bytes())
    with pytest.raises(UserError, match="damaged"):
        Predictor.load(damaged)
    (tmp_path / beside).write_text("{}")
    with pytest.raises(UserError, match="not a certificate"):
        Predictor.load(damaged)


def test_a_file_alone_is_enough(files, tmp_path):
    alone = tmp_path / "alone.onnx"
    alone.write_bytes(files["pictures"].read_bytes())
    assert Predictor.load(alone)(pictures()[0]).best in CLASSES


def test_what_is_not_ours_is_refused_in_one_line(files, tmp_path):
    foreign = onnx.load(files["pictures"])
    del foreign.metadata_props[:]
    onnx.save(foreign, tmp_path / "foreign.onnx")
    (tmp_path / "text.onnx").write_text("hello")
    (tmp_path / "program.pt2").write_text("hello")
    for name, match in (
        ("foreign.onnx", "not written by `vitreous export`"),
        ("text.onnx", "not read by ONNX Runtime"),
        ("program.pt2", "runs code"),
        ("missing.onnx", "no such file"),
    ):
        with pytest.raises(UserError, match=match) as error:
            Predictor.load(tmp_path / name)
        assert "\n" not in str(error.value)
    (tmp_path / "program.pt2").unlink()
    with pytest.raises(UserError, match="2 exported models"):
        Predictor.load(tmp_path)


def test_large_pictures_of_one_size_are_not_all_in_one_batch(files, monkeypatch):
    predictor, sizes = Predictor.load(files["pictures"]), []
    run = runtime._run

    def watched(session, inputs):
        sizes.append(inputs.shape)
        return run(session, inputs)

    monkeypatch.setattr(runtime, "_run", watched)
    monkeypatch.setattr(runtime, "BATCH_PIXELS", 2 * 8 * 12)
    given = [*pictures(), *pictures()]
    found = probabilities(predictor, given)
    assert all(num == 1 or num * height * width <= runtime.BATCH_PIXELS for num, height, width, _ in sizes)
    assert (2, 8, 12, 3) in sizes  # together where there is room
    np.testing.assert_allclose(found, [probabilities(predictor, [one])[0] for one in given], atol=1e-6)


def test_a_runtime_without_memory_says_so(files):
    predictor = Predictor.load(files["pictures"])

    class Exhausted:
        def get_inputs(self):
            return predictor.session.get_inputs()

        def run(self, *_):
            raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : bad allocation")

    with pytest.raises(MemoryError, match="bad allocation"):
        runtime._run(Exhausted(), np.zeros((1, 8, 12, 3), np.uint8))
