"""Shapes in files for other runtimes: the scores of the graph, and how masks of two models are compared."""

import numpy as np
import pytest
from onnx import TensorProto

from instances import blobs, rendered
from vitreous.data.targets.instances import packed
from vitreous.data.transforms import Preprocessing
from vitreous.export.box_agreement import box_agreement
from vitreous.export.boxes import write_instance_scores
from vitreous.export.checks import Checks
from vitreous.export.graph import Graph, Value
from vitreous.export.runtime import open_session
from vitreous.prediction.instances import instance_scores
from vitreous.prediction.reading import Fitting, Reading
from vitreous.prediction.scored import known_objects
from vitreous.weights.calibration import BoxCalibration

LINE = {"shift": 2.0, "slopes": (0.8, 1.4), "knots": (0.3,), "offsets": (0.0, -0.7, 0.4)}
CALIBRATION = BoxCalibration(temperature=1.3, threshold=0.1, **LINE)


def reading(classes, px):
    fitting = Fitting(**vars(Preprocessing(size_px=px, crop="letterbox")))
    return Reading(kind="instances", classes=classes, fitting=fitting, calibration=CALIBRATION)


def test_scores_in_the_graph():
    logits = np.random.default_rng(0).normal(0, 4, (2, 5, 4)).astype(np.float32)
    masks = np.stack([blobs(5, 8, 12, seed).numpy() for seed in (0, 1)])
    masks[0, 2] = -3  # takes no cell
    graph = Graph()
    values = {"logits": Value("logits", (5, 4)), "masks": Value("masks", (5, 8, 12))}
    found = write_instance_scores(graph, reading(("a", "b", "c"), (32, 48)), values)
    shapes = [("logits", TensorProto.FLOAT, ("batch", 5, 4)), ("masks", TensorProto.FLOAT, ("batch", 5, 8, 12))]
    session = open_session(graph.model(shapes, {"scores": found["scores"]}).SerializeToString())
    (scores,) = session.run(None, {"logits": logits, "masks": masks})
    np.testing.assert_allclose(scores, instance_scores(logits, masks, CALIBRATION), atol=1e-6)
    assert scores[0, 2].max() == 0 and found["masks"] is values["masks"]


def test_masks_that_differ_are_counted_and_average_precision_tells_what_they_are_worth():
    source = rendered("test", 12)
    index = max(range(12), key=lambda at: len(source.targets.of(at)))
    known, size = known_objects(source.targets, index), source.read(index).shape[:2]
    num = len(known.shapes)
    cells = packed([shape.mask() for shape in known.shapes], size)  # at the picture's own size: a place per pixel
    masks = np.stack([np.where(cells[..., 0] >> number & 1, 5.0, -5.0) for number in range(num)])[None].astype("f4")
    scores = np.zeros((1, num, len(source.classes)), np.float32)
    scores[0, np.arange(num), known.objects.classes] = np.linspace(0.9, 0.6, num)
    checks = Checks([source.read(index)], None, "here", [known])

    def agreement(theirs):
        return box_agreement([{"scores": scores, "masks": masks}], [theirs], reading(source.classes, size), checks)

    same = agreement({"scores": scores[:, ::-1], "masks": masks[:, ::-1]})  # queries may change places
    assert same["objects"] == num > 1 and same["object_agreement"] == 1 and same["largest_mask_difference"] == 0
    assert same["AP_eager"] == same["AP_exported"] == pytest.approx(1.0)
    moved = masks.copy()
    moved[0, 0] = np.roll(moved[0, 0], 4, axis=1)
    other = agreement({"scores": scores, "masks": moved})
    assert other["object_agreement"] == pytest.approx(1 - 1 / num) and other["largest_mask_difference"] > 0.2
    assert other["AP_exported"] < other["AP_eager"] == same["AP_eager"]
