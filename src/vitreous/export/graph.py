"""Graph: an ONNX graph written node by node, in standard operators alone, so that any runtime can read it.

What decides its speed is `linear`: in int8 the weights are rounded once, one scale an output channel, and the inputs
as they come, one scale a tensor. The four nodes that say so are the pattern which ONNX Runtime fuses into one kernel.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from vitreous.export.usage import Precision

OPSET, IR_VERSION = 20, 10
PROTOBUF_LIMIT = 1_900_000_000  # bytes that one file may hold; beyond, the weights lie beside it


class Value(NamedTuple):
    """What a model gives."""

    name: str  # in the graph
    shape: tuple[int, ...]  # for one picture
    type: int = TensorProto.FLOAT


Values = dict[str, Value]  # by the names that users know them by
Given = tuple[str, int, Sequence[str | int]]  # an input's name, type and shape


class Graph:
    """Nodes in the order in which they are computed; a value is known by its name."""

    def __init__(self, precision: Precision = "fp32") -> None:
        self.precision = precision
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._small: dict[tuple[bytes, str, tuple[int, ...]], str] = {}
        self._rounded: dict[str, Sequence[str]] = {}

    # ---- nodes

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """One node with one output."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, num: int, *inputs: str, **attributes: Any) -> list[str]:
        """One node with several."""
        name = f"{kind}_{len(self.nodes)}"
        outputs = [name if i == 0 else f"{name}.{i}" for i in range(num)]
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=name, **attributes))
        return outputs

    def copy(self, node: onnx.NodeProto, *inputs: str) -> list[str]:
        """A node of another graph, with inputs of this one."""
        outputs = self.ops(node.op_type, len(node.output), *inputs)
        self.nodes[-1].attribute.extend(node.attribute)
        return outputs

    def constant(self, values: NDArray[Any] | Sequence[int] | int | float) -> str:
        array = np.asarray(values, None if isinstance(values, np.ndarray | float) else np.int64)
        if isinstance(values, float):
            array = array.astype(np.float32)
        key = (array.tobytes() if array.size < 100 else b"", array.dtype.str, array.shape)
        if key[0] and key in self._small:
            return self._small[key]
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        self._small[key] = name
        return name

    def weight(self, values: NDArray[np.float32]) -> str:
        """A constant which bf16 keeps in half the space; it is computed with in float32 all the same."""
        if self.precision != "bf16":
            return self.constant(values.astype(np.float32))
        name = f"constant_{len(self.constants)}"
        self.constants.append(
            helper.make_tensor(name, TensorProto.BFLOAT16, values.shape, _bfloat16(values).tobytes(), raw=True)
        )
        return self.op("Cast", name, to=TensorProto.FLOAT)

    def called(self, x: str, name: str) -> str:
        """The same value under a name of its own."""
        self.nodes.append(helper.make_node("Identity", [x], [name], name=name))
        return name

    # ---- what is needed everywhere

    def reshape(self, x: str, *shape: int) -> str:
        """0 keeps a side, -1 is what is left."""
        return self.op("Reshape", x, self.constant(shape))

    def first(self, x: str, num: int) -> str:
        """The first rows of axis 1."""
        return self.part(x, 0, num)

    def part(self, x: str, start: int, stop: int, axis: int = 1) -> str:
        return self.op("Slice", x, self.constant([start]), self.constant([stop]), self.constant([axis]))

    def linear(self, x: str, weight: NDArray[np.float32], bias: NDArray[np.float32] | None, exact: bool = False) -> str:
        """x @ weight.T + bias; the weight is (outputs, inputs), as torch has it. `exact`: not in int8."""
        columns = np.ascontiguousarray(weight.T)
        if self.precision == "int8" and not exact:
            product = self._int8_product(x, columns)
        else:
            product = self.op("MatMul", x, self.weight(columns))
        return product if bias is None else self.op("Add", product, self.constant(bias.astype(np.float32)))

    def _int8_product(self, x: str, columns: NDArray[np.float32]) -> str:
        scale = np.maximum(np.abs(columns).max(axis=0) / 127, 1e-30).astype(np.float32)  # (outputs,)
        whole = np.rint(columns / scale).astype(np.int8)
        if x not in self._rounded:  # queries, keys and values have one input
            self._rounded[x] = self.ops("DynamicQuantizeLinear", 3, x)
        levels, step, zero = self._rounded[x]
        sums = self.op("MatMulInteger", levels, self.constant(whole), zero)
        return self.op("Mul", self.op("Cast", sums, to=TensorProto.FLOAT), self.op("Mul", step, self.constant(scale)))

    # ---- the file

    def model(
        self,
        given: Sequence[Given],
        values: Values,
        metadata: Mapping[str, str] | None = None,
    ) -> onnx.ModelProto:
        """`given`: what goes in; `values`: what comes out."""
        for name, value in values.items():
            self.called(value.name, name)
        graph = helper.make_graph(
            self.nodes,
            "vitreous",
            [helper.make_tensor_value_info(*one) for one in given],
            [
                helper.make_tensor_value_info(name, value.type, ("batch", *value.shape))
                for name, value in values.items()
            ],
            self.constants,
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="vitreous")
        helper.set_model_props(model, dict(metadata or {}))
        return model


def save_model(model: onnx.ModelProto, path: Path) -> list[Path]:
    """One file; two where the weights are too large for one. Checked by ONNX itself."""
    large = sum(len(constant.raw_data) for constant in model.graph.initializer) > PROTOBUF_LIMIT
    beside = path.with_name(path.name + ".data")
    onnx.save_model(model, path, save_as_external_data=large, location=beside.name)
    onnx.checker.check_model(path, full_check=True)
    return [path, beside] if large else [path]


def _bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper half of each float32, rounded to the nearest, halves to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
