import json
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from scenes import write_scenes
from vitreous import settings
from vitreous.data.check import DataReport, Part, check
from vitreous.data.order import OrderSettings
from vitreous.data.sources import DataSettings
from vitreous.errors import UserError
from vitreous.fitting.budget import Budget, Pace, measured, pace_of
from vitreous.fitting.budget import budget as fitting_budget
from vitreous.fitting.choices import Plan
from vitreous.fitting.class_drafts import ClassDrafts
from vitreous.fitting.class_fit import new_head
from vitreous.fitting.drafts import Problem
from vitreous.fitting.pixel_drafts import PixelDrafts
from vitreous.fitting.plan import plan
from vitreous.fitting.transfer import Scratch, Start
from vitreous.fitting.wishes import Hardware, Wishes
from vitreous.jobs.build import build_loop
from vitreous.models import ResNetSettings, ViTSettings
from vitreous.models.shapes import shapes_only
from vitreous.training.graph import WARM_UP_STEPS
from vitreous.training.optim import AdamWSettings, MuonSettings
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

CPU, GPU = Hardware(kind="cpu", name="2 CPU threads"), Hardware(kind="cuda", name="a GPU")


def report(num=10_000, side=28, counts=None, **changes):
    counts = counts or (num // 10,) * 10
    train = Part(name="train", pictures=sum(counts), counts=tuple(counts), unreadable=())
    others = (replace(train, name=name, pictures=1000) for name in ("val", "test"))
    made = DataReport(
        where="made",
        classes=tuple("abcdefghij"[: len(counts)]),
        parts=(train, *others),
        heights=(side, side, side),
        widths=(side, side, side),
        aspects=(1.0, 1.0, 1.0),
        grey_share=0.0,
        mean=(0.5, 0.4, 0.3),
        std=(0.2, 0.2, 0.2),
        num_equal=0,
        num_near=0,
        twins=(),
        two_labels=(),
        num_two_labels=0,
        leaks=(),
        left_out=(),
        tiny=(),
        flat=(),
    )
    return replace(made, **changes)


SCRATCH = Scratch("made so")


def never(recipe, seconds):
    raise AssertionError("nothing is measured where a length was given, or the pace is known")


def planned(data=None, hardware=CPU, measure=None, clock=lambda: 10.0, found=SCRATCH, source=None, **wishes):
    wishes = Wishes(**{"changes": {}, **wishes})
    source = source or DataSettings(where="made")
    drafts = ClassDrafts(Problem(data or report(), source, hardware, wishes))
    return plan(drafts, found, measure=measure or by_size(0.05), clock=clock)


def by_size(step_s):
    """A pace that goes with the number of weights and tokens, in place of a stopwatch."""

    def measure(recipe, seconds):
        model = recipe.model
        if not isinstance(model, ViTSettings):
            return Pace(step_s=step_s, start_s=1.0, picture_s=step_s / 500)
        work = model.width**2 * model.depth * (model.picture_px[0] // model.patch) ** 2 / (64**2 * 5 * 16)
        return Pace(step_s=step_s * work, start_s=1.0, picture_s=step_s * work / 500)

    return measure


# ---- Whatever the time


@pytest.mark.parametrize("hardware", [CPU, GPU])
@pytest.mark.parametrize("side", [8, 13, 28, 31, 32, 50, 100, 500])
@pytest.mark.parametrize("num", [20, 60_000])
def test_every_plan_can_be_built(hardware, side, num):
    recipe = planned(report(num=num, side=side), hardware).recipe
    with torch.device("meta"):
        encoder = recipe.model.build()
    assert 9 <= encoder.grid.cells <= 256
    assert recipe.training.batch_size <= num // 8 or recipe.training.batch_size <= 2
    assert recipe.model.picture_px[0] <= max(1.25 * side, 64)
    recipe.schedule.phases(recipe.training.num_steps(num // recipe.training.batch_size))


@pytest.mark.parametrize("hardware", [CPU, GPU])
@pytest.mark.parametrize("side", [13, 28, 37, 500])
@pytest.mark.parametrize("name", ["swin_t", "pvt_ti", "pvt_v2_b0", "convnext_atto"])
def test_a_model_of_any_family_fits_its_pictures(hardware, side, name):
    recipe = planned(report(side=side), hardware, seconds=600, changes={"model": name}).recipe
    with torch.device("meta"):
        encoder = recipe.model.build()
    px, stride = recipe.model.picture_px[0], encoder.outputs[-1].stride[0]
    assert px % stride == 0 and px // stride >= 2
    assert px <= max(1.25 * side, 64)


def test_where_places_count_pictures_have_whole_places_of_the_coarsest_map():
    """A ConvNeXt would drop the rest."""
    data = report(heights=(90, 101, 120), widths=(90, 137, 150))
    wishes = Wishes(changes={"model": "convnext_atto"})
    recipes = PixelDrafts(Problem(data, DataSettings(where="made"), CPU, wishes)).recipes(None)
    assert recipes and all(side % 32 == 0 for recipe in recipes for side in recipe.model.picture_px)


def test_a_pyramid_of_small_pictures_is_as_fine_as_the_time_allows():
    def patch(step_s, hardware=CPU):
        def measure(recipe, seconds):
            slower = 4 / recipe.model.patch**2
            return Pace(step_s=step_s * slower, start_s=1.0, picture_s=step_s * slower / 500)

        found = planned(hardware=hardware, measure=measure, seconds=600, changes={"model": "convnext_atto"})
        return found.recipe.model.patch

    assert [patch(0.5), patch(0.01), patch(0.5, GPU)] == [2, 1, 1]


def test_where_nothing_is_trained_it_says_what_takes_the_time():
    def why(pace, gone_s=10.0):
        found = planned(measure=lambda recipe, seconds: pace, seconds=60, clock=lambda: gone_s)
        assert not found.trains
        (length,) = (one for one in found.choices if one.name == "length")
        return length.reason

    assert "8 steps would take 81 s" in why(Pace(step_s=10.0, start_s=1.0, picture_s=0.001))
    assert "at 50 ms per picture, its evaluation would take" in why(Pace(step_s=0.1, start_s=1.0, picture_s=0.05))
    assert "60 s are used up" in why(Pace(step_s=0.1, start_s=1.0, picture_s=0.001), gone_s=58.0)


def test_every_choice_says_why():
    found = planned()
    assert [one.name for one in found.choices] == [
        *("hardware", "start", "model", "resolution", "length", "batch", "optimizer", "augmentation", "balance")
    ]
    assert all(one.value and one.reason for one in found.choices)
    assert found.recipe.normalise.mean == (0.5, 0.4, 0.3)
    assert isinstance(found.recipe.optimizer, MuonSettings)
    assert isinstance(found.recipe.model, ViTSettings) and found.recipe.model.pool == "mean"
    assert settings.from_json(Plan, json.loads(json.dumps(settings.to_json(found)))) == found


def test_every_choice_can_be_overridden():
    changes = {"model.width": "96", "training.epochs": "5", "optimizer.kind": "SGD"}
    found = planned(changes=changes)
    recipe = found.recipe
    assert (recipe.model.width, recipe.training.epochs) == (96, 5)
    assert settings.kind(type(recipe.optimizer)) == "SGD"
    asked = {one.name for one in found.choices if one.reason == "as you asked"}
    assert asked == {"model", "length", "optimizer"}
    assert isinstance(planned(changes={"model": "bit_r50x1"}).recipe.model, ResNetSettings)
    named = planned(report(side=200), changes={"model": "vit_s16", "model.depth": "3"}).recipe.model
    assert (named.patch, named.width, named.depth, named.picture_px) == (16, 384, 3, (64, 64))
    with pytest.raises(UserError, match="there is no such setting"):
        planned(changes={"model.widht": "96"})


@pytest.mark.parametrize(
    ("name", "side", "px", "patch"),
    [("swin_t", 28, 32, 1), ("convnext_atto", 64, 64, 2), ("pvt_v2_b0", 300, 64, 2), ("pvt_ti", 28, 32, 1)],
)
def test_a_named_pyramid_gets_patches_that_suit_the_pictures(name, side, px, patch):
    model = planned(report(side=side), changes={"model": name}).recipe.model
    assert (model.picture_px, model.patch) == ((px, px), patch)
    with shapes_only():
        assert model.build().outputs[-1].stride == (8 * patch, 8 * patch)


def test_more_pictures_need_fewer_passes_and_many_passes_strong_augmentation():
    few, many = (planned(report(num=num)).recipe for num in (1000, 100_000))
    assert few.training.epochs > many.training.epochs
    assert few.augmentation.mix.mixup > 0 == many.augmentation.mix.mixup
    assert few.average.factor < 1


@pytest.mark.parametrize("given", [{"training.epochs": "1"}, {"training.steps": "15"}])
def test_a_given_length_decides_what_depends_on_it(given):
    usual, short = planned(report(num=1000)), planned(report(num=1000), changes=given)
    assert usual.recipe.augmentation.mix.mixup > 0 == short.recipe.augmentation.mix.mixup
    assert short.recipe.training.evaluate_every_epochs == pytest.approx(0.2)
    assert short.recipe.average.factor < usual.recipe.average.factor
    assert "under 60 passes" in next(one.reason for one in short.choices if one.name == "augmentation")
    long = planned(report(num=100_000), changes={"training.epochs": "80", "training.evaluate_every_epochs": "1"}).recipe
    assert long.augmentation.mix.mixup > 0 and long.training.evaluate_every_epochs == 1


def test_a_named_model_and_trained_weights_contradict():
    with pytest.raises(UserError, match="--model swin_t and --from vitreous-s contradict"):
        ClassDrafts.check(Wishes(start="vitreous-s", changes={"model": "swin_t"}), CPU)
    ClassDrafts.check(Wishes(start="none", changes={"model": "swin_t"}), CPU)


# ---- Balance


def test_imbalance_is_named_and_handled_above_a_ratio():
    even, uneven = report(counts=(300, 100)), report(counts=(301, 100))
    assert not planned(even).recipe.data.order.balance
    assert planned(uneven).recipe.data.order.balance
    assert "over 3 to 1, so every class is shown equally often" in planned(uneven).choices[-1].reason
    assert not planned(uneven, balance="none").recipe.data.order.balance
    assert planned(even, balance="sampling").recipe.data.order.balance


def test_weights_count_every_class_the_same():
    recipe = planned(report(counts=(600, 300, 100)), balance="weights").recipe
    weights = recipe.objective.class_weights
    assert not recipe.data.order.balance
    assert [count * weight for count, weight in zip((600, 300, 100), weights, strict=True)] == pytest.approx(
        [1000 / 3] * 3, rel=1e-5
    )


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"data.balance": "true"}, "sampling"),
        ({"data.order.balance": "false"}, "none"),
        ({"objective.class_weights": "1,2"}, "weights"),
        ({"objective.class_weights": "1,2", "data.balance": "true"}, "sampling and weights"),
    ],
)
def test_what_is_said_of_balance_is_what_is_done(changes, value):
    data = DataSettings(where="made", order=OrderSettings(balance=changes.get("data.balance") == "true"))
    uneven, wishes = report(counts=(400, 100)), Wishes(changes=changes)
    drafts = ClassDrafts(Problem(uneven, data, CPU, wishes))
    found = plan(drafts, SCRATCH, measure=by_size(0.05), clock=lambda: 0.0)
    assert (found.choices[-1].value, found.choices[-1].reason) == (value, "as you asked")
    assert (found.recipe.data.order.balance, bool(found.recipe.objective.class_weights)) == (
        "sampling" in value,
        "weights" in value,
    )


