import hashlib
import json
import os
import re
import shutil
import signal
from dataclasses import replace

import pytest

from boxes import write_boxes
from captions import draw_captions, shrunk_words
from scenes import write_scenes
from vitreous.cli import main
from vitreous.data.order import Order
from vitreous.errors import UserError
from vitreous.jobs.train import train
from vitreous.jobs.verify import _copy, verify
from vitreous.models import ViTSettings
from vitreous.recipes import find_recipe
from vitreous.recipes.recipe import read_recipe
from vitreous.recipes.segment import rendered_segmenter
from vitreous.recipes.words import rendered_clip
from vitreous.tasks.segment import SegmentSettings
from vitreous.training.checkpoint import Checkpoints
from vitreous.training.loop import Loop
from vitreous.training.run import RunDirectory
from vitreous.words.pairs import train_tokenizer

CHANGES = {"model.width": "16", "model.depth": "1", "model.heads": "2", "training.batch_size": "8"}
CHANGES |= {"training.steps": "12", "training.checkpoint_every_s": "0", "training.log_every_steps": "2"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    data = write_scenes(folder / "pictures", {"dark": 30, "light": 30}, size=(28, 28))
    train(find_recipe("fashion_vit", {**CHANGES, "data.where": str(data)}), folder / "run", read_test=False)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished / "run", tmp_path / "run")


def holds(checks):
    return {check.name: check.holds for check in checks}


def wrong(checks):
    (check,) = [check for check in checks if not check.holds]
    return f"{check.name}: {check.found}"


def content(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]


def test_a_whole_run_and_exact_resume(run, capsys):
    before = content(run)
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(run), "--resume", "--quiet", "--json"])
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert [check["name"] for check in found] == [
        *("recipe", "checkpoints", "model", "results", "log", "pictures", "resume")
    ]
    assert all(check["holds"] for check in found)
    assert found[1]["found"] == "intact, after step 11, 12"
    assert found[-1]["found"].startswith("steps 1 to 8, without a stop and with one after 4")
    assert content(run) == before


def of_towers(folder):
    """Whose tokenizer came from a file that is gone."""
    recipe = shrunk_words(rendered_clip(), draw_captions(folder / "captions", (("train", 40), ("val", 8))), steps=12)
    tokenizer = train_tokenizer(["a red circle", "a blue square"] * 3, 560, 40)
    (folder / "words.json").write_text(json.dumps(tokenizer.document()))
    objective = replace(recipe.objective, tokenizer=str(folder / "words.json"))
    train(replace(recipe, objective=objective), folder / "run", read_test=False)
    (folder / "words.json").unlink()


def of_segmentation(folder):
    write_boxes(folder / "boxes", 40)
    recipe = rendered_segmenter(start=None)
    data = replace(recipe.data, where=str(folder / "boxes"), val_fraction=0.2)
    model = ViTSettings(picture_px=(28, 28), patch=7, width=16, depth=2, heads=2)
    training = replace(recipe.training, steps=12, batch_size=8, workers=0)
    objective = SegmentSettings(decoder="linear", heads=2)
    train(replace(recipe, data=data, model=model, training=training, objective=objective), folder / "run")


def of_a_fit(folder):
    for split, number in (("train", 40), ("val", 8), ("test", 8)):
        write_scenes(folder / "pictures" / split, {"dark": number, "light": number}, size=(28, 28))
    words = ["--from", "none", "--model.width", "16", "--model.depth", "1", "--model.heads", "2", "--quiet"]
    main(["fit", str(folder / "pictures"), *words, "--training.steps", "12", "--out", str(folder / "run")])


SLOW = (of_segmentation, of_a_fit)
ALL = [of_towers, *(pytest.param(make, marks=pytest.mark.slow) for make in SLOW)]


@pytest.mark.parametrize("make", ALL)
def test_runs_of_all_kinds_resume_exactly(tmp_path, make):
    make(tmp_path)
    checks = verify(tmp_path / "run", resume=True)
    assert all(check.holds for check in checks), checks
    assert checks[-1].found.endswith("losses and all state equal, bit for bit")


