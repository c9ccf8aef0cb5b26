"""Exported models on 200 real pictures: the embedded clothes, and photographs where VITREOUS_DATA names a folder."""

import os

import numpy as np
import onnx
import pytest
import torch
from small_models import probabilities, vit

from vitreous.data.sources import open_sources
from vitreous.data.transforms import Preprocessing
from vitreous.export.job import export
from vitreous.prediction.predictor import Predictor
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.tasks.classify import ClassifySettings
from vitreous.weights.calibration import ClassCalibration
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

NUM = 200


@pytest.fixture(scope="module", params=["fashion", "imagenette224"])
def real(request, tmp_path_factory):
    """Where the pictures are, and a folder with a model for them, all of whose weights count."""
    if request.param != "fashion" and not os.environ.get("VITREOUS_DATA"):
        pytest.skip(f"VITREOUS_DATA is not set: {request.param} is not found")
    classes = next(iter(open_sources(request.param).values())).classes
    torch.manual_seed(0)
    model, task = vit(picture_px=(48, 48), patch=8, width=32, heads=4), ClassifySettings()
    built = task.build(model.build(), classes)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    preprocessing = Preprocessing(size_px=model.picture_px, crop_fraction=0.9)
    card = Card(
        model=model,
        task=task,
        classes=classes,
        preprocessing=preprocessing,
        calibration=ClassCalibration(temperature=1.3),
    )
    folder = tmp_path_factory.mktemp(request.param)
    Trained(card, built.state_dict(), "random").save(folder / "model")
    return request.param, folder


def test_tensors_in(real):
    data, folder = real
    done = export(folder / "model", input="tensors", check=data, num_checks=NUM, out=folder / "tensors.onnx")
    near = done.certificate["agreement"]
    assert (near["pictures"], near["compared"], near["origin"]) == (NUM, "logits", data)
    assert near["largest_difference"] < 1e-4
    assert near["top1_agreement"] == 1


def test_pictures_in(real):
    data, folder = real
    done = export(folder / "model", input="pictures", check=data, num_checks=NUM, out=folder / "pictures.onnx")
    near = done.certificate["agreement"]
    assert (near["pictures"], near["compared"]) == (NUM, "probabilities")
    assert near["largest_input_difference_levels"] < 1.01  # one of 255, and what float32 adds
    assert near["top1_agreement"] == 1
    assert 0 < near["accuracy_eager"] == near["accuracy_exported"] < 0.5  # untrained


def test_many_at_once_are_answered_as_one_by_one(real):
    data, folder = real
    parts = open_sources(data)
    source = parts["test" if "test" in parts else "val"]
    pictures = [source.read(place) for place in range(40)]
    path = export(folder / "model", num_checks=1, out=folder / "batch.onnx").path
    expected = probabilities(TorchPredictor.load(folder / "model"), pictures)
    assert len(set(expected.argmax(axis=1))) > 1  # it does not say the same of all
    predictor = Predictor.load(path)
    np.testing.assert_allclose(probabilities(predictor, pictures), expected, atol=1e-4)
    alone = np.concatenate([probabilities(predictor, [picture]) for picture in pictures])
    np.testing.assert_allclose(alone, expected, atol=1e-4)


def test_positions_are_not_resized_in_the_graph(real):
    data, folder = real
    done = export(
        folder / "model", input="tensors", picture_px=64, check=data, num_checks=NUM, out=folder / "larger.onnx"
    )
    assert done.certificate["agreement"]["largest_difference"] < 1e-4
    graph = onnx.load(done.path).graph
    assert not {node.op_type for node in graph.node} & {"Resize", "Upsample", "GridSample"}
    (given,) = graph.input
    assert [each.dim_param or each.dim_value for each in given.type.tensor_type.shape.dim] == ["batch", 3, 64, 64]
