import json
from dataclasses import replace

import pytest
import torch
from invented import simulated

from vitreous import settings
from vitreous.evaluation.answers import Answers
from vitreous.evaluation.calibration import calibration, fit_temperature
from vitreous.evaluation.conformal import measure_sets
from vitreous.evaluation.full import Evaluation, evaluate_fully
from vitreous.evaluation.metrics import scores
from vitreous.models import ViTSettings
from vitreous.weights.card import Card


@pytest.fixture(scope="module")
def parts():
    return simulated(600, seed=1, sharpness=2.0), simulated(800, seed=2, sharpness=2.0)


def test_all_of_it(parts):
    val, test = parts
    found = evaluate_fully(val, test)
    assert found.temperature == fit_temperature(val)
    assert found.validation_pictures == 600
    assert found.before == calibration(test) and found.after == calibration(test, found.temperature)
    assert found.scores == scores(test, found.temperature)
    assert found.sets[0] == measure_sets(val, test, 0.9, found.temperature)
    assert [one.coverage for one in found.sets] == [0.9, 0.95, 0.99]
    assert found.card_sets == tuple((one.coverage, one.threshold) for one in found.sets)
    assert [one.wished for one in found.silences] == [0.95, 0.99]
    text = found.summary()
    for word in ("top-1", "class 9", "ECE", "fitted on 600 validation", "prediction sets", "target accuracy"):
        assert word in text
    assert settings.from_json(Evaluation, json.loads(json.dumps(found.to_json(), allow_nan=False))) == found


def test_without_validation_pictures_nothing_is_fitted(parts):
    found = evaluate_fully(None, parts[1])
    assert (found.temperature, found.validation_pictures, found.sets, found.silences) == (1.0, 0, (), ())
    assert found.before == found.after
    assert "prediction sets" not in found.summary()
    assert evaluate_fully(None, parts[1], temperature=1.5).after.temperature == 1.5


def test_adaptive_sets_are_not_for_the_card(parts):
    found = evaluate_fully(*parts, kind="adaptive", coverages=(0.8,))
    assert [one.kind for one in found.sets] == ["adaptive"]
    assert found.card_sets == ()


def test_several_labels():
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(60, 3, generator=generator) < 0.5).float()
    answers = Answers(torch.randn(60, 3, generator=generator), labels, torch.arange(60), ("a", "b", "c"))
    found = evaluate_fully(answers, answers)
    assert found.before is None and found.sets == ()
    assert "top-1" in found.summary()
    assert settings.from_json(Evaluation, json.loads(json.dumps(found.to_json(), allow_nan=False))) == found


def test_a_card_carries_its_sets(parts):
    found = evaluate_fully(*parts)
    from vitreous.data.transforms import Preprocessing

    plain = Card(model=ViTSettings(), preprocessing=Preprocessing())
    card = replace(plain, temperature=found.temperature, sets=found.card_sets)
    assert settings.from_json(Card, json.loads(json.dumps(settings.to_json(card)))) == card
    old = settings.to_json(plain)
    del old["sets"]
    assert settings.from_json(Card, old) == plain, "what was written before there were sets"
