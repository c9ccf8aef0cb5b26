"""What a detector says, as nodes of an ONNX graph: raw logits -> scores, as `prediction.boxes` computes them."""

import numpy as np
from onnx import TensorProto

from vitreous.export.graph import Graph, Value, Values
from vitreous.prediction.boxes import LARGEST_LOGIT
from vitreous.prediction.reading import Reading
from vitreous.weights.calibration import BoxCalibration


def write_scores(graph: Graph, reading: Reading, values: Values) -> Values:
    """Calibrated scores (B, Q, K) in place of logits (B, Q, K or K + 1); boxes stay as they are."""
    logits, num = values["logits"], len(reading.classes)
    calibration = reading.calibration if isinstance(reading.calibration, BoxCalibration) else BoxCalibration()
    scaled = graph.op("Mul", logits.name, graph.constant(1 / calibration.temperature))
    write = _write_each if logits.shape[-1] == num else _write_exclusive
    return {
        "scores": Value(write(graph, calibration, scaled, num), (*logits.shape[:-1], num)),
        "boxes": values["boxes"],
    }


def _write_each(graph: Graph, calibration: BoxCalibration, logits: str, num: int) -> str:
    """Of classes that are decided each for itself."""
    most = graph.constant(LARGEST_LOGIT)
    x = graph.op("Clip", logits, graph.op("Neg", most), most)
    line = graph.op("Add", graph.op("Mul", x, graph.constant(calibration.slopes[0])), graph.constant(calibration.shift))
    slopes = calibration.slopes
    for knot, before, after in zip(calibration.knots, slopes, slopes[1:], strict=False):
        beyond = graph.op("Relu", graph.op("Sub", x, graph.constant(knot)))
        line = graph.op("Add", line, graph.op("Mul", beyond, graph.constant(after - before)))
    return graph.op("Sigmoid", line)


def _write_exclusive(graph: Graph, calibration: BoxCalibration, logits: str, num: int) -> str:
    """Of classes that exclude each other, the last logit being for none: all but the likeliest class have 0."""
    shares = graph.op("Softmax", graph.op("Cast", logits, to=TensorProto.DOUBLE), axis=-1)
    shares = graph.part(shares, 0, num, axis=2)
    others = graph.op("Sub", graph.constant(np.array(1.0)), shares)
    odds = graph.op("Sub", graph.op("Log", shares), graph.op("Log", others))
    scores = _write_each(graph, calibration, graph.op("Cast", odds, to=TensorProto.FLOAT), num)
    best = graph.op("ArgMax", graph.part(logits, 0, num, axis=2), axis=-1, keepdims=1)
    is_best = graph.op("Equal", best, graph.constant(np.arange(num)))
    return graph.op("Where", is_best, scores, graph.constant(0.0))
