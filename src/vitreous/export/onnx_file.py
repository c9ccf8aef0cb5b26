"""A task as an .onnx file: preprocessing (where pictures go in), model, and (then too) calibrated probabilities."""

import json
from pathlib import Path

from onnx import TensorProto

from vitreous import settings
from vitreous.export.graph import Graph, save_model
from vitreous.export.parts import write_task
from vitreous.export.pictures import write_pictures
from vitreous.export.runtime import METADATA
from vitreous.export.usage import FITTED, Usage
from vitreous.tasks.base import Task


def write_onnx(task: Task, usage: Usage, path: Path) -> list[Path]:
    """The files it became. The model must be prepared for the size of the pictures: nothing is resized in the graph."""
    graph, (h, w) = Graph(usage.precision), usage.fitting.size_px
    given: tuple[str, int, tuple[str | int, ...]]
    if usage.input == "tensors":
        given = ("tensors", TensorProto.FLOAT, ("batch", 3, h, w))
        answer = write_task(task, graph, "tensors")
    else:
        given = ("pictures", TensorProto.UINT8, ("batch", "height", "width", 3))
        fitted = graph.called(write_pictures(usage.fitting, graph, "pictures"), FITTED)
        answer = _write_probabilities(usage, graph, write_task(task, graph, fitted))
    shape = ("batch", len(usage.classes))
    metadata = {METADATA: json.dumps(settings.to_json(usage))}
    return save_model(graph.model(given, (answer, usage.output_name, shape), metadata), path)


def _write_probabilities(usage: Usage, graph: Graph, logits: str) -> str:
    scaled = logits if usage.temperature == 1 else graph.op("Mul", logits, graph.constant(1 / usage.temperature))
    return graph.op("Sigmoid", scaled) if usage.loss == "sigmoid" else graph.op("Softmax", scaled, axis=-1)
