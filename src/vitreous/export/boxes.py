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


def write_instance_scores(graph: Graph, reading: Reading, values: Values) -> Values:
    """Calibrated scores (B, Q, K) in place of logits (B, Q, K + 1), as `prediction.instances` computes them; masks stay
    as they are."""
    logits, masks, num = values["logits"], values["masks"], len(reading.classes)
    calibration = reading.calibration if isinstance(reading.calibration, BoxCalibration) else BoxCalibration()
    scaled = graph.op("Mul", logits.name, graph.constant(1 / calibration.temperature))
    wide = graph.op("Cast", scaled, to=TensorProto.DOUBLE)
    shares = graph.part(graph.op("Softmax", wide, axis=-1), 0, num, axis=2)
    sure = graph.op("Cast", _write_sureness(graph, masks.name), to=TensorProto.DOUBLE)
    raw = graph.op("Mul", shares, sure)
    others = graph.op("Sub", graph.constant(np.array(1.0)), raw)
    odds = graph.op("Sub", graph.op("Log", raw), graph.op("Log", others))
    scores = _write_each(graph, calibration, graph.op("Cast", odds, to=TensorProto.FLOAT), num)
    is_said = graph.op("And", _is_best(graph, scaled, num), graph.op("Greater", raw, graph.constant(np.array(0.0))))
    said = graph.op("Where", is_said, scores, graph.constant(0.0))
    return {"scores": Value(said, (*logits.shape[:-1], num)), "masks": masks}


def _write_sureness(graph: Graph, masks: str) -> str:
    """(B, Q, h, w) -> (B, Q, 1): the mean probability of the cells that a query takes; 0 where it takes none."""
    inside = graph.op("Cast", graph.op("Greater", masks, graph.constant(0.0)), to=TensorProto.FLOAT)
    sure = graph.op("Mul", graph.op("Sigmoid", masks), inside)
    axes = graph.constant([2, 3])
    sums = [graph.op("ReduceSum", one, axes, keepdims=0) for one in (sure, inside)]
    mean = graph.op("Div", sums[0], graph.op("Max", sums[1], graph.constant(1.0)))
    return graph.op("Unsqueeze", mean, graph.constant([2]))


def _write_each(graph: Graph, calibration: BoxCalibration, logits: str, num: int) -> str:
    """Of classes that are decided each for itself."""
    most = graph.constant(LARGEST_LOGIT)
    x = graph.op("Clip", logits, graph.op("Neg", most), most)
    line = graph.op("Add", graph.op("Mul", x, graph.constant(calibration.slopes[0])), graph.constant(calibration.shift))
    slopes = calibration.slopes
    for knot, before, after in zip(calibration.knots, slopes, slopes[1:], strict=False):
        beyond = graph.op("Relu", graph.op("Sub", x, graph.constant(knot)))
        line = graph.op("Add", line, graph.op("Mul", beyond, graph.constant(after - before)))
    if calibration.offsets:
        line = graph.op("Add", line, graph.constant(np.array(calibration.offsets, np.float32)))
    return graph.op("Sigmoid", line)


def _write_exclusive(graph: Graph, calibration: BoxCalibration, logits: str, num: int) -> str:
    """Of classes that exclude each other, the last logit being for none: all but the likeliest class have 0."""
    shares = graph.op("Softmax", graph.op("Cast", logits, to=TensorProto.DOUBLE), axis=-1)
    shares = graph.part(shares, 0, num, axis=2)
    others = graph.op("Sub", graph.constant(np.array(1.0)), shares)
    odds = graph.op("Sub", graph.op("Log", shares), graph.op("Log", others))
    scores = _write_each(graph, calibration, graph.op("Cast", odds, to=TensorProto.FLOAT), num)
    return graph.op("Where", _is_best(graph, logits, num), scores, graph.constant(0.0))


def _is_best(graph: Graph, logits: str, num: int) -> str:
    """Which of the classes is the likeliest of its query."""
    best = graph.op("ArgMax", graph.part(logits, 0, num, axis=2), axis=-1, keepdims=1)
    return graph.op("Equal", best, graph.constant(np.arange(num)))
