import json
from dataclasses import replace

import pytest
from invented import simulated

from vitreous import settings
from vitreous.errors import UserError
from vitreous.evaluation.calibration import calibration, fit_temperature
from vitreous.evaluation.conformal import measure_sets
from vitreous.evaluation.full import evaluate_fully, evaluation_of
from vitreous.evaluation.metrics import scores
from vitreous.models import ViTSettings
from vitreous.weights.calibration import ClassCalibration
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
    assert found.calibration.sets == tuple((one.coverage, one.threshold) for one in found.sets)
    assert (found.headline_name, found.headline) == ("accuracy", found.scores.top1)
    assert [one.wished for one in found.silences] == [0.95, 0.99]
    text = found.summary()
    for word in ("top-1", "class 9", "ECE", "fitted on 600 validation", "prediction sets", "target accuracy"):
        assert word in text
    assert evaluation_of(json.loads(json.dumps(found.to_json(), allow_nan=False)), "here") == found
    older = found.to_json()
    older["sets"] = [{"kind": "threshold", **one} for one in older["sets"]]  # as earlier versions wrote it
    assert evaluation_of(older, "here") == found
    with pytest.raises(UserError, match="here: this version does not know this kind of evaluation"):
        evaluation_of({**found.to_json(), "kind": "Unheard"}, "here")


def test_without_validation_pictures_nothing_is_fitted(parts):
    found = evaluate_fully(None, parts[1])
    assert (found.temperature, found.validation_pictures, found.sets, found.silences) == (1.0, 0, (), ())
    assert found.before == found.after
    assert "prediction sets" not in found.summary()
    assert evaluate_fully(None, parts[1], calibration=ClassCalibration(temperature=1.5)).after.temperature == 1.5


def test_a_card_carries_its_sets(parts):
    found = evaluate_fully(*parts)
    from vitreous.data.transforms import Preprocessing

    plain = Card(model=ViTSettings(), preprocessing=Preprocessing())
    card = replace(plain, calibration=found.calibration)
    assert settings.from_json(Card, json.loads(json.dumps(settings.to_json(card)))) == card
