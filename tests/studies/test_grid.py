import csv
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_sets import SMALL, write_set

from vitreous import settings
from vitreous.data.sources import DataSettings
from vitreous.errors import UserError
from vitreous.jobs.evaluate import evaluate
from vitreous.jobs.train import train
from vitreous.recipes.recipe import Recipe
from vitreous.studies.grid import LOCK, Cell, DecodedOnce, Grid
from vitreous.studies.positions import Positions


@pytest.fixture
def study(tmp_path):
    return Positions.quick(data=write_set(tmp_path / "pictures"), **SMALL)


def cell(study, name, **changes):
    recipe = study.recipe(name, study.model("vit-t").settings, seed=0)
    return Cell(name=name, facts={"model": name, "seed": 0}, recipe=replace(recipe, **changes))


def test_cell_by_cell(study, tmp_path):
    cells = [cell(study, "one"), cell(study, "two")]
    (first,) = Grid(tmp_path / "grid", {}).run(cells[:1])
    run = tmp_path / "grid/one"
    assert settings.load(Recipe, run / "recipe.json") == cells[0].recipe
    assert json.loads((run / "results.json").read_text())["test"]["accuracy"] == first["accuracy"]
    assert evaluate(run).evaluation.scores.top1.value == first["accuracy"]  # an ordinary run directory
    before = {file: file.stat().st_mtime_ns for file in run.rglob("*") if file.is_file()}
    rows = Grid(tmp_path / "grid", {"study": "x"}).run(cells)
    assert rows[0] == first
    assert [row["cell"] for row in rows] == ["one", "two"]
    assert before == {file: file.stat().st_mtime_ns for file in run.rglob("*") if file.is_file()}
    document = json.loads((tmp_path / "grid/results.json").read_text())
    assert document["study"] == "x"
    assert document["rows"] == rows
    with (tmp_path / "grid/results.csv").open() as file:
        assert [float(row["accuracy"]) for row in csv.DictReader(file)] == [row["accuracy"] for row in rows]


def test_killed_between_training_and_measuring(study, tmp_path):
    def killed(path):
        raise KeyboardInterrupt

    one = cell(study, "one")
    with pytest.raises(KeyboardInterrupt):
        Grid(tmp_path / "grid", {}).run([replace(one, measure=killed)])
    trained_at = (tmp_path / "grid/one/results.json").stat().st_mtime_ns
    (row,) = Grid(tmp_path / "grid", {}).run([replace(one, measure=lambda path: {"name": path.name})])
    assert row["name"] == "one"
    assert (tmp_path / "grid/one/results.json").stat().st_mtime_ns == trained_at


def test_a_cell_that_fails_is_recorded_and_tried_again(study, tmp_path):
    model = replace(study.model("vit-t").settings, heads=3)
    cells = [cell(study, "bad", model=model), cell(study, "good")]
    grid = Grid(tmp_path / "grid", {})
    assert [row["cell"] for row in grid.run(cells)] == ["good"]
    assert "multiple of the heads" in grid.rows[0]["failed"]
    assert "multiple of the heads" in (tmp_path / "grid/results.csv").read_text()
    mended = Grid(tmp_path / "grid", {}).run([cell(study, "bad"), cells[1]])
    assert [row["cell"] for row in mended] == ["bad", "good"]


def test_another_study_in_the_same_folder_is_refused(study, tmp_path):
    Grid(tmp_path / "grid", {}).run([cell(study, "one")])
    with pytest.raises(UserError, match="different settings"):
        Grid(tmp_path / "grid", {}).run([cell(replace(study, steps=3), "one")])


def test_when_the_time_is_over_no_cell_is_started(study, tmp_path):
    Grid(tmp_path / "grid", {}).run([cell(study, "one")])
    grid = Grid(tmp_path / "grid", {}, minutes=0)
    rows = grid.run([cell(study, "one"), cell(study, "two")])
    assert [row["cell"] for row in rows] == ["one"]
    assert [left.name for left in grid.left] == ["two"]


def chosen(splits):
    return set(splits.train.numbers(np.arange(len(splits.train))).tolist())


def test_fractions_are_nested_and_stratified():
    before = set()
    for fraction, number in ((0.002, 24), (0.01, 120), (0.05, 600), (1.0, 12_000)):
        part = DataSettings(where="fashion", val_fraction=0.0, train_fraction=fraction, keep_gb=0).build()
        labels = np.bincount(part.train.labels)
        assert labels.sum() == number
        assert labels.max() - labels.min() <= max(1, 0.1 * number / 10)
        assert before <= chosen(part)
        before = chosen(part)


