"""Assess: a real small run, measured in every way there is."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vitreous import jobs
from vitreous.assess import assess
from vitreous.errors import UserError
from vitreous.recipes.fashion import fashion_vit
from vitreous.trained import Trained


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
    jobs.train(small, path)
    return path


def test_scores_calibration_and_sets(run):
    found = assess(run)
    expected = jobs.evaluate(run)
    assert found.evaluation is not None
    assert found.evaluation.scores.top1.value == pytest.approx(expected["accuracy"])
    assert found.evaluation.validation_pictures > 0 and found.evaluation.temperature != 1
    assert [one.coverage for one in found.evaluation.sets] == [0.9, 0.95, 0.99]
    assert "prediction sets" in found.summary()
    json.dumps(found.to_json())


def test_the_models_own_temperature_is_kept(run, tmp_path):
    trained = Trained.load(run)
    replace(trained, card=replace(trained.card, temperature=2.5)).save(tmp_path / "warm")
    found = assess(tmp_path / "warm", "fashion")
    assert found.evaluation is not None and found.evaluation.temperature == 2.5


def test_probes_on_both_kinds_of_features(run):
    found = assess(run, probes=("knn", "fewshot"))
    assert [one.features for one in found.probes] == ["pooled", "tanh"]
    for one in found.probes:
        assert one.knn[0].accuracy.value > 0.3 and one.linear is None  # chance is 0.1
        assert [few.shots for few in one.few_shot] == [1, 5, 10, 25]
    assert "25 a class" in found.summary()


def test_an_encoder_alone_is_probed(run, tmp_path):
    trained = Trained.load(run)
    encoder = {name: value for name, value in trained.weights.items() if name.startswith("encoder.")}
    alone = replace(trained, card=replace(trained.card, task=None, classes=()), weights=encoder)
    alone.save(tmp_path / "encoder")
    with pytest.raises(UserError, match="--probe"):
        assess(tmp_path / "encoder", "fashion")
    found = assess(tmp_path / "encoder", "fashion", probes=("knn",))
    assert found.evaluation is None and found.probes[0].knn[0].accuracy.value > 0.3


def test_sets_of_right_labels_and_a_mapping_of_classes(run, tmp_path):
    labels = np.asarray(jobs.part(run, None, "test").labels).tolist()
    everything = [[label] for label in labels]
    everything[0] = []
    (tmp_path / "labels.json").write_text(json.dumps(everything))
    found = assess(run, label_sets=tmp_path / "labels.json")
    assert found.label_sets is not None and found.label_sets.left_out == 1
    classes = Trained.load(run).card.classes
    (tmp_path / "map.json").write_text(json.dumps({name: [name] for name in classes[:3]}))
    among_three = assess(run, mapping=tmp_path / "map.json").evaluation
    assert among_three is not None and found.evaluation is not None
    assert among_three.scores.pictures == sum(label < 3 for label in labels)
    assert among_three.scores.top1.value >= found.evaluation.scores.balanced.value - 0.2


def test_a_mistyped_probe(run):
    with pytest.raises(UserError, match="Did you mean linear"):
        assess(run, probes=("liner",))
