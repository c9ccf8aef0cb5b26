"""Families whose graph torch traces, as ONNX Runtime computes them, against torch."""

from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto
from small_models import CLASSES, probabilities, random_trained, vit

from test_conformance import MODELS
from vitreous.errors import UserError
from vitreous.export.graph import OPSET, Graph
from vitreous.export.job import export
from vitreous.export.program import trace
from vitreous.export.runtime import open_session
from vitreous.export.traced import Traced
from vitreous.models import PixelsSettings, ResNetSettings, ViTSettings
from vitreous.prediction.predictor import Predictor
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.tasks.classify import ClassifySettings
from vitreous.tasks.mask_queries import MaskQuerySettings
from vitreous.tasks.segment import SegmentSettings
from vitreous.weights.calibration import ClassCalibration

# Tracing takes a while a node: as few blocks as show all of a family. All that are not written by hand are here.
TRACED = {
    "swin": replace(MODELS["swin"], picture_px=(10, 14), depths=(2,), heads=(1,)),  # padded, and shifted
    "swin-one-window": replace(MODELS["swin"], picture_px=(6, 6), depths=(1, 1)),
    "convnext": replace(MODELS["convnext"], depths=(1, 1)),
    **{name: replace(MODELS[name], depths=(1, 1)) for name in ("pvt-v1", "pvt-v2", "pvt-v2-linear")},
    "resnet": MODELS["resnet"],  # of torchvision's layout; BiT is written by hand
    "tokeniser": MODELS["tokeniser"],
    "igpt": replace(MODELS["igpt"], depth=1, feature_depth=1),
    "pixels-uneven": PixelsSettings(picture_px=(8, 12), grid=(3, 5)),
}
SEGMENTERS = {
    "linear": ("swin-one-window", SegmentSettings(decoder="linear")),
    "mask-transformer": ("convnext", SegmentSettings(decoder="mask-transformer", depth=1, heads=2)),
}


@cache
def traced(name):
    """The task and what torch makes of it, which takes seconds."""
    family, task = SEGMENTERS.get(name, (name, ClassifySettings()))
    built = random_trained(TRACED[family], task=task).task()
    return built, Traced(built)


def written(traced, precision="fp32"):
    """The graph, and what computes with it in ONNX Runtime."""
    graph = Graph(precision)
    given = ("tensors", TensorProto.FLOAT, ("batch", 3, "h", "w"))
    session = open_session(graph.model([given], traced.write(graph, ["tensors"])).SerializeToString())
    return graph, lambda images: session.run(None, {"tensors": images.numpy()})[0]


def pictures(task, num=5):
    return torch.randn(num, 3, *task.encoder.picture_px, generator=torch.Generator().manual_seed(1))


def num_of(kind, graph):
    return sum(node.op_type == kind for node in graph.nodes)


@pytest.mark.parametrize("name", [*TRACED, *SEGMENTERS])
def test_every_family(name, capfd):
    task, found = traced(name)
    assert capfd.readouterr() == ("", "")  # the exporter is talkative
    images = pictures(task)
    with torch.inference_mode():
        expected = task.predict(images).logits.numpy()
    assert np.ptp(expected) > 0.01
    graph, run = written(found)
    np.testing.assert_allclose(run(images), expected, atol=1e-4, rtol=0)
    np.testing.assert_allclose(run(images[1:2]), expected[1:2], atol=1e-4, rtol=0)  # any number of pictures
    assert num_of("MatMulInteger", graph) == 0


@pytest.mark.parametrize("name", ["swin", "convnext", "pvt-v1", "pvt-v2", "igpt", *SEGMENTERS])
def test_int8_is_near_and_rounds_what_is_between_the_ends(name):
    task, found = traced(name)
    images = pictures(task)
    with torch.inference_mode():
        expected = task.predict(images).logits.numpy()
    graph, run = written(found, "int8")
    assert 0 < np.abs(run(images) - expected).max() < 0.1 * np.ptp(expected)
    assert num_of("MatMulInteger", graph) == len(set(found.dense) - found.ends()) > 0


