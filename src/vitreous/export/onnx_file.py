"""A task as an .onnx file: preprocessing (where pictures go in), model, and (then too) calibrated probabilities."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from onnx import ModelProto, TensorProto

from vitreous import settings
from vitreous.data.kinds import TaskKind
from vitreous.export.boxes import write_instance_scores, write_scores
from vitreous.export.graph import Given, Graph, Value, Values, save_model
from vitreous.export.parts import NotByHandError, write_task
from vitreous.export.pictures import write_extent, write_pictures
from vitreous.export.program import takes_extent
from vitreous.export.runtime import METADATA
from vitreous.export.segment import write_segment
from vitreous.export.traced import write_traced
from vitreous.export.usage import FITTED, Usage
from vitreous.prediction.reading import Reading
from vitreous.tasks.base import Task
from vitreous.tasks.classify import Classify
from vitreous.tasks.segment import Segment

Writer = Callable[[Task, Graph, Sequence[str]], Values]  # of what the model sees, and perhaps extents: raw outputs


def write_onnx(task: Task, usage: Usage, path: Path) -> list[Path]:
    """The files it became. The model must be prepared for the size of the pictures: nothing is resized in the graph."""
    try:
        model = _model(task, usage, partial(_write_by_hand, num_classes=len(usage.reading.classes)))
    except NotByHandError:
        model = _model(task, usage, write_traced)
    return save_model(model, path)


def _model(task: Task, usage: Usage, write: Writer) -> ModelProto:
    """Raw where tensors go in, calibrated where pictures do."""
    graph, (h, w) = Graph(usage.precision), usage.fitting.size_px
    with_extent = takes_extent(task, usage.fitting)
    if usage.input == "tensors":
        given: list[Given] = [("tensors", TensorProto.FLOAT, ("batch", 3, h, w))]
        given += [("extent", TensorProto.INT64, ("batch", 2))] if with_extent else []
        values = write(task, graph, [name for name, *_ in given])
    else:
        given = [("pictures", TensorProto.UINT8, ("batch", "height", "width", 3))]
        inputs = [graph.called(write_pictures(usage.fitting, graph, "pictures"), FITTED)]
        inputs += [write_extent(usage.fitting, graph, "pictures")] if with_extent else []
        values = CALIBRATED[usage.reading.kind](graph, usage.reading, write(task, graph, inputs))
    return graph.model(given, values, {METADATA: json.dumps(settings.to_json(usage))})


def _write_by_hand(task: Task, graph: Graph, inputs: Sequence[str], num_classes: int) -> Values:
    if isinstance(task, Segment):
        logits, places = write_segment(task, graph, inputs[0])
        return {"logits": Value(logits, (num_classes, *places))}
    if isinstance(task, Classify):
        return {"logits": Value(write_task(task, graph, inputs[0]), (num_classes,))}
    raise NotByHandError(type(task).__name__)


# ---- What raw outputs become where pictures go in


def _write_softmax(graph: Graph, reading: Reading, values: Values) -> Values:
    scaled = _write_scaled(graph, reading, values)
    return {"probabilities": scaled._replace(name=graph.op("Softmax", scaled.name, axis=-1))}


def _write_sigmoid(graph: Graph, reading: Reading, values: Values) -> Values:
    scaled = _write_scaled(graph, reading, values)
    return {"probabilities": scaled._replace(name=graph.op("Sigmoid", scaled.name))}


def _write_scaled(graph: Graph, reading: Reading, values: Values) -> Value:
    logits = values["logits"]
    if reading.temperature == 1:
        return logits
    return logits._replace(name=graph.op("Mul", logits.name, graph.constant(1 / reading.temperature)))


CALIBRATED: dict[TaskKind, Callable[[Graph, Reading, Values], Values]] = {
    "classify": _write_softmax,
    "label": _write_sigmoid,
    "segment": lambda graph, reading, values: {"scaled_logits": _write_scaled(graph, reading, values)},
    "detect": write_scores,
    "instances": write_instance_scores,
}
