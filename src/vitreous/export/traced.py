"""Any task as nodes of an ONNX graph, traced by torch: for families whose parts nobody has written by hand.

torch's nodes are copied one by one into a graph of ours, without its notes on where each came from, so that one model
always becomes the same bytes. Dense layers and convolutions among them are written as those of other models are: int8
and bf16 mean the same in both kinds of file.
"""

import hashlib
import importlib.util
import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitreous.errors import UserError, first_line
from vitreous.export.graph import OPSET, Graph, Value, Values
from vitreous.export.program import trace
from vitreous.tasks.base import Task

Array = NDArray[np.float32]
REARRANGING = ("Split", "Concat", "Transpose")


def write_traced(task: Task, graph: Graph, inputs: Sequence[str]) -> Values:
    """(B, 3, h, w) normalised, and the extents (B, 2) if the task takes them -> its raw outputs."""
    return Traced(task, with_extent=len(inputs) > 1).write(graph, inputs)


class Traced:
    """A task as torch's exporter writes it."""

    def __init__(self, task: Task, with_extent: bool = False) -> None:
        graph = _exported(task, with_extent)
        self.nodes: Sequence[onnx.NodeProto] = graph.node
        self.values: dict[str, NDArray[Any]] = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        self.inputs = [each.name for each in graph.input]
        self.outputs = dict(zip(_names(task), map(_value, graph.output), strict=True))
        known = {_content(each.detach().numpy()) for each in task.parameters() if each.ndim == 2}
        tables = {name: one for name, one in self.values.items() if one.ndim == 2}
        learned = {name for name, one in tables.items() if not known.isdisjoint((_content(one), _content(one.T)))}
        self.nodes = self._rearranged(learned)
        # A product with any other table, such as one that resizes maps, is not learned, and is never rounded.
        products = [node for node in self.nodes if node.op_type in ("MatMul", "Gemm") and node.input[1] in learned]
        dense = {node.output[0]: self._weight(node) for node in products}
        self.dense = {name: one for name, one in dense.items() if one is not None}

    def _rearranged(self, learned: set[str]) -> list[onnx.NodeProto]:
        """The nodes without those that cut up, join or turn weights: their results are weights, too. (Of an attention's
        one matrix for queries, keys and values, detectors use parts.)"""
        left = []
        for node in self.nodes:
            if node.op_type not in REARRANGING or not all(name in self.values for name in node.input):
                left.append(node)
                continue
            made = ReferenceEvaluator(node).run(None, {name: self.values[name] for name in node.input})
            assert isinstance(made, list)
            self.values.update(zip(node.output, made, strict=True))
            if not learned.isdisjoint(node.input):
                learned.update(node.output)
        return left

    def write(self, graph: Graph, inputs: Sequence[str]) -> Values:
        exact, names = self.ends(), dict(zip(self.inputs, inputs, strict=True))
        names[""] = ""  # an input without a name is one that is left out
        for node in self.nodes:
            if node.output[0] in self.dense:
                weight, is_exact = self.dense[node.output[0]], node.output[0] in exact
                bias = self.values[node.input[2]] if len(node.input) > 2 else None
                names[node.output[0]] = graph.linear(names[node.input[0]], weight, bias, is_exact)
                continue
            for place, name in enumerate(node.input):
                if name not in names:
                    is_filter = node.op_type == "Conv" and place == 1
                    names[name] = (graph.weight if is_filter else graph.constant)(self.values[name])
            names.update(zip(node.output, graph.copy(node, *(names[name] for name in node.input)), strict=True))
        return {name: value._replace(name=names[value.name]) for name, value in self.outputs.items()}

    def _weight(self, node: onnx.NodeProto) -> Array | None:
        """(outputs, inputs), as torch has it, of x @ weight.T or x @ weight.T + bias."""
        options = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        is_turned = not options.pop("transB", 0)
        if any(value != (name != "transA") for name, value in options.items()):  # of all others 1 is the plain one
            return None
        if not all(name in self.values for name in node.input[1:]) or self.values[node.input[1]].ndim != 2:
            return None
        return self.values[node.input[1]].T if is_turned else self.values[node.input[1]]

    def ends(self) -> set[str]:
        """The outputs of the first layers and of the last ones."""
        layers = {*self.dense, *(node.output[0] for node in self.nodes if node.op_type == "Conv")}
        forward = [(node.output[0], node.input, node.output) for node in self.nodes]
        backward = [(name, after, before) for name, before, after in reversed(forward)]
        return _outermost(forward, layers) | _outermost(backward, layers)


def _outermost(steps: Iterable[tuple[str, Iterable[str], Iterable[str]]], layers: set[str]) -> set[str]:
    """Those layers which a walk over (name, values before, values after) meets before any other."""
    found, behind = set(), set[str]()
    for name, before, after in steps:
        is_behind = not behind.isdisjoint(before)
        if name in layers and not is_behind:
            found.add(name)
        if name in layers or is_behind:
            behind.update(after)
    return found


def _names(task: Task) -> list[str]:
    """Of what it says."""
    with torch.no_grad():
        return list(task.predict(torch.zeros(1, 3, *task.encoder.picture_px)).outputs())


def _value(found: onnx.ValueInfoProto) -> Value:
    return Value(found.name, tuple(side.dim_value for side in found.type.tensor_type.shape.dim[1:]))


def _content(matrix: NDArray[Any]) -> tuple[tuple[int, ...], bytes]:
    return matrix.shape, hashlib.sha256(matrix.tobytes()).digest()


@contextmanager
def _silent(name: str) -> Iterator[None]:
    log = logging.getLogger(name)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _exported(task: Task, with_extent: bool) -> onnx.GraphProto:
    family = type(task.encoder).__name__
    if importlib.util.find_spec("onnxscript") is None:
        raise UserError(f"{family} as an onnx file needs onnxscript: pip install 'vitreous[export]'")
    # Kernels of the attention differ in how their outputs lie in memory, and the exporter takes one for the other: the
    # plain form is laid out as it believes. Its warnings are about its own insides.
    with warnings.catch_warnings(), _silent("onnxscript"), sdpa_kernel(SDPBackend.MATH):
        warnings.simplefilter("ignore")
        try:
            program = trace(task, task.encoder.picture_px, torch.float32, with_extent)
            written = torch.onnx.export(program, dynamo=True, opset_version=OPSET, verbose=False)
        except torch.onnx.errors.OnnxExporterError as error:
            reason = first_line(error.__cause__ or error)
            raise UserError(f"{family}: torch cannot write it as ONNX ({reason}); --to torch-export takes it") from None
    assert written is not None
    graph: onnx.GraphProto = written.model_proto.graph
    return graph