def test_the_ends_are_the_layers_before_or_after_which_there_is_none():
    _, found = traced("swin-one-window")
    assert {found.dense[name].shape for name in set(found.dense) & found.ends()} == {(8, 12), (3, 16)}
    assert len(found.dense) == 2 + 2 * 4 + 1  # with four layers per block, and what merges patches
    _, found = traced("linear")  # both levels of the decoder; the tables that resize a map are no layers
    assert {found.dense[name].shape for name in set(found.dense) & found.ends()} == {(8, 12), (3, 8), (3, 16)}


def test_bf16_halves_the_weights():
    _, found = traced("convnext")
    full, half = (
        sum(len(constant.raw_data) for constant in written(found, precision)[0].constants)
        for precision in ("fp32", "bf16")
    )
    assert half < 0.75 * full


def test_the_file_is_like_any_other(tmp_path):
    """Pictures in, calibrated probabilities out, classes inside; and every time the same bytes."""
    calibration = ClassCalibration(sets=((0.9, 0.2),), temperature=1.5)
    random_trained(TRACED["convnext"], calibration=calibration).save(tmp_path / "model")
    done = [export(tmp_path / "model", num_checks=4, out=tmp_path / f"{name}.onnx") for name in "ab"]
    assert done[0].path.read_bytes() == done[1].path.read_bytes()
    near = done[0].certificate["agreement"]
    assert near["compared"] == "probabilities" and near["top1_agreement"] == 1
    assert done[0].certificate["versions"]["onnxscript"]
    graph = onnx.load(done[0].path)
    assert [each.version for each in graph.opset_import] == [OPSET]
    predictor = Predictor.load(done[0].path)
    assert predictor.classes == CLASSES and predictor.usage.fitting.size_px == TRACED["convnext"].picture_px
    generator = np.random.default_rng(0)
    some = [generator.integers(0, 256, (30, 40, 3), dtype=np.uint8) for _ in range(3)]
    expected = probabilities(TorchPredictor.load(tmp_path / "model"), some)
    np.testing.assert_allclose(probabilities(predictor, some), expected, atol=1e-4)


def test_a_segmenter_of_a_pyramid(tmp_path):
    family, task = SEGMENTERS["linear"]
    random_trained(TRACED[family], task=task).save(tmp_path / "model")
    near = export(tmp_path / "model", num_checks=4, out=tmp_path / "a.onnx").certificate["agreement"]
    assert near["compared"] == "scaled_logits" and near["least_pixel_agreement"] > 0.99


def test_queries_inside_a_vit(tmp_path):
    """As a class per pixel: file, certificate and predictions are any segmenter's."""
    task = MaskQuerySettings(decoder="eomt", queries=4, blocks=1)
    random_trained(vit(picture_px=(16, 24), patch=8, depth=1), task=task).save(tmp_path / "model")
    near = export(tmp_path / "model", num_checks=4, out=tmp_path / "a.onnx").certificate["agreement"]
    assert near["compared"] == "scaled_logits" and near["least_pixel_agreement"] > 0.99
    picture = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    ours, theirs = (Predictor.load(tmp_path / name)(picture) for name in ("model", "a.onnx"))
    assert ours.labels.shape == (40, 50) and (ours.labels == theirs.labels).mean() > 0.99


@pytest.mark.parametrize("name", ["pvt-v1", "mask-transformer"])
def test_a_program_takes_any_number_of_pictures(name):
    task, _ = traced(name)
    program = trace(task, task.encoder.picture_px, torch.float32).module()
    with torch.inference_mode():
        for batch in (pictures(task), pictures(task, 1)):
            torch.testing.assert_close(program(batch), task.predict(batch).logits, atol=1e-4, rtol=0)


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"ConvNeXt as an onnx file needs onnxscript: pip install 'vitreous\[export\]'"):
        Traced(random_trained(TRACED["convnext"]).task())


def test_no_family_is_forgotten():
    by_hand = {ViTSettings, ResNetSettings}
    assert {type(model) for model in TRACED.values()} | by_hand == {type(model) for model in MODELS.values()}
