"""vitreous predict: rows for every picture, whatever it is."""

import csv
import io
import json
import sys
from contextlib import redirect_stderr

import numpy as np
import pytest
import torch
from PIL import Image

from detections import save_detector
from vitreous.cli import Parser
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.prediction.outcomes import ClassOutcome
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.tasks.classify import ClassifySettings
from vitreous.verbs import predict
from vitreous.weights.calibration import ClassCalibration
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

CLASSES = ("cat", "dog", "emu", "fox")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, three pictures of different sizes, an empty file, a text file and a truncated picture."""
    folder = tmp_path_factory.mktemp("predict")
    torch.manual_seed(0)
    model, task = ViTSettings(picture_px=(8, 12), patch=4, width=16, depth=1, heads=2), ClassifySettings()
    built = task.build(model.build(), CLASSES)
    torch.nn.init.normal_(built.head.weight)
    card = Card(
        model=model,
        task=task,
        classes=CLASSES,
        preprocessing=Preprocessing(size_px=(8, 12)),
        calibration=ClassCalibration(temperature=2.0, sets=((0.9, 0.2),)),
    )
    Trained(card, built.state_dict(), "here").save(folder / "model")
    generator, pictures = np.random.default_rng(0), folder / "pictures"
    (pictures / "deep").mkdir(parents=True)
    for name, size in (("a.png", (8, 12)), ("b.JPG", (40, 30)), ("deep/c.bmp", (9, 9))):
        Image.fromarray(generator.integers(0, 256, (*size, 3), dtype=np.uint8)).save(pictures / name)
    (pictures / "empty.png").write_bytes(b"")
    (pictures / "text.jpg").write_text("not a picture")
    (pictures / "notes.txt").write_text("not even called one")
    (pictures / "deep" / "half.png").write_bytes((pictures / "a.png").read_bytes()[:100])
    return folder


GOOD = ("a.png", "b.JPG", "deep/c.bmp")
BAD = ("empty.png", "text.jpg", "deep/half.png")


def run(capsys, *words):
    parser = Parser(prog="vitreous predict")
    predict.add(parser)
    predict.run(parser.parse_args([str(word) for word in words]))
    return capsys.readouterr().out


def rows(capsys, folder, *words):
    out = run(capsys, folder / "model", folder / "pictures", "--format", "jsonl", *words)
    found = [json.loads(line) for line in out.splitlines()]
    return {row.pop("picture").removeprefix(f"{folder}/pictures/"): row for row in found}


def test_every_picture_is_a_row_and_bad_ones_say_why(folder, capsys):
    found = rows(capsys, folder)
    assert list(found) == ["a.png", "b.JPG", "empty.png", "text.jpg", "deep/c.bmp", "deep/half.png"]
    assert {name: row["error"] for name, row in found.items() if "error" in row}.keys() == set(BAD)
    assert found["empty.png"]["error"] == "empty file"
    predictor = TorchPredictor.load(folder / "model")
    for name in GOOD:
        answer = predictor(folder / "pictures" / name)
        assert found[name]["label"] == answer.best
        assert found[name]["probability"] == pytest.approx(answer.confidence, abs=1e-5)
        assert [tuple(pair) for pair in found[name]["top"]] == [
            (class_name, pytest.approx(probability, abs=1e-5)) for class_name, probability in answer.top(5)
        ]
        assert sum(probability for _, probability in found[name]["top"]) == pytest.approx(1, abs=1e-5)


def test_files_of_a_folder_that_are_no_pictures_are_named(folder):
    parser = Parser(prog="vitreous predict")
    predict.add(parser)
    with redirect_stderr(io.StringIO()) as told:
        predict.run(parser.parse_args([str(folder / "model"), str(folder / "pictures")]))
    assert told.getvalue() == f"note: {folder}/pictures: files that are not read: 1 .txt\n"


def test_the_batch_does_not_change_an_answer(folder, capsys):
    one, many = (rows(capsys, folder, "--batch", size) for size in (1, 5))
    for name in GOOD:
        assert one[name]["label"] == many[name]["label"]
        assert one[name]["probability"] == pytest.approx(many[name]["probability"], abs=1e-5)


def test_sets_and_silence(folder, capsys):
    found = rows(capsys, folder, "--coverage", 0.9, "--top", 4)
    for name in GOOD:
        assert found[name]["set"] == [one for one, probability in found[name]["top"] if probability >= 0.2]
    least = sorted(found[name]["probability"] for name in GOOD)[1]  # one is below
    found = rows(capsys, folder, "--abstain", least - 1e-7)
    assert sorted(found[name]["label"] is None for name in GOOD) == [False, False, True]
    assert all(found[name]["probability"] > 0 for name in GOOD)


def test_csv(folder, capsys):
    out = run(
        capsys, folder / "model", folder / "pictures", "--format", "csv", "--top", 2, "--abstain", 1, "--coverage", 0.9
    )
    found = list(csv.DictReader(io.StringIO(out)))
    assert len(found) == 6
    assert list(found[0]) == ["picture", "label", "probability", "class_2", "probability_2", "set", "error"]
    assert {row["label"] for row in found if not row["error"]} == {"not sure"}
    assert found[0]["class_2"] in CLASSES and 0 < float(found[0]["probability_2"]) < float(found[0]["probability"])
    assert next(row["error"] for row in found if not row["label"]) == "empty file"


def test_a_table_shows_and_obeys_nothing(folder, capsys, tmp_path):
    evil = tmp_path / "\x1b[31mred.png"
    evil.write_bytes((folder / "pictures" / "a.png").read_bytes())
    out = run(capsys, folder / "model", evil, folder / "pictures" / "text.jpg")
    first, second = out.splitlines()
    assert "\x1b" not in out and "?[31mred.png" in first
    assert first.split()[0] in CLASSES and "%" in first
    assert second.startswith("-") and "text.jpg: not a picture" in second


def on_stdin(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_paths_come_from_the_standard_input(folder, capsys, monkeypatch):
    lines = [f"{folder}/pictures/a.png", "", "/nowhere/x.png"]
    on_stdin(monkeypatch, "\n".join(lines).encode() + b"\r\n")
    out = run(capsys, folder / "model", "-", "--format", "jsonl")
    first, second = (json.loads(line) for line in out.splitlines())
    assert first["label"] in CLASSES
    assert second == {"picture": "/nowhere/x.png", "error": "No such file or directory"}


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "bmp", "webp", "tif", "ppm"])
def test_a_picture_comes_from_the_standard_input(folder, capsys, monkeypatch, suffix, tmp_path):
    # 266 px: the second byte of the height is a line feed, which ends the first "line" of a GIF early.
    pixels = np.random.default_rng(1).integers(0, 256, (266, 300, 3), dtype=np.uint8)
    path = tmp_path / f"one.{suffix}"
    Image.fromarray(pixels).save(path)
    on_stdin(monkeypatch, path.read_bytes())
    (found,) = json.loads(run(capsys, folder / "model", "-", "--json"))
    (expected,) = json.loads(run(capsys, folder / "model", path, "--format", "json"))
    assert found == expected | {"picture": "-"}


def test_what_is_on_the_standard_input_has_an_end(folder, capsys, monkeypatch):
    monkeypatch.setattr(predict, "STDIN_BYTES", 1000)
    on_stdin(monkeypatch, bytes(2000))
    with pytest.raises(UserError, match="over 0 MB"):
        run(capsys, folder / "model", "-")


def test_json_is_one_list(folder, capsys):
    whole = json.loads(run(capsys, folder / "model", folder / "pictures", "--json"))
    lines = run(capsys, folder / "model", folder / "pictures", "--format", "jsonl").splitlines()
    assert whole == [json.loads(line) for line in lines] and len(whole) == 6


def test_what_cannot_be_done_is_one_line(folder, capsys, tmp_path):
    picture, bad = folder / "pictures" / "a.png", folder / "pictures" / "text.jpg"
    for words, match in (
        ([picture, "--coverage", 0.5], r"no prediction sets of coverage 0.5, only of 0.9"),
        ([picture, "--top", 0], "at least one class"),
        ([picture, "--batch", 0], "at least one picture"),
        ([picture, "--abstain", 2], "between 0 and 1"),
        ([picture, "--score", 0.5], "for models that find objects, and this one does not"),
        ([picture, "-"], "cannot be combined"),
        ([bad, bad], "none of the pictures could be read"),
        ([tmp_path], "no pictures to predict"),
    ):
        with pytest.raises(UserError, match=match) as error:
            run(capsys, folder / "model", *words)
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="no such run"):
        run(capsys, tmp_path / "nothing", picture)


def test_a_model_without_thresholds_has_no_sets():
    answer = ClassOutcome(("a", "b"), np.array([0.7, 0.3], np.float32))
    with pytest.raises(UserError, match="no thresholds"):
        answer.prediction_set(0.9)
    assert answer.best == "a" and answer.is_sure(0.69) and not answer.is_sure(0.71)


def test_objects(folder, capsys, tmp_path):
    model, picture = save_detector(tmp_path / "detector", CLASSES[:2]), str(folder / "pictures/b.JPG")
    told = {}
    for words in ((), ("--score", "0.05"), ("--precision", "0.9")):
        (told[words],) = json.loads(run(capsys, model, picture, "--json", *words))
    few, many, right = told.values()
    assert (few["width"], few["height"]) == (30, 40)
    assert [one for one in many["objects"] if one["score"] >= 0.4] == few["objects"]
    assert [one for one in many["objects"] if one["score"] >= 0.5] == right["objects"]
    assert len(many["objects"]) > len(few["objects"]) > len(right["objects"])
    run(capsys, model, picture, "--score", "0.05", "--out", tmp_path / "out")
    rows = list(csv.DictReader((tmp_path / "out/boxes.csv").read_text().splitlines()))
    assert len(rows) == len(many["objects"]) and (tmp_path / "out/b.boxes.png").stat().st_size
    for words, why in (
        (("--score", "2"), "between 0 and 1"),
        (("--score", "0.1", "--precision", "0.9"), "give one of them"),
        (("--precision", "0.7"), r"only for 0\.9"),
    ):
        with pytest.raises(UserError, match=why):
            run(capsys, model, picture, *words)
