"""What a report shows of a model that finds shapes: the sections of boxes, with shapes drawn and named."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from instances import ShapeOracle, rendered
from vitreous.jobs.objects import evaluate_objects
from vitreous.prediction.predictor import Predictor
from vitreous.report import boxed_data
from vitreous.report.kinds import KINDS


@pytest.fixture(scope="module")
def result():
    val, test = rendered("val", 12), rendered("test", 10)
    oracle = ShapeOracle(val, test)
    evaluation = evaluate_objects(oracle, val, test)
    oracle.reading = replace(oracle.reading, calibration=evaluation.calibration)
    return SimpleNamespace(
        evaluation=evaluation,
        splits=SimpleNamespace(test=test),
        out=oracle,
        card=SimpleNamespace(classes=test.classes),
        data=SimpleNamespace(where="rendered:objects"),
    )


def test_shapes_are_shown_and_told_of(result, monkeypatch):
    monkeypatch.setattr(Predictor, "load", staticmethod(lambda oracle: oracle))
    kind, test = KINDS["instances"], result.splits.test
    sections = {name: content.markup for name, _, content in (*kind.results(result), *kind.trust(result))}
    assert sections["examples"].count("<img") == 2 * 9
    assert "AP of masks" in kind.lead(result) and "a mask need only" in kind.lead(result)
    options, lines = kind.usage(result)
    assert options == " --out masks" and "one.shape.area" in lines
    compile(lines, "usage", "exec")
    index = next(one.id for one in result.evaluation.scores.per_picture if one.objects)
    drawn = boxed_data.labelled_objects(test, index, test.read(index))
    times = drawn.shape[0] // test.read(index).shape[0]
    changed = (drawn != test.read(index).repeat(times, axis=0).repeat(times, axis=1)).any(axis=2)
    covered = sum(test.targets.shapes(index)).astype(bool).repeat(times, axis=0).repeat(times, axis=1)
    assert changed[covered].mean() > 0.98 and not changed[~covered].any()