def test_what_is_wrong_is_named(run, capsys):
    newest = run / "checkpoints" / "step-00000012" / "objective.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(run)])
    assert ended.value.code == 1
    printed = capsys.readouterr().out
    assert "WRONG  checkpoints" in printed
    assert "step-00000012/objective.safetensors: damaged" in printed
    assert "resumes from step 11" in printed


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("recipe.json", "{}", "recipe: "),
        ("results.json", "{", "results: .*damaged; the same command repeats the end"),
        ("results.json", '{"recipe": "a", "steps": "12", "wall_s": 1}', "results: .*damaged; the same command"),
        ("environment.json", "[", "environment: .*environment.json: damaged, or not JSON"),
        ("model/model.json", "{}", "model: .*model.json: damaged"),
        ("metrics.jsonl", '{"step": 2}\n', "log: .*ends at step 2, but there is a checkpoint of step 12"),
        ("pictures.json", "{}", r"pictures: .*have changed \(they were split differently\)"),
    ],
)
def test_a_changed_file(run, file, content, message):
    (run / file).write_text(content)
    assert re.match(message, wrong(verify(run)))


def test_a_finished_run_has_a_model(run):
    (run / "model" / "manifest.json").unlink()
    assert re.match(r"model: .*unfinished \(no manifest\.json\)", wrong(verify(run)))
    shutil.rmtree(run / "model")
    assert re.match("model: .*no such folder", wrong(verify(run)))
    (run / "results.json").unlink()
    assert all(check.holds for check in verify(run))


def test_a_run_may_go_on_meanwhile(run, tmp_path, monkeypatch):
    """And replaces its checkpoints."""
    read = Checkpoints.read

    def replaced(self, step):
        if step == 11:
            shutil.rmtree(self.paths()[step])
        return read(self, step)

    monkeypatch.setattr(Checkpoints, "read", replaced)
    checks = verify(run)
    assert all(check.holds for check in checks) and checks[1].found == "intact, after step 12"
    with pytest.raises(UserError, match=r"step-00000011: cannot be copied to .* if the run is still going on, try"):
        _copy(RunDirectory(run), read_recipe(run / "recipe.json"), tmp_path / "copy", 11)


def test_a_fit_that_took_no_step_has_no_pictures_to_compare(run):
    """It ends with the model that it made first."""
    results = json.loads((run / "results.json").read_text())
    (run / "results.json").write_text(json.dumps(results | {"steps": 0}))
    shutil.rmtree(run / "checkpoints")
    (run / "pictures.json").unlink()
    found = verify(run, resume=True)
    assert all(check.holds for check in found) and found[-1].found.startswith("no steps were taken")


def test_other_pictures_are_not_trained_on(finished, run):
    extra = finished / "pictures" / "dark" / "extra.png"
    shutil.copy(finished / "pictures" / "dark" / "0000.png", extra)
    try:
        checks = verify(run, resume=True)
    finally:
        extra.unlink()
    assert "pictures: " in wrong(checks) and "resume" not in holds(checks)


def test_a_run_that_does_not_resume_exactly_is_noticed(run, monkeypatch):
    """An order of samples that depends on where a process began."""

    drawn = Order.steps

    def forgetful(self, start, stop):
        self.begun = getattr(self, "begun", start)
        return drawn(self, start - self.begun, stop - self.begun)

    monkeypatch.setattr(Order, "steps", forgetful)
    assert "resume: steps 1 to 8, without a stop and with one after 4: the losses differ" in wrong(
        verify(run, resume=True)
    )


def test_a_signal_is_no_finding(run, monkeypatch, capsys):
    def signalled(loop, *inputs):
        if int(loop.step_count) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        step(loop, *inputs)

    step = Loop.step
    monkeypatch.setattr(Loop, "step", signalled)
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(run), "--resume"])
    assert ended.value.code == 143
    assert capsys.readouterr().err == "vitreous: SIGTERM: stopped\n"


def test_what_is_no_run(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        verify(tmp_path / "nowhere")
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match=r"not a run \(no recipe\.json\)"):
        verify(tmp_path)
