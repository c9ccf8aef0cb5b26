"""Plans for masks: the same planner as for classes, on drafts of its own."""

from dataclasses import replace

import pytest
from test_plan import CPU, GPU, SCRATCH, never, report

from vitreous.data.sources import DataSettings
from vitreous.errors import UserError
from vitreous.fitting.budget import Pace
from vitreous.fitting.drafts import Problem
from vitreous.fitting.pixel_drafts import PixelDrafts
from vitreous.fitting.plan import LEAST_STEPS, plan
from vitreous.fitting.wishes import Wishes
from vitreous.models import ViTSettings

STREETS = replace(report(num=360, side=240), widths=(320, 320, 320), task="segment")


def planned(measure, hardware=CPU, data=STREETS, must_train=True, **wishes):
    problem = Problem(data, DataSettings(where="made"), hardware, Wishes(**{"changes": {}, **wishes}))
    return plan(PixelDrafts(problem), SCRATCH, measure=measure, clock=lambda: 10.0, must_train=must_train)


def by_area(step_s):
    """A pace that goes with the number of pixels, in place of a stopwatch."""

    def measure(recipe, seconds):
        height, width = recipe.model.picture_px
        work = height * width / 96**2
        return Pace(step_s=step_s * work, start_s=1.0, picture_s=step_s * work / 25)

    return measure


def test_more_time_means_larger_pictures_in_their_proportions():
    sizes = [planned(by_area(0.1), seconds=seconds).recipe.model.picture_px for seconds in (150, 300, 1200)]
    assert sizes == sorted(sizes) and len(set(sizes)) == 3
    for height, width in sizes:
        assert height % 8 == width % 8 == 0 and width / height == pytest.approx(4 / 3, rel=0.1)
    on_gpu = planned(by_area(0.1), GPU, seconds=300).recipe.training
    assert on_gpu.precision == "auto" and on_gpu.cuda_graph


def test_without_a_first_model_there_is_always_some_training():
    late = planned(by_area(1.0), seconds=15.0)
    assert late.trains and late.recipe.training.steps == LEAST_STEPS
    assert not planned(never, seconds=15.0, must_train=False).trains


def test_validations_and_scores_are_kept_time_for():
    kept = planned(by_area(0.1), seconds=600.0).budget
    after_s = 7.0 + 4 * 1000 * kept.pace.picture_s + 1000 * (kept.pace.picture_s + 0.06)
    assert kept.scored is None and kept.after_s == pytest.approx(after_s)


@pytest.mark.parametrize(("picture_s", "expected"), [(0.01, 857), (0.5, 200)])
def test_a_part_of_the_test_pictures_is_scored_where_the_time_is_short(picture_s, expected):
    """30 % of 200 s, and 200 pictures at least."""
    found = planned(lambda *_: Pace(step_s=0.1, start_s=1.0, picture_s=picture_s), seconds=200.0)
    assert found.scored == expected and found.choices[-1].value == f"{expected} of 1,000 pictures"


def test_the_recipe_says_what_is_left_out_and_what_was_asked_for():
    leaked = replace(STREETS, left_out=(4, 7, 8))
    found = planned(never, data=leaked, changes={"model": "vit_s16", "model.depth": "3", "training.epochs": "3"})
    model = found.recipe.model
    assert found.recipe.data.leave_out == "4,7-8"
    assert isinstance(model, ViTSettings) and (model.patch, model.width, model.depth) == (16, 384, 3)
    asked = {one.name for one in found.choices if one.reason == "as you asked"}
    assert asked == {"model", "length"} and found.choices[0].value == "segmentation"
    with pytest.raises(UserError, match="there is no such setting"):
        PixelDrafts.check(Wishes(changes={"model.widht": "96"}), CPU)