@pytest.mark.parametrize(
    ("balance", "changes"),
    [
        ("none", {"data.balance": "true"}),
        ("weights", {"data.balance": "true"}),
        ("sampling", {"objective.class_weights": "1,2"}),
    ],
)
def test_wishes_of_balance_that_contradict_are_refused(balance, changes):
    data = DataSettings(where="made", order=OrderSettings(balance="data.balance" in changes))
    wishes = Wishes(balance=balance, changes=changes)
    with pytest.raises(UserError, match=rf"--balance {balance} and --{next(iter(changes))} .* contradict"):
        ClassDrafts(Problem(report(counts=(400, 100)), data, CPU, wishes)).recipes(None)


def test_pictures_in_two_parts_do_not_train():
    assert planned(report(left_out=(4, 7, 8, 9))).recipe.data.leave_out == "4,7-9"
    given = DataSettings(where="made", leave_out="2-4", order=OrderSettings(balance=True))
    wishes = Wishes(changes={"data.leave_out": "2-4", "data.order.balance": "true"})
    both = planned(report(left_out=(4, 9)), source=given, changes=wishes.changes).recipe.data
    assert both.leave_out == "2-4,9" and both.order.balance


# ---- With a budget


@pytest.mark.parametrize("seconds", [60.0, 120.0, 600.0, 3600.0])
def test_the_length_fills_the_time(seconds):
    measure = by_size(0.05)
    found = planned(measure=measure, seconds=seconds)
    budget, recipe = found.budget, found.recipe
    validations = 8 * 1000 * budget.pace.picture_s
    spent = budget.before_s + budget.after_s + budget.pace.start_s + validations
    spent += recipe.training.steps * budget.pace.step_s
    assert budget.pace == measure(recipe, 1.0)
    assert spent == pytest.approx(seconds, abs=2 * budget.pace.step_s)
    assert recipe.schedule.warmup_steps == pytest.approx(0.05 * recipe.training.steps, abs=2)
    ((begin, factor, end),) = recipe.schedule.falls
    assert (factor, end) == (1.0, recipe.training.steps) and begin == pytest.approx(end / 2, abs=1)


