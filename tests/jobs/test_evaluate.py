"""Assess: a real small run, measured in every way there is."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.data.opening import same_data
from vitreous.errors import UserError
from vitreous.jobs.data import AskedData, data_of
from vitreous.jobs.evaluate import evaluate
from vitreous.jobs.train import train
from vitreous.recipes.fashion import fashion_vit
from vitreous.weights.calibration import ClassCalibration
from vitreous.weights.trained import Trained


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    recipe = fashion_vit()
    small = replace(
        recipe,
        data=replace(recipe.data, train_limit=600),
        model=replace(recipe.model, width=16, depth=1, heads=2, patch=14),
        training=replace(recipe.training, steps=30, batch_size=100, evaluate_every_epochs=0),
    )
    path = tmp_path_factory.mktemp("assess") / "run"
    train(small, path)
    return path


def test_scores_calibration_and_sets(run):
    found = evaluate(run)
    expected = json.loads((run / "results.json").read_text())["test"]
    assert found.evaluation is not None and found.evaluation.before is not None
    assert found.evaluation.scores.top1.value == pytest.approx(expected["accuracy"])
    assert found.evaluation.before.log_loss.value == pytest.approx(expected["log_loss"], abs=1e-6)
    assert found.evaluation.validation_pictures > 0 and found.evaluation.temperature != 1
    assert [one.coverage for one in found.evaluation.sets] == [0.9, 0.95, 0.99]
    assert "prediction sets" in found.summary()
    json.dumps(found.to_json())


def test_the_models_own_temperature_is_kept(run, tmp_path):
    trained = Trained.load(run)
    replace(trained, card=replace(trained.card, calibration=ClassCalibration(temperature=2.5))).save(tmp_path / "warm")
    found = evaluate(tmp_path / "warm", "fashion")
    assert found.evaluation is not None and found.evaluation.temperature == 2.5


def test_probes_on_both_kinds_of_features(run):
    found = evaluate(run, probes=("knn", "fewshot"))
    assert [one.features for one in found.probes] == ["pooled", "tanh"]
    for one in found.probes:
        assert one.knn[0].accuracy.value > 0.3 and one.linear is None  # chance is 0.1
        assert [few.shots for few in one.few_shot] == [1, 5, 10, 25]
    assert "25 per class" in found.summary()


def test_an_encoder_alone_is_probed(run, tmp_path):
    trained = Trained.load(run)
    encoder = {name: value for name, value in trained.weights.items() if name.startswith("encoder.")}
    alone = replace(trained, card=replace(trained.card, task=None, classes=()), weights=encoder)
    alone.save(tmp_path / "encoder")
    with pytest.raises(UserError, match="--probe"):
        evaluate(tmp_path / "encoder", "fashion")
    found = evaluate(tmp_path / "encoder", "fashion", probes=("knn",))
    assert found.evaluation is None and found.probes[0].knn[0].accuracy.value > 0.3


def test_sets_of_right_labels_and_a_mapping_of_classes(run, tmp_path):
    labels = np.asarray(AskedData.find(run).part("test").labels).tolist()
    everything = [[label] for label in labels]
    everything[0] = []
    (tmp_path / "labels.json").write_text(json.dumps(everything))
    found = evaluate(run, label_sets=tmp_path / "labels.json")
    assert found.label_sets is not None and found.label_sets.left_out == 1
    classes = Trained.load(run).card.classes
    (tmp_path / "map.json").write_text(json.dumps({name: [name] for name in classes[:3]}))
    among_three = evaluate(run, mapping=tmp_path / "map.json").evaluation
    assert among_three is not None and found.evaluation is not None
    assert among_three.scores.pictures == sum(label < 3 for label in labels)
    assert among_three.scores.top1.value >= found.evaluation.scores.balanced.value - 0.2


def test_label_sets_find_files_by_their_numbers(tmp_path):
    """Class folders put the pictures in another order than their numbers do."""
    for number in range(1, 41):
        where = tmp_path / "set" / ("dark" if number % 2 else "light")
        where.mkdir(parents=True, exist_ok=True)
        grey = np.full((14, 14, 3), (40 if number % 2 else 200) + number % 7, dtype=np.uint8)
        Image.fromarray(grey).save(where / f"val_{number:05}.png")
    recipe = fashion_vit()
    small = replace(
        recipe,
        data=replace(recipe.data, where=str(tmp_path / "set"), val_fraction=0.0),
        model=replace(recipe.model, picture_px=(14, 14), width=16, depth=1, heads=2, patch=14),
        training=replace(recipe.training, steps=60, batch_size=20, evaluate_every_epochs=0),
    )
    train(small, tmp_path / "run")
    shutil.copytree(tmp_path / "set", tmp_path / "others")
    (tmp_path / "labels.json").write_text(json.dumps([["light" if at % 2 else "dark"] for at in range(40)]))
    found = evaluate(tmp_path / "run", str(tmp_path / "others"), label_sets=tmp_path / "labels.json")
    assert found.evaluation is not None and found.label_sets is not None
    assert found.label_sets.accuracy.value == found.evaluation.scores.top1.value == 1
    with pytest.raises(UserError, match="--labels and --map"):
        evaluate(tmp_path / "run", label_sets=tmp_path / "labels.json", mapping=tmp_path / "labels.json")


def test_a_runs_own_data_is_known_by_any_spelling(run, tmp_path, monkeypatch):
    own = data_of(run)
    assert own is not None and same_data(own.where, "fashion")
    (tmp_path / "set").mkdir()
    monkeypatch.chdir(tmp_path)
    assert same_data("set", "./set/") and same_data(str(tmp_path / "set"), "set")
    assert not same_data("set", "other") and not same_data("fashion", "set")


def test_other_data_is_read_as_its_settings_say(run, tmp_path):
    """A table whose labels are in a column that nobody would guess."""
    names = ("Trouser", "Bag")
    lines = ["file,split,what,who"]
    for number in range(8):
        Image.fromarray(np.full((14, 14, 3), 20 * number, dtype=np.uint8)).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,test,{names[number % 2]},nobody{number}")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    found = evaluate(
        run, tmp_path / "table.csv", changes={"data.layout.label_column": "what", "data.layout.path_column": "file"}
    )
    assert found.evaluation is not None and found.evaluation.scores.pictures == 8
    with pytest.raises(UserError, match="nobody"):
        evaluate(
            run, tmp_path / "table.csv", changes={"data.layout.label_column": "who", "data.layout.path_column": "file"}
        )


def test_a_set_without_a_test_part_names_the_parts_that_it_has(run, tmp_path):
    for split in ("train", "val"):
        for name in ("Bag", "Trouser"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.fromarray(np.zeros((14, 14, 3), dtype=np.uint8)).save(tmp_path / split / name / "a.png")
    with pytest.raises(UserError, match="there is no test part; choose another with --split train or val"):
        evaluate(run, tmp_path)


def test_settings_that_would_mix_test_and_training_pictures_are_refused(run):
    for changes in ({"data.test_fraction": 0.5}, {"data.split_seed": 1}):
        with pytest.raises(UserError, match=r"--data\.\w+ is only for other"):
            evaluate(run, "fashion", changes=changes)
    with pytest.raises(UserError, match=r"--optimizer\.lr: only data settings"):
        evaluate(run, "fashion", changes={"optimizer.lr": 1})
    assert evaluate(run, changes={"data.keep_gb": 0}).evaluation is not None


def test_coverages_are_checked_before_anything_is_measured(run):
    with pytest.raises(UserError, match="coverage is 7"):
        evaluate(run, "fashion", coverages=(7,))


def test_a_mistyped_probe(run):
    with pytest.raises(UserError, match="Did you mean linear"):
        evaluate(run, probes=("liner",))


@pytest.mark.parametrize("names", [("night", "day"), ("Trouser", "day")], ids=["other classes", "one in common"])
def test_probes_ask_only_for_labels(run, tmp_path, names):
    """Pictures of classes that the model has never heard of: its features are measured, its answers are not."""
    for place, name in enumerate(names):
        (tmp_path / "set" / name).mkdir(parents=True)
        for number in range(30):
            grey = np.full((14, 14, 3), (40, 200)[place] + number, dtype=np.uint8)
            Image.fromarray(grey).save(tmp_path / "set" / name / f"{number:02}.png")
    found = evaluate(run, tmp_path / "set", probes=("knn", "linear"))
    assert found.evaluation is None
    assert all(one.knn[0].accuracy.value == 1 for one in found.probes)
    assert "does not know 'day'" in found.summary() and "does not know" in found._repr_html_()
    with pytest.raises(UserError, match="'day'"):
        evaluate(run, tmp_path / "set")


def test_it_reads_well_in_a_notebook(run):
    found = evaluate(run, probes=("knn",))
    assert found.evaluation is not None
    markup = found._repr_html_()
    for words in ("top-1", found.evaluation.scores.top1.percent(), "prediction sets", "temperature fitted on", "-NN"):
        assert words in markup
    assert markup.count("<table ") == len(found.tables()) == 6
