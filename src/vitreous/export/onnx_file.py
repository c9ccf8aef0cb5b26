"""A task as an .onnx file: preprocessing (where pictures go in), model, and (then too) calibrated probabilities."""

import json
from collections.abc import Callable
from pathlib import Path

from onnx import ModelProto, TensorProto

from vitreous import settings
from vitreous.data.kinds import TaskKind
from vitreous.export.graph import Graph, save_model
from vitreous.export.parts import NotByHandError, write_task
from vitreous.export.pictures import write_pictures
from vitreous.export.runtime import METADATA
from vitreous.export.segment import write_segment
from vitreous.export.traced import write_traced
from vitreous.export.usage import FITTED, Usage
from vitreous.tasks.base import Task
from vitreous.tasks.segment import Segment

Writer = Callable[[Task, Graph, str], tuple[str, tuple[int, ...]]]  # logits (B, K, ...), and what follows K


def write_onnx(task: Task, usage: Usage, path: Path) -> list[Path]:
    """The files it became. The model must be prepared for the size of the pictures: nothing is resized in the graph."""
    try:
        model = _model(task, usage, _write_by_hand)
    except NotByHandError:
        model = _model(task, usage, write_traced)
    return save_model(model, path)


def _model(task: Task, usage: Usage, write: Writer) -> ModelProto:
    """Raw where tensors go in, calibrated where pictures do."""
    graph, (h, w) = Graph(usage.precision), usage.fitting.size_px
    given: tuple[str, int, tuple[str | int, ...]]
    if usage.input == "tensors":
        given = ("tensors", TensorProto.FLOAT, ("batch", 3, h, w))
        output, places = write(task, graph, "tensors")
        name = "logits"
    else:
        given = ("pictures", TensorProto.UINT8, ("batch", "height", "width", 3))
        logits, places = write(task, graph, graph.called(write_pictures(usage.fitting, graph, "pictures"), FITTED))
        output, name = CALIBRATED[usage.reading.kind](graph, _write_scaled(usage, graph, logits))
    shape: tuple[str | int, ...] = ("batch", len(usage.reading.classes), *places)
    return graph.model(given, (output, name, shape), {METADATA: json.dumps(settings.to_json(usage))})


def _write_by_hand(task: Task, graph: Graph, x: str) -> tuple[str, tuple[int, ...]]:
    return write_segment(task, graph, x) if isinstance(task, Segment) else (write_task(task, graph, x), ())


def _write_scaled(usage: Usage, graph: Graph, logits: str) -> str:
    temperature = usage.reading.temperature
    return logits if temperature == 1 else graph.op("Mul", logits, graph.constant(1 / temperature))


# What scaled logits become where pictures go in, and the name of it, by kind of task.
CALIBRATED: dict[TaskKind, Callable[[Graph, str], tuple[str, str]]] = {
    "classify": lambda graph, logits: (graph.op("Softmax", logits, axis=-1), "probabilities"),
    "label": lambda graph, logits: (graph.op("Sigmoid", logits), "probabilities"),
    "segment": lambda graph, logits: (logits, "scaled_logits"),
}
