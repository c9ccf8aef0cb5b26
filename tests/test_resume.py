"""What stands around exact resume: which run goes on, which is refused, and machines at their limits. That a run which
was killed or stopped ends as one that was not is a campaign's to show (tests/stress)."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scenes import write_scenes
from vitreous.errors import UserError
from vitreous.fitting.fit import fit
from vitreous.jobs.train import train
from vitreous.prediction.predictor import Predictor
from vitreous.recipes import find_recipe
from vitreous.weights.trained import Trained

COMMAND = [
    *("train", "fashion_vit"),
    *("--data.train_limit", "600", "--data.val_fraction", "0.02", "--training.batch_size", "60"),
    *("--model.width", "16", "--model.depth", "2", "--model.heads", "2"),
    *("--model.dropout", "0.1", "--model.stochastic_depth", "0.2", "--augmentation.mix.mixup", "0.8"),
    *("--average.kind", "ema", "--average.factor", "0.95"),
    *("--training.steps", "40", "--training.log_every_steps", "7", "--training.evaluate_every_epochs", "5"),
    *("--training.checkpoint_every_s", "0.1"),
]


def start(out: Path, *settings: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "vitreous", *COMMAND, *settings, "--out", str(out)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(out: Path, *settings: str) -> str:
    process = start(out, *settings)
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return printed


def outcome(out: Path) -> tuple[list[str], str]:
    weights = (out / "model" / "model.safetensors").read_bytes()
    return (out / "metrics.jsonl").read_text().splitlines(), hashlib.sha256(weights).hexdigest()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "uninterrupted"
    finish(out)
    return out


def test_a_finished_run_is_not_run_again(uninterrupted):
    before = outcome(uninterrupted)
    printed = finish(uninterrupted)
    assert "has finished" in printed
    assert "accuracy" in printed
    assert outcome(uninterrupted) == before


def test_another_setting_is_refused(uninterrupted):
    process = start(uninterrupted, "--optimizer.lr", "0.5")
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert printed == ""
    assert errors.count("\n") == 1
    assert "optimizer.lr 0.002 there, 0.5 here" in errors


def test_a_folder_of_somebody_else_is_refused_before_anything_is_read(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match=r"not a run, but a folder with 'thesis\.tex' in it; choose another --out"):
        fit("no such pictures", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


KILLED_FIT = """
import os, signal, sys
from vitreous.fitting import class_fit, fit
class_fit.evaluate_fully = lambda *logits: os.kill(os.getpid(), signal.SIGKILL)
fit.fit(sys.argv[1], sys.argv[2], changes=dict(word.split("=") for word in sys.argv[3:]))
"""


def test_a_fit_killed_before_it_is_calibrated_leaves_its_first_model(tmp_path):
    """A whole model, calibrated: what was trained since is not delivered before it is calibrated, too."""
    write_scenes(tmp_path / "pictures", {"dark": 30, "light": 30}, size=(20, 20))
    data, out = str(tmp_path / "pictures"), tmp_path / "out"
    changes = {"model.width": "16", "model.depth": "1", "model.heads": "2", "training.steps": "4"}
    words = [f"{name}={value}" for name, value in changes.items()]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_FIT, data, str(out), *words], capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (out / "results.json").is_file(), "training had ended"
    first, left = Trained.load(out / "pixels"), Trained.load(out)  # no encoder was asked for: the floor alone
    assert left.card.sets and left.card.temperature != 1 and Predictor.load(out)
    assert all(torch.equal(left.weights[name], value) for name, value in first.weights.items())
    resumed = fit(data, out, changes=changes)
    assert resumed.resumed and resumed.card == Trained.load(out).card


def test_other_pictures_are_refused_or_taken_knowingly(tmp_path):
    folder, out = tmp_path / "pictures", tmp_path / "run"
    write_scenes(folder, {"dark": 30, "light": 30}, size=(28, 28))
    changes = {"model.width": "16", "model.depth": "1", "model.heads": "2", "training.batch_size": "8"}
    recipe = find_recipe("fashion_vit", {**changes, "data.where": str(folder), "training.steps": "6"})
    train(recipe, out, until=3)
    for name in ("x", "y"):
        shutil.copy(folder / "dark" / "0000.png", folder / "dark" / f"{name}.png")
    with pytest.raises(UserError, match=r"have changed since the run in .*; or remove .*pictures\.json to continue"):
        train(recipe, out)
    (out / "pictures.json").unlink()
    assert train(recipe, out)["steps"] == 6
    # Where the model does not fit the classes any more, that is one line too.
    for name in ("results.json", "pictures.json"):
        (out / name).unlink()
    write_scenes(folder, {"grey": 30}, size=(28, 28))
    with pytest.raises(UserError, match=r"its checkpoint is of another model \(size mismatch for head.*\)\. Give"):
        train(recipe, out)


def one_line(process: subprocess.Popen, *words: str) -> None:
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 2, errors
    assert errors.startswith("vitreous: ") and errors.count("\n") == 1, errors
    assert all(word in errors for word in words), errors


LIMITED = """
import resource, sys
from vitreous import cli
limit = getattr(resource, sys.argv[1])
resource.setrlimit(limit, (int(sys.argv[2]), int(sys.argv[2])))
cli.main(sys.argv[3:])
"""


@pytest.mark.parametrize(
    ("limit", "size", "settings", "word"),
    [
        # The run needs less than this; a layer of this width does not.
        ("RLIMIT_AS", 6 * 2**30, ("--model.width", "65536"), "memory"),
        ("RLIMIT_FSIZE", 2000, (), "File too large"),
    ],
)
def test_a_machine_at_its_limits_says_so_in_one_line(tmp_path, limit, size, settings, word):
    command = [sys.executable, "-c", LIMITED, limit, str(size), *COMMAND, *settings, "--out", str(tmp_path / "run")]
    alone = os.environ | {"OMP_NUM_THREADS": "1"}
    one_line(subprocess.Popen(command, env=alone, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), word)


def test_a_full_disk_under_the_words_does_not_end_the_work(tmp_path):
    command = [sys.executable, "-m", "vitreous", *COMMAND, "--training.steps", "12", "--out", str(tmp_path / "run")]
    with Path("/dev/full").open("w") as full:
        assert subprocess.run(command, stdout=full, stderr=full, check=False, timeout=120).returncode == 1
    assert json.loads((tmp_path / "run" / "results.json").read_text())["steps"] == 12