def test_a_part_of_what_is_decoded_is_the_part_that_would_be_decoded(study):
    whole, opened = DataSettings(where=study.data, val_fraction=0.2), DecodedOnce()
    assert opened(whole) is opened(whole)
    for changes in ({"train_fraction": 0.5}, {"train_limit": 7}, {"train_fraction": 0.5, "train_limit": 7}):
        wanted = replace(whole, **changes)
        fresh, kept = wanted.build(), opened(wanted)
        assert chosen(fresh) == chosen(kept) < chosen(opened(whole))
        assert np.array_equal(fresh.train.pictures, kept.train.pictures)
        assert kept.val is opened(whole).val  # choices are made on the same pictures


def test_examples_are_taken_before_the_validation_part():
    sweep = DataSettings(examples=1000, val_fraction=0.2, keep_gb=0).build()
    final = DataSettings(examples=1000, val_fraction=0.0, keep_gb=0).build()
    held_out = set(sweep.val.numbers(np.arange(200)).tolist())
    assert (len(sweep.train), len(sweep.val), len(final.train)) == (800, 200, 1000)
    assert chosen(sweep) | held_out == chosen(final)


@pytest.mark.parametrize("wrong", [{"train_fraction": 0.0}, {"train_fraction": 1.5}, {"train_fraction": 1e-4}])
def test_impossible_fractions(wrong):
    with pytest.raises(UserError, match="train_fraction is"):
        DataSettings(keep_gb=0, **wrong).build()


def test_early_stopping_keeps_the_best_weights(tmp_path):
    study = Positions.quick(data=write_set(tmp_path / "pictures", gap=0), **SMALL)  # nothing to learn but by chance
    recipe = study.recipe("best", study.model("vit-t").settings, seed=0)
    training = replace(recipe.training, steps=8, keep="best", evaluate_every_epochs=0.25)
    recipe = replace(recipe, training=training, data=replace(recipe.data, val_fraction=0.4))
    results = train(recipe, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    seen = [line[name] for line in lines for name in line if name.endswith("/accuracy")]
    assert len(seen) == 2 * 8
    assert results["val"]["accuracy"] == max(seen) > min(seen)
    assert evaluate(tmp_path / "run", split="val").evaluation.scores.top1.value == max(seen)
    with pytest.raises(UserError, match="validation part"):
        train(replace(recipe, data=replace(recipe.data, val_fraction=0.0)), tmp_path / "none")


TOGETHER = """
import sys
from pathlib import Path
from vitreous.studies.positions import Positions
from vitreous.studies.study import run_study
from small_sets import SMALL
study = Positions.quick(data=sys.argv[1], **SMALL | {"kinds": ("none", "learned", "sincos"), "places": ("stem",)})
grid = run_study(study, Path(sys.argv[2]))
print(len([row for row in grid.rows if "failed" not in row]), len(grid.left))
"""


def test_two_processes_share_a_grid(tmp_path):
    data, out = write_set(tmp_path / "pictures"), tmp_path / "grid"
    command = [sys.executable, "-c", TOGETHER, str(data), str(out)]
    where = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=where) for _ in range(2)]
    said = [process.communicate(timeout=120)[0].split()[-2:] for process in both]
    cells = json.loads((out / "results.json").read_text())["rows"]
    assert said == [["3", "0"]] * 2  # both know all of it
    # Every cell was begun once.
    begun = [json.loads((out / row["cell"] / "environment.json").read_text()) for row in cells]
    assert [len(starts) for starts in begun] == [1] * len(cells)


def test_what_starts_from_a_cell_of_another_process_waits_for_it(study, tmp_path):
    grid = Grid(tmp_path / "grid", {})
    first = cell(study, "first")
    later = replace(first, name="later", recipe=replace(first.recipe, start=str(grid.path(first))))
    grid.path(first).mkdir(parents=True)
    code = (
        "import sys; from pathlib import Path; from vitreous.storage import locks; "
        f"lock = locks.take(Path({str(grid.path(first) / LOCK)!r})); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        assert grid._if_free(first) is None
        assert grid._if_free(later) is None
        other.stdin.close()
    assert [row["cell"] for row in grid.run([first, later])] == ["first", "later"]


def test_a_folder_that_is_not_a_study_is_refused(tmp_path):
    (tmp_path / "results.json").write_text("mine")
    with pytest.raises(UserError, match=r"not a study, but a folder with 'results\.json' in it"):
        Grid(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