def test_more_time_or_a_faster_machine_means_a_larger_model():
    widths = [planned(measure=by_size(0.05), seconds=seconds).recipe.model.width for seconds in (60, 600, 6000, 60_000)]
    assert widths == sorted(widths) and widths[0] == 64 and widths[-1] == 192
    assert planned(measure=by_size(0.001), seconds=600).recipe.model.width > widths[1]
    kept = planned(measure=by_size(0.05), seconds=60_000, changes={"model.depth": "2"}).recipe.model
    assert (kept.width, kept.depth) == (64, 2), "who gives a part of the model decides on its size"


@pytest.mark.parametrize(("seconds", "step_s"), [(30.0, 2.0), (6.0, 0.5), (6.0, 0.0001), (0.6, 0.05)])
def test_too_little_time_leaves_the_first_model(seconds, step_s):
    found = planned(measure=by_size(step_s), seconds=seconds)
    assert not found.trains
    told = next(one for one in found.choices if one.name == "length")
    assert told.value == "no training" and "--minutes gives more" in told.reason


def test_validations_along_the_run_are_left_out_where_they_would_take_the_time_of_training():
    slow = Pace(step_s=1.0, start_s=1.0, picture_s=0.01)  # a validation of 1,000 pictures takes 20 s
    short, long = (planned(measure=lambda *_: slow, seconds=seconds).recipe.training for seconds in (150.0, 3000.0))
    assert short.evaluate_every_epochs == 0 and short.steps > 40 and long.evaluate_every_epochs > 0


