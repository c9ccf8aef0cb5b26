import argparse
import json
import shutil

import numpy as np
import pytest
import torch

from many_labels import write_squares
from scenes import encoded, recompressed, scene, write_scenes
from vitreous import settings
from vitreous.commands import account_for
from vitreous.errors import UserError
from vitreous.fitting import class_after
from vitreous.fitting.candidates import FINE_TUNED, FROM_SCRATCH
from vitreous.fitting.class_fit import BETWEEN, NEW_HEAD
from vitreous.fitting.first import FIRST_MODEL, ON_PIXELS
from vitreous.fitting.fit import ending, fit
from vitreous.fitting.stored import stored
from vitreous.jobs.evaluate import evaluate
from vitreous.jobs.train import train
from vitreous.prediction.predictor import Predictor
from vitreous.recipes.recipe import Recipe
from vitreous.training.run import RunDirectory
from vitreous.verbs import fit as verb
from vitreous.weights.trained import Trained

TINY = {"model.width": "16", "model.depth": "1", "model.heads": "2", "training.epochs": "4", "training.device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three classes of unequal size, a broken file, and a picture that stands in train and test."""
    root = tmp_path_factory.mktemp("pictures")
    write_scenes(root / "train", {"dark": 160, "grey": 60, "light": 30}, size=(20, 20))
    write_scenes(root / "test", {"dark": 20, "grey": 20, "light": 20}, first=1000, size=(20, 20))
    (root / "train" / "dark" / "0007.png").write_bytes(b"\x89PNG\r\n\x1a\n, but no more")
    shutil.copy(root / "test" / "light" / "0003.png", root / "train" / "light" / "copy.png")
    return root


@pytest.fixture(scope="module", autouse=True)
def without_floor():
    """What was trained is kept, though these pictures are so easy that logistic regression on pixels is as good."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitreous.fitting.candidates.AHEAD", -1000)
        yield


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    return fit(str(folder), out, changes=TINY)


def test_everything_a_report_needs(run, folder):
    assert [part.pictures for part in run.data.parts] == [225, 25, 60]
    assert "0007.png" in run.data.parts[0].unreadable[0]
    assert [leak.picture for leak in run.data.leaks] == [str(folder / "train" / "light" / "copy.png")]
    assert len(run.splits.train) == len(run.splits.train.labels) == 224
    assert run.plan.recipe.data.order.balance, "5 to 1"
    assert run.evaluation.scores.top1.value > 0.6, "brightness is easily learned"
    assert len(run.account.test) == 60 and len(run.account.val) == 25
    assert run.account.few_shot[0].shots == 1
    assert run.findings.attention.maps.shape[0] == 8
    assert list(run.timings) == ["data", "first", "plan", "train", "evaluate", "inspect"]
    assert run.account.baseline.score > 0.6 and run.account.baseline.px == 20
    assert [one.name for one in run.candidates] == [ON_PIXELS, FROM_SCRATCH, NEW_HEAD]
    assert run.plan.choices[-1].name == "kept"
    assert run.plan.choices[-1].value == next(one.name for one in run.candidates if one.is_kept)
    assert "test" not in run.results, "the test part is read by the evaluation, once"
    for name in ("plan", "data", "evaluation", "recipe", "results", "environment"):
        assert json.loads((run.out / f"{name}.json").read_text())


def test_the_model_is_calibrated(run, folder):
    card = Trained.load(run.out).card
    assert card.temperature == run.evaluation.temperature != 1
    assert card.calibration == run.evaluation.calibration and len(card.sets) == 3
    answer = Predictor.load(run.out)(folder / "test" / "dark" / "0000.png")
    (place,) = np.flatnonzero([run.splits.test.where(int(i)).endswith("dark/0000.png") for i in run.account.test.ids])
    expected = run.account.test.probabilities(card.temperature)[place].numpy()
    np.testing.assert_allclose(np.asarray(answer.probabilities), expected, atol=1e-4)


def test_the_recipe_alone_gives_the_same_model(run, tmp_path):
    train(settings.load(Recipe, run.out / "recipe.json"), tmp_path)
    ours, again = Trained.load(run.out / "trained").weights, Trained.load(tmp_path).weights
    assert all(torch.equal(ours[name], again[name]) for name in ours)


def test_the_same_call_again_changes_nothing_and_another_is_refused(run, folder, capsys):
    before = (run.out / "model" / "model.safetensors").read_bytes()
    again = fit(str(folder), run.out, changes=TINY)
    assert "this run has finished" in capsys.readouterr().out
    assert again.candidates == run.candidates
    assert again.plan == run.plan and again.data == run.data
    assert again.evaluation.to_json() == run.evaluation.to_json()
    assert (run.out / "model" / "model.safetensors").read_bytes() == before
    with pytest.raises(UserError, match=r"holds a different fit \(--minutes not given there, 3 here\)"):
        fit(str(folder), run.out, minutes=3, changes=TINY)
    with pytest.raises(UserError, match=r"--minuts: there is no such setting"):  # rather than: a different fit
        fit(str(folder), run.out, changes={**TINY, "minuts": "3"})


def test_an_interrupted_run_goes_on_with_the_plan_it_had(run, folder, tmp_path):
    train(run.plan.recipe, tmp_path, read_test=False, until=30)
    for name in ("plan.json", "data.json"):
        shutil.copy(run.out / name, tmp_path)
    shutil.copytree(run.out / "pixels", tmp_path / "pixels")
    (tmp_path / "run.json").write_text((run.out / "run.json").read_text())
    resumed = fit(str(folder), tmp_path, changes=TINY)
    ours, again = Trained.load(run.out).weights, Trained.load(tmp_path).weights
    assert all(torch.equal(ours[name], again[name]) for name in ours)
    assert resumed.evaluation.to_json() == run.evaluation.to_json() and resumed.candidates == run.candidates
    assert "0:07 since it was resumed" in ending(resumed, 7.0)
    assert "since" not in ending(run, 7.0)


def test_other_pictures_are_another_fit(folder, run, tmp_path):
    shutil.copytree(folder, tmp_path / "pictures")
    out, changes = tmp_path / "out", {**TINY, "training.steps": "2"}
    fit(str(tmp_path / "pictures"), out, changes=changes)
    shutil.copy(folder / "test" / "dark" / "0003.png", tmp_path / "pictures" / "train" / "dark" / "another.png")
    with pytest.raises(UserError, match=r"pictures in .*pictures have changed since the fit in .*give another --out$"):
        fit(str(tmp_path / "pictures"), out, changes=changes)


def test_a_plan_of_an_earlier_version_is_refused(folder, run, tmp_path):
    shutil.copytree(run.out, tmp_path, dirs_exist_ok=True)
    plan = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps({name: plan[name] for name in ("request", "plan")}))
    with pytest.raises(UserError, match=r"begun by an earlier version of fit, .* give another --out"):
        fit(str(folder), tmp_path, changes=TINY)


def test_a_plan_that_could_not_be_trained_binds_nobody(folder, tmp_path):
    with pytest.raises(UserError, match="cannot be cut into patches"):
        fit(str(folder), tmp_path, changes={**TINY, "model.patch": "7"})
    assert not (tmp_path / "plan.json").exists()
    found = fit(str(folder), tmp_path, changes={**TINY, "model.patch": "5", "training.steps": "2"})
    assert not found.resumed and found.plan.recipe.model.patch == 5


def test_a_plan_is_not_written_over_while_it_is_trained(folder, tmp_path):
    with RunDirectory(tmp_path), pytest.raises(UserError, match="in use by this process"):
        fit(str(folder), tmp_path, changes=TINY)
    assert not (tmp_path / "plan.json").exists() and not (tmp_path / "data.json").exists()


def test_few_shot_probes_draw_from_all_that_a_rare_class_has(run, monkeypatch):
    pools = []
    monkeypatch.setattr(
        class_after, "few_shot", lambda train, test: pools.append(train.labels.bincount().tolist()) or ()
    )
    class_after.probed(Trained.load(run.out).task(), run.recipe, run.splits.train, None, 28)
    assert run.splits.train.labels.tolist().count(2) == 27
    assert pools == [[28, 28, 27]]


def test_large_pictures_are_kept_small_and_the_recipe_says_so(tmp_path):
    root = write_scenes(tmp_path / "pictures", {"a": 20, "b": 20}, size=(180, 160))
    found = fit(str(root), tmp_path / "out", changes={**TINY, "training.epochs": "1"})
    assert found.plan.recipe.data.shrink_px == 96 == found.splits.train.read(0).shape[0]
    assert found.splits.train.pictures.shape[1:] == (96, 108, 3)
    assert found.splits.test.read(0).shape == (160, 180, 3), "what is tested on stays as it is"
    train(settings.load(Recipe, tmp_path / "out" / "recipe.json"), tmp_path / "again")
    ours, again = (Trained.load(tmp_path / name).weights for name in ("out/trained", "again"))
    assert all(torch.equal(ours[name], again[name]) for name in ours)


def test_a_part_of_the_test_pictures_is_scored_where_the_time_is_short(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("vitreous.fitting.budget.LEAST_SCORED", 24)
    monkeypatch.setattr("vitreous.fitting.budget.SCORED_SHARE", 0.0)
    found = fit(str(folder), tmp_path, minutes=5.0, changes={**TINY, "training.epochs": "1"})
    account_for(found)
    assert len(found.account.test) == len(found.splits.test) == found.evaluation.scores.pictures == 24
    assert len({found.splits.test.where(index) for index in range(24)}) == 24
    assert "24 of 60 pictures" in capsys.readouterr().out and "on 24 of 60 test pictures" in ending(found, 10.0)
    results = json.loads((tmp_path / "results.json").read_text())
    assert (results["test_scored"], results["test_pictures"]) == (24, 60)
    page = (tmp_path / "report.html").read_text()
    assert "Scored on a subset." in page and f"vitreous evaluate {tmp_path}" in page
    again = stored(tmp_path)
    assert (
        again.splits.test.labels.tolist() == found.account.test.labels.tolist() and again.on_a_part == found.on_a_part
    )
    resumed = fit(str(folder), tmp_path, minutes=5.0, changes={**TINY, "training.epochs": "1"})
    assert resumed.resumed and resumed.evaluation.to_json() == found.evaluation.to_json()
    assert evaluate(tmp_path).evaluation.scores.pictures == 60, "all, whenever that is asked for"


def test_several_labels_whose_heads_do_not_converge_keep_the_ones_they_have(run, tmp_path, monkeypatch):
    table = write_squares(tmp_path / "squares", train=60, val=20, test=20)
    monkeypatch.setattr("vitreous.fitting.class_first.logistic_head", lambda *given, **options: None)
    found = fit(str(table), tmp_path / "run", start=str(run.out), changes={"training.epochs": "1"})
    assert [one.name for one in found.candidates] == [ON_PIXELS, FINE_TUNED]
    assert found.first.start == "pixels" and found.plan.recipe.start == str(run.out)


def test_starting_from_weights(run, folder, tmp_path, capsys):
    found = fit(str(folder), tmp_path, start=str(run.out), balance="weights", changes={"training.epochs": "1"})
    assert found.first.start == str(run.out) and found.first.digest
    assert found.plan.recipe.start == str(tmp_path / "first") and found.plan.recipe.start_head
    assert [one.name for one in found.candidates] == [ON_PIXELS, FIRST_MODEL, FINE_TUNED, BETWEEN, NEW_HEAD]
    assert found.plan.recipe.objective.class_weights[0] < 1 < found.plan.recipe.objective.class_weights[2]
    assert f"{run.out} (sha256 {found.first.digest[:12]})" in capsys.readouterr().out


def test_of_a_network_without_attention_the_receptive_field_is_found(folder, tmp_path):
    changes = {"model": "bit_r50x1", "model.depths": "1,1", "model.base_width": "16", "training.steps": "2"}
    found = fit(str(folder), tmp_path, changes=changes)
    assert "no attention over patches" in found.findings.attention
    assert [one.name for one in found.findings.receptive.fields] == ["stage 1", "stage 2"]


# ---- Bad input: one line


def one_class(root):
    write_scenes(root, {"a": 20})


def all_broken(root):
    write_scenes(root, {"a": 10, "b": 10})
    for file in root.rglob("*.png"):
        file.write_bytes(b"broken")


def one_picture_each(root):
    write_scenes(root, {"a": 1, "b": 1, "c": 1})


def only_a_test_part(root):
    write_scenes(root / "test", {"a": 10, "b": 10})


def same_parts(root):
    write_scenes(root / "train", {"a": 20, "b": 20})
    write_scenes(root / "test", {"a": 20, "b": 20})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, "no sub-folders"),
        (lambda root: (root / "a").mkdir(), "no pictures in it; class folders without pictures skipped: a"),
        (one_class, "only one class"),
        (all_broken, "pictures cannot be read"),
        (one_picture_each, "no pictures are left to test a model on"),
        (only_a_test_part, "no training pictures, only test"),
        (same_parts, "also appear in the validation or test part"),
    ],
    ids=["empty", "empty class", "one class", "all broken", "one picture each", "test only", "test is train"],
)
def test_bad_data_is_one_clear_line(make, message, tmp_path):
    make(tmp_path)
    with pytest.raises(UserError, match=message) as error:
        fit(str(tmp_path), tmp_path / "out", changes=TINY)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minutes": 0}, "more than 0"),
        ({"start": "nowhere"}, "no such run"),
        ({"changes": {"model": "vit_x16"}}, "no model is called"),
        ({"changes": {"data.val_fractoin": "0.2"}}, "--data.val_fractoin: there is no such setting"),
    ],
)
def test_bad_options_are_one_clear_line(options, message, folder, tmp_path):
    with pytest.raises(UserError, match=message):
        fit(str(folder), tmp_path, **options)


def test_a_file_in_the_place_of_the_run_is_refused_before_the_pictures_are_read(folder, capsys):
    with pytest.raises(UserError, match=r"test_fit\.py: a file, where a run directory has to be; choose another --out"):
        fit(str(folder), __file__)
    assert "classes" not in capsys.readouterr().out


def test_tiny_classes_do_not_break_it(tmp_path, capsys):
    root = write_scenes(tmp_path / "pictures", {"a": 30, "b": 12, "few": 3, "one": 1}, size=(16, 16))
    (root / "b" / "noise.png").write_bytes(encoded(recompressed(scene(999, (16, 16)), 50)))
    found = fit(str(root), tmp_path / "out", changes={**TINY, "training.epochs": "2"})
    assert "classes with too few training pictures to learn from: few" in capsys.readouterr().out
    assert found.plan.recipe.data.order.balance
    assert found.evaluation.scores.pictures == len(found.account.test)


def test_the_verb(folder, tmp_path):
    parser = argparse.ArgumentParser(add_help=False)
    verb.add(parser)
    parser.add_argument("--help", action="store_true")
    options = parser.parse_args([str(folder), "--out", str(tmp_path), "--balance", "none"])
    verb.run(options, {**TINY, "training.steps": "3"})
    assert json.loads((tmp_path / "plan.json").read_text())["request"]["balance"] == "none"
    assert "<html" in (tmp_path / "report.html").read_text()
    with pytest.raises(UserError, match="fit needs data"):
        verb.run(parser.parse_args([]), {})
