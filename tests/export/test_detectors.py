"""Detectors as files for other runtimes: what these find, against torch."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from onnx import TensorProto
from PIL import Image
from small_models import CLASSES, random_trained, vit

from vitreous.data.box_files import BoxedPicture, coco_document
from vitreous.data.transforms import Preprocessing
from vitreous.export.box_agreement import box_agreement
from vitreous.export.boxes import write_scores
from vitreous.export.certificate import warning
from vitreous.export.checks import Checks
from vitreous.export.graph import Graph, Value
from vitreous.export.job import export
from vitreous.export.runtime import open_session
from vitreous.export.traced import Traced
from vitreous.prediction.boxes import scores_of
from vitreous.prediction.predictor import Predictor
from vitreous.prediction.reading import Reading
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.serve.answers import as_json
from vitreous.serve.served import open_served
from vitreous.tasks.detect import DetectSettings
from vitreous.weights.calibration import BoxCalibration

PX = (16, 24)
SIZES = {"queries": 5, "width": 8, "heads": 2, "mlp_width": 12, "dropout": 0.0, "levels": 2, "points": 2}
TWO_STAGE = DetectSettings(**SIZES, encoder_depth=0, decoder_depth=1, two_stage=True)
ONE_STAGE = DetectSettings(**SIZES | {"levels": 1}, encoder_depth=0, decoder_depth=1)
DETR = DetectSettings(**SIZES, encoder_depth=0, decoder_depth=1, decoder="detr")
CENTRES = DetectSettings(**SIZES, encoder_depth=1, decoder="centres")
LINE = {"shift": 2.0, "slopes": (0.8, 1.4), "knots": (0.3,), "offsets": (0.0, -0.7, 0.4)}
CALIBRATION = BoxCalibration(temperature=1.3, threshold=0.1, **LINE)
EXTENTS = torch.tensor([[16, 24], [9, 24], [16, 7]])


def detector(task):
    preprocessing = Preprocessing(size_px=PX, crop="letterbox")
    model = vit(picture_px=PX, depth=1)
    return random_trained(model, task=task, preprocessing=preprocessing, calibration=CALIBRATION)


def images(num=3):
    return torch.randn(num, 3, *PX, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A detector and its file, checked on a COCO folder whose objects are what the model finds."""
    folder, draws = tmp_path_factory.mktemp("detector"), np.random.default_rng(0)
    detector(TWO_STAGE).save(folder / "model")
    predictor, boxed = TorchPredictor.load(folder / "model"), []
    (folder / "data").mkdir()
    for number in range(6):
        pixels = draws.integers(0, 256, (*draws.integers(12, 60, 2), 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "data" / f"{number}.png")
        found = predictor(pixels)
        boxed.append(BoxedPicture(f"{number}.png", found.size, found.boxes[:2], found.labels[:2]))
    (folder / "data" / "all.json").write_text(json.dumps(coco_document(boxed, CLASSES)))
    done = export(folder / "model", check=str(folder / "data"), out=folder / "detector.onnx")
    return folder, done.certificate


def test_the_file_finds_the_same_objects(exported):
    """Pictures of any size in: each is letterboxed inside, and its padding is known there."""
    folder, _ = exported
    some = [np.array(Image.open(path)) for path in sorted((folder / "data").glob("*.png"))]
    expected, found = (
        list(Predictor.load(folder / name).outcomes([*some, some[0]])) for name in ("model", "detector.onnx")
    )
    for mine, theirs in zip(expected, found, strict=True):
        assert mine.size == theirs.size and len(mine.objects()) > 0
        np.testing.assert_array_equal(mine.labels, theirs.labels)
        np.testing.assert_allclose(mine.boxes, theirs.boxes, atol=1e-2)
        np.testing.assert_allclose(mine.scores, theirs.scores, atol=1e-4)
    assert np.ptp(np.concatenate([one.boxes[:, 0] for one in expected])) > 1


def test_the_certificate_of_a_detector(exported):
    near = exported[1]["agreement"]
    assert near["compared"] == "scores" and near["pictures"] == 6
    assert near["objects"] > 6 and near["object_agreement"] == 1
    assert near["largest_box_difference_px"] < 0.01 and near["largest_difference"] < 1e-4
    assert near["AP_eager"] == pytest.approx(near["AP_exported"]) and near["AP_eager"] > 0.3
    assert "warning" not in near


def test_it_is_used_as_any_other(exported):
    """By the terminal, which never imports torch then, and by the service."""
    folder, _ = exported
    path = folder / "data" / "0.png"
    asked = [str(folder / "detector.onnx"), str(path), "--json", "--score", "0.05"]
    code = f"import sys; from vitreous.cli import main; main({['predict', *asked]}); assert 'torch' not in sys.modules"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    served = open_served(str(folder / "detector.onnx"), "cpu", 1)
    assert served.describe()["can"] == ["detect"]
    (outcome,) = served.predict([served.prepare(np.array(Image.open(path)))])
    objects = as_json(outcome, {"score": 0.05})["objects"]
    expected = Predictor.load(folder / "model")(path).objects(0.05)
    for found in (json.loads(said)[0]["objects"], objects):
        assert [one["label"] for one in found] == [one.label for one in expected]
        np.testing.assert_allclose([one["box"] for one in found], [one.box for one in expected], atol=0.06)


@pytest.mark.parametrize(
    ("facts", "precision", "expected"),
    [
        ({"AP_eager": 0.5, "AP_exported": 0.495}, "int8", None),
        ({"AP_eager": 0.5, "AP_exported": 0.48}, "int8", "int8 costs 2.0 points of AP on these pictures"),
        ({"accuracy_eager": 0.9, "accuracy_exported": 0.8}, "bf16", "bf16 costs 10.0 points of accuracy"),
        ({"accuracy_eager": 75 / 80, "accuracy_exported": 74 / 80}, "int8", None),  # one picture
        ({"largest_box_difference_px": 0.7}, "fp32", "a box differs by 0.7 px"),
        ({"largest_box_difference_px": 0.7}, "int8", None),
        (
            {"objects": 4, "AP_exported": None},
            "int8",
            "what int8 costs in AP is not known: these pictures have no known boxes",
        ),
        ({"objects": 4}, "fp32", None),
    ],
)
def test_what_is_lost_is_told_in_one_line(facts, precision, expected):
    told = warning({"pictures": 80, **facts}, precision)
    assert told is None if expected is None else told.startswith(expected) and "\n" not in told


def test_with_tensors_and_their_extents():
    """The classes of DETR exclude each other; in int8 too, all but the ends is rounded."""
    task = detector(DETR).task()
    found, pictures = Traced(task, with_extent=True), images()
    given = [("tensors", TensorProto.FLOAT, ("batch", 3, *PX)), ("extent", TensorProto.INT64, ("batch", 2))]
    with torch.inference_mode():
        expected = task.predict(pictures, EXTENTS)
        assert (task.predict(pictures).boxes - expected.boxes).abs().max() > 1e-3  # the extent matters
    far = {}
    for precision in ("fp32", "int8"):
        graph = Graph(precision)
        session = open_session(graph.model(given, found.write(graph, ["tensors", "extent"])).SerializeToString())
        for rows in (slice(0, 3), slice(1, 2)):  # any number of pictures
            inputs = {"tensors": pictures[rows].numpy(), "extent": EXTENTS[rows].numpy()}
            logits, boxes = session.run(["logits", "boxes"], inputs)
            far[precision] = max(
                np.abs(logits - expected.logits[rows].numpy()).max(), np.abs(boxes - expected.boxes[rows].numpy()).max()
            )
            assert far[precision] < {"fp32": 1e-5, "int8": 0.2}[precision]
    assert far["int8"] > 1e-4
    kinds = [node.op_type for node in graph.nodes]
    assert kinds.count("MatMulInteger") == len(set(found.dense) - found.ends()) > 8
    products = sum(node.op_type in ("MatMul", "Gemm") for node in found.nodes)
    assert products - len(found.dense) == 2 * 3  # those of three attentions: the parts of their weights are weights


def test_of_places_those_that_speak_are_in_the_graph():
    task, graph = detector(CENTRES).task(), Graph("fp32")
    given = [("tensors", TensorProto.FLOAT, ("batch", 3, *PX)), ("extent", TensorProto.INT64, ("batch", 2))]
    written = Traced(task, with_extent=True).write(graph, ["tensors", "extent"])
    session = open_session(graph.model(given, written).SerializeToString())
    for rows in (slice(0, 3), slice(1, 2)):
        inputs = {"tensors": images()[rows].numpy(), "extent": EXTENTS[rows].numpy()}
        with torch.inference_mode():
            expected = task.predict(images()[rows], EXTENTS[rows])
        for name, value in zip(("logits", "boxes"), session.run(["logits", "boxes"], inputs), strict=True):
            np.testing.assert_allclose(value, getattr(expected, name).numpy(), atol=1e-4)


def test_a_program_takes_extents(tmp_path):
    detector(ONE_STAGE).save(tmp_path / "model")
    done = export(tmp_path / "model", "torch-export", num_checks=3, out=tmp_path / "a.pt2")
    assert done.certificate["agreement"]["largest_box_difference_px"] < 0.01
    program, task = torch.export.load(done.path).module(), TorchPredictor.load(tmp_path / "model").task
    with torch.inference_mode():
        for num in (3, 1):
            found, expected = program(images(num), EXTENTS[:num]), task.predict(images(num), EXTENTS[:num])
            torch.testing.assert_close(found, expected.outputs(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("more", [0, 1])
def test_scores_in_the_graph(more):
    """With and without a logit for no object."""
    logits = np.random.default_rng(0).normal(0, 6, (2, 5, 3 + more)).astype(np.float32)
    logits[0, 0] = [40, -40, 0, -60][: 3 + more]
    graph, reading = Graph(), Reading.of(detector(ONE_STAGE).card)
    values = {"logits": Value("logits", (5, 3 + more)), "boxes": Value("boxes", (5, 4))}
    scores = write_scores(graph, reading, values)["scores"]
    given = [("logits", TensorProto.FLOAT, ("batch", 5, 3 + more))]
    session = open_session(graph.model(given, {"scores": scores}).SerializeToString())
    (found,) = session.run(None, {"logits": logits})
    np.testing.assert_allclose(found, scores_of(logits, 3, CALIBRATION), atol=1e-6)


def test_what_is_not_the_same_is_counted():
    """A box that moved, another class, and an object that is gone; queries may change places."""
    scores = np.zeros((1, 4, 3), np.float32)
    scores[0, np.arange(4), [0, 1, 2, 2]] = [0.9, 0.8, 0.7, 0.6]
    boxes = np.array([[[0.2, 0.2, 0.1, 0.1], [0.5, 0.5, 0.2, 0.2], [0.7, 0.7, 0.1, 0.1], [0.3, 0.7, 0.1, 0.1]]], "f4")
    checks = Checks([np.zeros((160, 240, 3), np.uint8)], None, "here")
    reading, order = Reading.of(detector(ONE_STAGE).card), [2, 0, 3, 1]

    def agreement(changed_scores, changed_boxes):
        theirs = {"scores": changed_scores[:, order], "boxes": changed_boxes[:, order]}
        return box_agreement([{"scores": scores, "boxes": boxes}], [theirs], reading, checks)

    same = agreement(scores, boxes)
    assert same["object_agreement"] == 1 and same["largest_box_difference_px"] == 0 and same["objects"] == 4
    moved = boxes.copy()
    moved[0, 0, 0] += 0.01  # 2.4 px
    near = agreement(scores, moved)
    assert near["object_agreement"] == 0.75 and near["largest_box_difference_px"] == pytest.approx(2.4, abs=1e-3)
    assert near["objects_found_again"] == 1 and "100.00 % of 4 objects found again" in near["summary"]
    turned = scores.copy()
    turned[0, 1] = [0.8, 0, 0]
    assert agreement(turned, boxes)["object_agreement"] == 0.75
    gone = scores.copy()
    gone[0, 3] = 0
    near = agreement(gone, boxes)
    assert near["object_agreement"] == near["objects_found_again"] == 0.75
    scores[0] *= 0.01  # nothing is sure: all that is said is compared
    near = agreement(scores, moved)
    assert near["objects"] == 4 and near["object_agreement"] == 0.75