@pytest.mark.parametrize(("picture_s", "expected"), [(0.001, 4000), (0.006, 1500), (0.02, 0)])
def test_a_new_head_is_fitted_to_as_many_pictures_as_the_time_allows(picture_s, expected):
    """15 % of 60 s, and none where it would know far fewer pictures than the first."""
    pace = Pace(step_s=0.01, start_s=1.0, picture_s=picture_s)
    found = planned(measure=lambda *_: pace, seconds=60.0)
    assert new_head(found, report()) == expected
    assert found.budget.after_s >= 7.0 + picture_s * expected, "its time is kept"
    assert new_head(planned(measure=never, changes={"training.epochs": "3"}), report()) == 4000


@pytest.mark.parametrize(
    ("picture_s", "gone_s", "expected"),
    [
        (0.001, 40.0, None),  # all 10,000 within 30 % of 90 s
        (0.004, 40.0, 6750),  # those 30 %
        (0.004, 73.0, 1830),  # what is left, but for 7 s of figures and 670 pictures of few-shot probes
        (0.04, 40.0, 1000),  # the least
        (0.001, 89.0, 1000),
    ],
)
def test_as_many_test_pictures_are_scored_as_there_is_time_for(picture_s, gone_s, expected):
    parts = report().parts
    large = report(parts=(*parts[:2], replace(parts[2], pictures=10_000)))
    budget = fitting_budget(90.0, large, pace_of(planned().recipe, picture_s), gone_s)
    assert budget.scored == expected
    least = fitting_budget(90.0, report(), budget.pace, gone_s)
    assert least.scored is None, "there are no more than 1,000"
    assert budget.after_s - least.after_s == pytest.approx(picture_s * ((expected or 10_000) - 1000)), (
        "its time is kept"
    )


def test_a_part_of_the_test_pictures_is_a_choice_that_is_told():
    parts = report().parts
    large = report(parts=(*parts[:2], replace(parts[2], pictures=10_000)))
    pace = Pace(step_s=0.01, start_s=1.0, picture_s=0.001)
    found = planned(large, measure=lambda *_: pace, seconds=90.0)
    assert found.scored is None and found.choices[-1].name == "balance"
    slow = plan(
        ClassDrafts(Problem(large, DataSettings(where="made"), CPU, Wishes(changes={}, seconds=90.0))),
        SCRATCH,
        measure=lambda *_: pace,
        clock=lambda: 10.0,
        first_s=0.01,  # the first model may be what is kept
    )
    assert slow.scored == 2700 and slow.choices[-1].value == "2,700 of 10,000 pictures"
    assert settings.from_json(Plan, json.loads(json.dumps(settings.to_json(slow)))) == slow
    assert planned(large, measure=never, changes={"training.epochs": "3"}).scored is None, "without a time all are"


