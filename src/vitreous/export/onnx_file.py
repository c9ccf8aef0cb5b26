"""A task as an .onnx file: preprocessing (where pictures go in), model, and (then too) calibrated probabilities."""

import json
from collections.abc import Callable
from pathlib import Path

from onnx import TensorProto

from vitreous import settings
from vitreous.data.kinds import TaskKind
from vitreous.export.graph import Graph, save_model
from vitreous.export.parts import write_task
from vitreous.export.pictures import write_pictures
from vitreous.export.runtime import METADATA
from vitreous.export.segment import write_segment
from vitreous.export.usage import FITTED, Usage
from vitreous.tasks.base import Task
from vitreous.tasks.segment import Segment

Output = tuple[str, str, tuple[str | int, ...]]  # a name inside the graph, the name it gets, its shape


def write_onnx(task: Task, usage: Usage, path: Path) -> list[Path]:
    """The files it became. The model must be prepared for the size of the pictures: nothing is resized in the graph."""
    graph, (h, w) = Graph(usage.precision), usage.fitting.size_px
    given: tuple[str, int, tuple[str | int, ...]]
    if usage.input == "tensors":
        given = ("tensors", TensorProto.FLOAT, ("batch", 3, h, w))
        fitted = "tensors"
    else:
        given = ("pictures", TensorProto.UINT8, ("batch", "height", "width", 3))
        fitted = graph.called(write_pictures(usage.fitting, graph, "pictures"), FITTED)
    output = HEADS[usage.reading.kind](task, usage, graph, fitted)
    metadata = {METADATA: json.dumps(settings.to_json(usage))}
    return save_model(graph.model(given, output, metadata), path)


# ---- one function per kind of task: raw where tensors go in, calibrated where pictures do


def _write_softmax(task: Task, usage: Usage, graph: Graph, x: str) -> Output:
    if usage.input == "tensors":
        return write_task(task, graph, x), "logits", _rows(usage)
    scaled = _write_scaled(usage, graph, write_task(task, graph, x))
    return graph.op("Softmax", scaled, axis=-1), "probabilities", _rows(usage)


def _write_sigmoid(task: Task, usage: Usage, graph: Graph, x: str) -> Output:
    if usage.input == "tensors":
        return write_task(task, graph, x), "logits", _rows(usage)
    scaled = _write_scaled(usage, graph, write_task(task, graph, x))
    return graph.op("Sigmoid", scaled), "probabilities", _rows(usage)


def _write_pixels(task: Task, usage: Usage, graph: Graph, x: str) -> Output:
    assert isinstance(task, Segment)
    logits, grid = write_segment(task, graph, x)
    shape = (*_rows(usage), *grid)
    if usage.input == "tensors":
        return logits, "logits", shape
    return _write_scaled(usage, graph, logits), "scaled_logits", shape


def _write_scaled(usage: Usage, graph: Graph, logits: str) -> str:
    temperature = usage.reading.temperature
    return logits if temperature == 1 else graph.op("Mul", logits, graph.constant(1 / temperature))


def _rows(usage: Usage) -> tuple[str | int, ...]:
    return ("batch", len(usage.reading.classes))


HEADS: dict[TaskKind, Callable[[Task, Usage, Graph, str], Output]] = {
    "classify": _write_softmax,
    "label": _write_sigmoid,
    "segment": _write_pixels,
}
