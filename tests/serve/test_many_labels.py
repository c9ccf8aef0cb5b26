"""Several labels per picture from end to end, from a table of them: fit, report, evaluate, predict, export, serve."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from person import visit
from PIL import Image
from running import Running

from browser import chromium, chromium_page  # noqa: F401 - fixtures
from many_labels import COLOURS, squares, write_squares
from vitreous.cli import main
from vitreous.commands import fit
from vitreous.data.sources import DataSettings
from vitreous.errors import UserError
from vitreous.evaluation.full import evaluate_fully
from vitreous.evaluation.many import ManyEvaluation
from vitreous.export.job import export
from vitreous.fitting.stored import stored
from vitreous.jobs.evaluate import evaluate
from vitreous.jobs.train import train
from vitreous.prediction.predictor import Predictor
from vitreous.recipes.fashion import fashion_vit
from vitreous.report.page import report
from vitreous.weights.trained import Trained

TINY = {"model.width": 16, "model.depth": 1, "model.heads": 2, "training.epochs": 12, "training.device": "cpu"}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_squares(tmp_path_factory.mktemp("squares") / "data", train=160, val=80, test=90)


@pytest.fixture(scope="module")
def run(table):
    return fit(table, table.parent.parent / "run", changes=TINY)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for number, picture in enumerate(squares(6, 7)[0]):
        Image.fromarray(picture).save(folder / f"{number}.png")
    return folder


def test_fit_sees_that_there_are_several_labels_and_says_so(run):
    choices = {one.name: (one.value, one.reason) for one in run.plan.choices}
    assert choices["task"][0] == "several labels per picture" and "sigmoid" in choices["task"][1]
    assert choices["balance"][0] == "none"
    assert run.plan.recipe.objective.loss == run.card.task.loss == "sigmoid"
    assert isinstance(run.evaluation, ManyEvaluation)
    assert run.evaluation.headline.low > 0.6, "chance is 0.43"
    assert run.results["headline"] == "mAP" and run.results["val"]["mAP"] > 0.5
    kept = next(one for one in run.candidates if one.is_kept)
    assert kept.score == pytest.approx(run.account.val.score()), "candidates are compared by the headline"
    assert 0.3 < run.account.baseline.score < 1 and run.account.few_shot == ()


def test_thresholds_of_the_validation_part_are_stored_with_the_model(run):
    card = Trained.load(run.out).card
    assert card.calibration == run.evaluation.calibration
    assert len(set(card.calibration.thresholds)) == 3 and card.temperature != 1
    assert evaluate_fully(run.account.val, run.account.test).calibration == card.calibration


def test_the_report_has_sections_of_its_own(run):
    page = (run.out / "report.html").read_text()
    for words in ("mean average precision", "Labels that go together", "Missed and false labels", "threshold"):
        assert words in page
    for words in ("Prediction sets", "Few-shot", "Confusions"):
        assert words not in page
    assert report(stored(run.out)).markup == page


def test_evaluate_measures_the_same(run):
    found = evaluate(run.out)
    assert found.evaluation.calibration == run.evaluation.calibration, "what the model carries is not fitted again"
    assert found.evaluation.scores.mean_average_precision == run.evaluation.scores.mean_average_precision
    assert "mean average precision" in found.summary()
    assert json.loads(json.dumps(found.to_json()))["evaluation"]["kind"] == "ManyEvaluation"


def test_predict_gives_every_label_above_its_threshold(run, pictures, capsys):
    predictor = Predictor.load(run.out)
    main(["predict", str(run.out), str(pictures), "--json", "--quiet"])
    records = json.loads(capsys.readouterr().out)
    main(["predict", str(run.out), str(pictures), "--format", "csv", "--quiet"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    main(["predict", str(run.out), str(pictures), "--quiet"])
    lines = capsys.readouterr().out.splitlines()
    thresholds = dict(zip(COLOURS, run.card.calibration.thresholds, strict=True))
    for record, row, line in zip(records, rows, lines, strict=True):
        outcome = predictor(record["picture"])
        expected = {name for name, value in outcome.top(3) if value >= np.float32(thresholds[name])}
        assert {name for name, _ in record["labels"]} == {name for name, _ in outcome.labels} == expected
        assert set(row["labels"].split("|")) - {""} == expected
        assert (row["class_1"], len(record["top"])) == (outcome.best, 3)
        assert all(name in line for name in expected) and (expected or "no label" in line)
    assert any(len(record["labels"]) > 1 for record in records)
    with pytest.raises(SystemExit):
        main(["predict", str(run.out), str(pictures), "--coverage", "0.9"])
    assert "prediction sets are for models of one class per picture" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["pictures", "tensors"])
def test_an_exported_model_gives_the_same_labels(run, pictures, given, tmp_path):
    done = export(run.out, input=given, check=str(pictures), out=tmp_path / "model.onnx")
    near = done.certificate["agreement"]
    assert near["label_agreement"] == near["picture_agreement"] == 1.0 and near["largest_difference"] < 1e-4
    ours, theirs = Predictor.load(run.out), Predictor.load(done.path)
    for path in sorted(pictures.iterdir()):
        assert [name for name, _ in theirs(path).labels] == [name for name, _ in ours(path).labels]
        np.testing.assert_allclose(theirs(path).thresholds, ours(path).thresholds)


def test_training_without_the_sigmoid_loss_is_refused_in_one_line(table, tmp_path):
    recipe = replace(fashion_vit(), data=DataSettings(where=str(table)))
    with pytest.raises(UserError, match=r"several labels each: set --objective\.loss sigmoid"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists(), "before the first step"


# ---- served


@pytest.fixture(scope="module")
def server(run):
    running = Running(run.out)
    yield running
    assert running.stop() == 0


def test_the_service_gives_labels_with_their_thresholds(run, server):
    described = server.client.get("/v1/model").json()["models"][0]
    assert (described["task"], described["coverages"]) == ("label", [])
    picture = png(run.splits.test.read(0))
    (found,) = server.predict(picture, top=2).json()["results"]
    expected = Predictor.load(run.out)(picture)
    assert [(one["label"], one["threshold"]) for one in found["labels"]] == [
        (name, pytest.approx(expected.threshold(name))) for name, _ in expected.labels
    ]
    assert len(found["top"]) == max(2, len(expected.labels)) and "label" not in found
    (none,) = server.predict(picture, abstain=1).json()["results"]
    assert none["labels"] == []
    assert server.predict(picture, coverage=0.9).status_code == 422


def test_the_page_shows_every_label_with_its_bar_and_threshold(run, server, chromium_page):  # noqa: F811
    predictor = Predictor.load(run.out)
    index = next(one for one in range(len(run.splits.test)) if len(predictor(run.splits.test.read(one)).labels) > 1)
    picture = png(run.splits.test.read(index))
    labels = [name for name, _ in predictor(picture).labels]
    person = visit(chromium_page, server)
    person.wait_for_attention(lambda: person.drop("a.png", picture))
    assert person.text("verdict") == " + ".join(labels)
    bars = person.part("bars")
    assert bars.locator(".there .name").all_text_contents() == labels
    assert bars.locator(".needed").count() == bars.locator("li").count() == 3
    assert not person.part("sets").is_visible()
    assert person.part("least").input_value() == "0", "the thresholds decide, until the user asks for more"
    person.part("least").fill("100")
    assert person.text("verdict") == "No label" and person.part("guess").is_visible()
    assert person.opened.problems == []


def png(picture):
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "png")
    return stream.getvalue()