def test_what_is_late_measures_nothing():
    found = planned(measure=never, seconds=18.0, clock=lambda: 12.0)
    assert not found.trains and found.budget.train_s < 0


def test_a_given_length_is_kept():
    found = planned(measure=by_size(0.05), seconds=60.0, changes={"training.epochs": "3"})
    assert found.recipe.training.epochs == 3 and not found.recipe.schedule.falls and found.trains
    alone = planned(measure=never, changes={"training.epochs": "3"})
    assert alone.recipe.training.epochs == 3 and alone.budget is None


def test_without_a_time_or_a_length_the_usual_ones_are_limits():
    quick = planned(measure=by_size(1e-6))
    assert quick.budget.total_s == 600 and quick.recipe.training.steps == quick.most_steps
    slow = planned(measure=by_size(1.0))
    assert slow.recipe.training.steps < slow.most_steps
    assert planned(measure=by_size(1e-6), seconds=600.0).most_steps is None, "whoever gives the time gets all of it"


# ---- With real parts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_scenes(tmp_path_factory.mktemp("pictures"), {"dark": 40, "light": 40}, size=(16, 16))


TINY = {
    "model.width": "16",
    "model.depth": "1",
    "model.heads": "2",
    "training.batch_size": "8",
    "training.log_every_steps": "5",
}


def test_measuring_leaves_no_trace(folder):
    splits = DataSettings(where=str(folder)).build()
    recipe = planned(check(splits), changes=TINY).recipe
    pace = measured(recipe, splits, 0.05)
    assert 0 < pace.step_s < 1 and pace.start_s >= 0 and 0 < pace.picture_s < 1


def test_steps_that_would_take_minutes_are_foreseen_from_a_prediction(folder, monkeypatch):
    splits = DataSettings(where=str(folder)).build()
    recipe = planned(check(splits), changes=TINY).recipe
    ticks = count()
    monkeypatch.setattr("vitreous.fitting.budget.time", SimpleNamespace(monotonic=lambda: 10.0 * next(ticks)))
    pace = measured(recipe, splits, 0.5)
    assert pace == pace_of(recipe, 10.0 / min(8, recipe.training.batch_size))


def test_the_steps_that_are_timed_wait_for_their_turn(folder, monkeypatch):
    splits = DataSettings(where=str(folder)).build()
    recipe = planned(check(splits), changes=TINY).recipe
    events = []

    def build_watched(*given):
        loop = build_loop(*given)
        step = loop.run_step
        loop.run_step = lambda *inputs: [events.append("step"), step(*inputs)]
        return loop

    @contextmanager
    def turn():
        events.append("in")
        yield
        events.append("out")

    monkeypatch.setattr("vitreous.fitting.budget.build_loop", build_watched)
    measured(recipe, splits, 0.01, alone=turn())
    begins = events.index("in")
    assert events[:begins] == ["step"] * (WARM_UP_STEPS + 1)
    assert events[-1] == "out" and set(events[begins + 1 : -1]) == {"step"}


def test_trained_weights_are_fine_tuned_at_a_pace_that_is_known(tmp_path):
    model = ViTSettings(picture_px=(24, 24), patch=8, width=16, depth=2, heads=2)
    card = Card(model=model, preprocessing=planned().recipe.normalise)
    Trained(card, model.build().state_dict(prefix="encoder."), "made").save(tmp_path / "model")
    start = Start(
        where=str(tmp_path),
        why="as you asked",
        digest="0123456789abcdef",
        picture_px=(32, 32),
        picture_s=0.001,
        is_chosen=False,
    )
    found = planned(found=start, measure=never, seconds=100.0)
    assert found.recipe.model == replace(model, picture_px=(32, 32)) and found.recipe.start == str(tmp_path)
    assert isinstance(found.recipe.optimizer, AdamWSettings) and found.recipe.optimizer.layer_decay < 1
    assert found.recipe.training.precision == "auto"
    assert found.recipe.normalise == replace(card.preprocessing, crop="squash")
    assert found.choices[1].value == f"{tmp_path} (sha256 0123456789ab)"
    assert isinstance(found.budget, Budget) and found.budget.pace.step_s > 3 * 32 * 0.001
