"""What a report shows of a model that finds objects, made of a real evaluation of an oracle's detections."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from detections import Oracle
from vitreous.data.base import Subset
from vitreous.data.sources import DataSettings
from vitreous.evaluation.metrics import Estimate
from vitreous.jobs.objects import evaluate_objects
from vitreous.prediction.predictor import Predictor
from vitreous.report import box_account, box_page
from vitreous.report.html import together


@pytest.fixture(scope="module")
def result():
    splits = DataSettings(where="rendered:objects", train_limit=10).build()
    splits = replace(splits, val=Subset(splits.val, np.arange(30)), test=Subset(splits.test, np.arange(16)))
    oracle = Oracle(splits.val, splits.test)
    evaluation = evaluate_objects(oracle, splits.val, splits.test)
    oracle.reading = replace(oracle.reading, calibration=evaluation.calibration)
    return SimpleNamespace(
        evaluation=evaluation,
        splits=splits,
        out=oracle,
        card=SimpleNamespace(classes=splits.test.classes),
        data=SimpleNamespace(
            where="rendered:objects", part=lambda name: SimpleNamespace(boxes=SimpleNamespace(total=150))
        ),
    )


@pytest.fixture(autouse=True)
def _oracle(monkeypatch, result):
    monkeypatch.setattr(Predictor, "load", staticmethod(lambda oracle: oracle))


def test_every_section_has_its_pictures(result):
    sections = {name: content.markup for name, _, content in (*box_page.results(result), *box_page.trust(result))}
    assert list(sections) == ["examples", "results", "errors", "alarms", "missed", "calibration"]
    assert sections["examples"].count("<img") == 2 * 9
    assert sections["alarms"].count("<img") == 12 and "nothing is there" in sections["alarms"]
    missed = result.evaluation.scores.missed
    assert sections["missed"].count("<img") == min(12, len(missed))
    for kind in box_page.KINDS:
        assert kind in sections["errors"]
    assert "AP50" in sections["results"] and "crescent" in sections["results"]
    assert "went from" in sections["calibration"]


def test_words(result):
    lead = box_account.lead(result)
    assert f"{result.evaluation.scores.objects:,} objects" in lead and "AP50" in lead
    told = [together(*parts).markup for parts in box_account.cautions(result)]
    assert any("may be chance" in one for one in told) and not any("do not rely" in one for one in told)
    assert list(box_account.cautions_of_confidence(result)) == []
    few = SimpleNamespace(part=lambda name: SimpleNamespace(boxes=SimpleNamespace(total=70)))
    ((heading, told),) = box_account.cautions_of_confidence(SimpleNamespace(**vars(result) | {"data": few}))
    assert heading == "Roughly calibrated." and "Only 70 objects in 30 validation pictures" in told
    options, lines = box_page.usage(result)
    assert "--out" in options
    compile(lines, "usage", "exec")


def test_a_model_that_finds_next_to_nothing_is_said_to(result):
    """However narrow the interval of its AP, and whether or not any of its scores is worth a comparison."""
    found = result.evaluation
    few = tuple(replace(one, detections=1) for one in found.scores.bins)
    classes = tuple(replace(one, objects=0) for one in 2 * found.scores.per_class)
    scores = replace(
        found.scores, ap=Estimate(2e-5, 1e-6, 2e-4), ap50=Estimate(4e-5, 0, 1e-4), bins=few, per_class=classes
    )
    scores = replace(scores, threshold=0.0042)
    poor = SimpleNamespace(**vars(result) | {"evaluation": replace(found, scores=scores)})
    told = [together(*parts).markup for parts in box_account.cautions(poor)]
    assert "finds next to nothing" in told[0] and not any(
        "are rough" in one or "\N{PLUS-MINUS SIGN}0.0" in one for one in told
    )
    assert any(one.endswith("and 4 more.") for one in told), "classes without objects"
    assert "scores of 0.0042 or more" in box_page.scores(scores).markup and "0.0042" in poor.evaluation.summary()
    assert "to unknown (fewer than 20 scores of 0.05 or more)" in box_page.calibration(poor).markup
    assert "fewer than 20 scores of 0.05 or more" in poor.evaluation.summary()


def test_few_pictures_do_not_tell_whether_it_finds_anything(result):
    scores = replace(result.evaluation.scores, ap=Estimate(0.2, 0.003, 0.45))
    unsure = SimpleNamespace(**vars(result) | {"evaluation": replace(result.evaluation, scores=scores)})
    first, second, *_ = [together(*parts).markup for parts in box_account.cautions(unsure)]
    assert "reaches down to about 0" in first and "within about \N{PLUS-MINUS SIGN}22.4 points" in second


def test_where_nothing_is_found_the_worst_are_not_the_best_again(result, monkeypatch):
    every = tuple(replace(one, right=0) for one in result.evaluation.scores.per_picture)
    scores = replace(result.evaluation.scores, per_picture=every)
    poor = SimpleNamespace(**vars(result) | {"evaluation": replace(result.evaluation, scores=scores)})
    shown = []
    monkeypatch.setattr(box_page, "_example", lambda _result, _predictor, one: shown.append(one.id))
    box_page.examples(poor)
    assert len(shown) == len(set(shown)) == 9


def test_without_validation_pictures_and_without_mistakes(result):
    bare = SimpleNamespace(**vars(result) | {"evaluation": evaluate_objects(result.out, None, result.splits.test)})
    assert "no validation part" in box_page.calibration(bare).markup
    assert "Not calibrated." in next(iter(box_account.cautions_of_confidence(bare)))
    assert box_page.mistakes((), result.splits.test, result.evaluation.scores, "").markup.count("None.") == 1


def test_a_crop_lies_inside_its_picture_and_around_its_boxes():
    boxes = np.array([[0.0, 5.0, 3.0, 9.0], [90.0, 60.0, 100.0, 80.0]])
    assert box_page._around(boxes, (80, 100, 3)) == (0, 0, 100, 80)
    left, top, right, bottom = box_page._around(boxes[:1], (80, 100, 3))
    assert (left, top) == (0, 0) and right >= 3 + 10 and bottom >= 9 + 9
