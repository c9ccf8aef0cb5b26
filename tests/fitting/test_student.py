"""fit --unlabelled: what is learned from, what is left out, what is delivered; the same after a stop."""

import shutil
from dataclasses import replace

import pytest
import torch

from scenes import write_scenes
from vitreous import settings
from vitreous.commands import account_for
from vitreous.errors import UserError
from vitreous.fitting import student
from vitreous.fitting.budget import Budget, Pace, with_student_s
from vitreous.fitting.candidates import Candidate, Kept, Scored
from vitreous.fitting.fit import fit
from vitreous.fitting.stored import stored
from vitreous.fitting.student import STUDENT
from vitreous.recipes.recipe import Recipe
from vitreous.training.run import RunDirectory
from vitreous.weights.trained import Trained

TINY = {"model.width": "16", "model.depth": "1", "model.heads": "2", "training.epochs": "6", "training.device": "cpu"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Few labels, more pictures without; ten of these stand in the test part, too."""
    found = tmp_path_factory.mktemp("pictures")
    write_scenes(found / "labelled" / "train", {"dark": 30, "light": 30}, size=(20, 20))
    write_scenes(found / "labelled" / "val", {"dark": 20, "light": 20}, first=500, size=(20, 20))
    write_scenes(found / "labelled" / "test", {"dark": 20, "light": 20}, first=1000, size=(20, 20))
    write_scenes(found / "more", {"dark": 40, "light": 40}, first=2000, size=(20, 20))
    flat = found / "unlabelled"
    flat.mkdir()
    for path in (found / "more").rglob("*.png"):
        shutil.copy(path, flat / f"{path.parent.name}-{path.name}")
    for number in range(10):
        shutil.copy(found / "labelled" / "test" / "dark" / f"{number:04}.png", flat / f"copy-{number}.png")
    return found


@pytest.fixture(scope="module")
def run(root, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitreous.fitting.student.AHEAD", -1000)  # it is kept, whatever it has learned
        found = fit(str(root / "labelled"), out, unlabelled=str(root / "unlabelled"), changes=TINY)
    account_for(found)
    return found


def test_what_was_made_of_them_is_said(run, root):
    lesson = run.lesson
    assert (lesson.pictures, lesson.leaked) == (90, 10)
    assert lesson.shown == 80 and 20 <= lesson.learned_from <= 80
    assert run.candidates[-1].name == STUDENT and run.candidates[-1].is_kept
    (choice,) = [one for one in run.plan.choices if one.name == "unlabelled pictures"]
    assert choice.value == f"{lesson.learned_from} of 90 used"
    assert "10 also in the validation or test part were left out" in choice.reason
    page = (run.out / "report.html").read_text()
    assert "Pictures without labels" in page
    assert "10 pictures of them, or near duplicates, are in the validation or test part too" in page
    ours, students = (Trained.load(run.out / name).weights for name in ("model", "student/trained"))
    assert all(torch.equal(ours[name], students[name]) for name in students)


def test_no_picture_of_the_test_part_was_learned_from(run, root):
    train = settings.load(Recipe, run.out / "student" / "recipe.json").data.build().train
    assert len(train) == 60 + run.lesson.learned_from
    assert not [place for place in range(len(train)) if "copy-" in train.where(place)]
    assert train.targets.known.sum() == 60


def test_the_report_is_drawn_again_from_what_is_stored(run):
    again = stored(run.out)
    assert again.lesson == run.lesson and again.candidates == run.candidates


def test_the_same_after_a_stop(run, root, tmp_path, monkeypatch):
    """Everything up to some step of the student is there."""
    monkeypatch.setattr("vitreous.fitting.student.AHEAD", -1000)
    out = tmp_path / "out"
    shutil.copytree(run.out, out)
    for name in ("student", "model"):
        shutil.rmtree(out / name)
    assert student.lesson_of(out) == run.lesson
    resumed = fit(str(root / "labelled"), out, unlabelled=str(root / "unlabelled"), changes=TINY)
    assert resumed.resumed and resumed.lesson == run.lesson
    ours, again = Trained.load(run.out).weights, Trained.load(out).weights
    assert resumed.evaluation.to_json() == run.evaluation.to_json()
    assert all(torch.equal(ours[name], again[name]) for name in ours)


def kept(score, num=100):
    return Kept(None, Scored(score, num), (Candidate(name="fine-tuned", score=score, is_kept=True),), "fine-tuned", "")


def test_it_is_delivered_where_it_is_clearly_better_only():
    model = object()
    for now, gains in ((0.90, False), (0.91, False), (0.92, True), (0.5, False)):
        found = student._compared(kept(0.9), model, Scored(now, 100))
        assert (found.name == STUDENT, found.model is model) == (gains, gains)
        assert [one.is_kept for one in found.candidates] == [not gains, gains]


def test_half_of_the_time_for_training_is_its():
    pace = Pace(step_s=0.1, start_s=1.0, picture_s=0.01)
    whole = Budget(total_s=100.0, before_s=20.0, after_s=20.0, train_s=60.0, pace=pace)
    shared = with_student_s(whole)
    assert (shared.train_s, shared.after_s, shared.student_s) == (30.0, 50.0, 30.0)
    assert with_student_s(replace(whole, train_s=-5.0)) == replace(whole, train_s=-5.0)


def test_within_the_time(root, tmp_path, capsys):
    """The student is planned and aimed, or there is no time for one; either is said."""
    found = fit(str(root / "labelled"), tmp_path, minutes=0.25, unlabelled=str(root / "unlabelled"), start="none")
    (choice,) = [one for one in found.plan.choices if one.name == "unlabelled pictures"]
    assert choice.value == "not used" or " of 90 " in choice.value
    assert found.plan.budget.student_s == pytest.approx(max(0.0, found.plan.budget.train_s))
    RunDirectory(tmp_path).check_ours()


def test_mistakes_are_one_clear_line(root, tmp_path, capsys):
    with pytest.raises(UserError, match="no such file or folder"):
        fit(str(root / "labelled"), tmp_path / "a", unlabelled=str(root / "nowhere"), changes=TINY)
    with pytest.raises(UserError, match="nowhere: no such run, file or folder of weights"):
        fit(str(root / "labelled"), tmp_path / "a", start="nowhere")
    assert "classes" not in capsys.readouterr().out, "refused before the pictures are read"
    with pytest.raises(UserError, match="holds a different fit"):
        shutil.copytree(root, tmp_path / "root")
        out = tmp_path / "b"
        fit(str(root / "labelled"), out, changes={**TINY, "training.steps": "2"})
        fit(str(root / "labelled"), out, unlabelled=str(root / "unlabelled"), changes={**TINY, "training.steps": "2"})
