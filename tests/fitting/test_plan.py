import argparse
import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from scenes import write_scenes
from vitreous import jobs, settings
from vitreous.data.check import DataReport, Part, check
from vitreous.data.sources import DataSettings
from vitreous.errors import UserError
from vitreous.fitting import fit
from vitreous.fitting.budget import FIGURES_S, Budget, Pace, measured
from vitreous.fitting.drafts import Hardware, Wishes
from vitreous.fitting.plan import Plan, corrected, plan, rechecks, run_step_s
from vitreous.models import ResNetSettings, ViTSettings
from vitreous.recipes.recipe import Recipe
from vitreous.trained import Trained
from vitreous.training.devices import WARM_UP_STEPS
from vitreous.training.optim import AdamWSettings, MuonSettings
from vitreous.weights.card import Card

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


def never(recipe, seconds):
    raise AssertionError("nothing is measured without a budget")


def planned(data=None, hardware=CPU, measure=never, clock=lambda: 10.0, **wishes):
    wishes = Wishes(**{"changes": {}, **wishes})
    return plan(data or report(), DataSettings(where="made"), hardware, wishes, measure=measure, clock=clock)


def by_size(step_s):
    """A pace that goes with the number of weights and tokens, in place of a stopwatch."""

    def measure(recipe, seconds):
        model = recipe.model
        work = model.width**2 * model.depth * (model.picture_px[0] // model.patch) ** 2 / (64**2 * 5 * 16)
        return Pace(step_s=step_s * work, start_s=1.0, answer_s=step_s * work / 500)

    return measure


# ---- Without a budget


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


def test_every_choice_says_why():
    found = planned()
    assert [one.what for one in found.choices] == [
        *("hardware", "start", "model", "resolution", "length", "batch", "optimizer", "augmentation", "balance")
    ]
    assert all(one.value and one.why for one in found.choices)
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
    asked = {one.what for one in found.choices if one.why == "as you asked"}
    assert asked == {"model", "length", "optimizer"}
    assert isinstance(planned(changes={"model": "bit_r50x1"}).recipe.model, ResNetSettings)
    named = planned(report(side=200), changes={"model": "vit_s16", "model.depth": "3"}).recipe.model
    assert (named.patch, named.width, named.depth, named.picture_px) == (16, 384, 3, (64, 64))
    with pytest.raises(UserError, match="there is no such setting"):
        planned(changes={"model.widht": "96"})


def test_more_pictures_need_fewer_passes_and_many_passes_strong_augmentation():
    few, many = (planned(report(num=num)).recipe for num in (1000, 100_000))
    assert few.training.epochs > many.training.epochs
    assert few.augmentation.mixup > 0 == many.augmentation.mixup
    assert few.average.factor < 1


@pytest.mark.parametrize("given", [{"training.epochs": "1"}, {"training.steps": "15"}])
def test_a_given_length_decides_what_depends_on_it(given):
    usual, short = planned(report(num=1000)), planned(report(num=1000), changes=given)
    assert usual.recipe.augmentation.mixup > 0 == short.recipe.augmentation.mixup
    assert short.recipe.training.evaluate_every_epochs == pytest.approx(0.2)
    assert short.recipe.average.factor < usual.recipe.average.factor
    assert "under 60 passes" in next(one.why for one in short.choices if one.what == "augmentation")
    long = planned(report(num=100_000), changes={"training.epochs": "80", "training.evaluate_every_epochs": "1"}).recipe
    assert long.augmentation.mixup > 0 and long.training.evaluate_every_epochs == 1


# ---- Balance


def test_imbalance_is_named_and_handled_above_a_ratio():
    even, uneven = report(counts=(300, 100)), report(counts=(301, 100))
    assert not planned(even).recipe.data.balance
    assert planned(uneven).recipe.data.balance
    assert "3.0 times the pictures of the smallest, more than 3" in planned(uneven).choices[-1].why
    assert not planned(uneven, balance="none").recipe.data.balance
    assert planned(even, balance="sampling").recipe.data.balance


def test_weights_count_every_class_the_same():
    recipe = planned(report(counts=(600, 300, 100)), balance="weights").recipe
    weights = recipe.objective.class_weights
    assert not recipe.data.balance
    assert [count * weight for count, weight in zip((600, 300, 100), weights, strict=True)] == pytest.approx(
        [1000 / 3] * 3, rel=1e-5
    )


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"data.balance": "true"}, "sampling"),
        ({"data.balance": "false"}, "none"),
        ({"objective.class_weights": "1,2"}, "weights"),
        ({"objective.class_weights": "1,2", "data.balance": "true"}, "sampling and weights"),
    ],
)
def test_what_is_said_of_balance_is_what_is_done(changes, value):
    data = DataSettings(where="made", balance=changes.get("data.balance") == "true")
    uneven, wishes = report(counts=(400, 100)), Wishes(changes=changes)
    found = plan(uneven, data, CPU, wishes, measure=never, clock=lambda: 0.0)
    assert (found.choices[-1].value, found.choices[-1].why) == (value, "as you asked")
    assert (found.recipe.data.balance, bool(found.recipe.objective.class_weights)) == (
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
    data = DataSettings(where="made", balance="data.balance" in changes)
    wishes = Wishes(balance=balance, changes=changes)
    with pytest.raises(UserError, match=rf"--balance {balance} and --{next(iter(changes))} .* contradict"):
        plan(report(counts=(400, 100)), data, CPU, wishes, measure=never, clock=lambda: 0.0)


def test_pictures_in_two_parts_do_not_train():
    assert planned(report(left_out=(4, 7, 8, 9))).recipe.data.leave_out == "4,7-9"
    given = DataSettings(where="made", leave_out="2-4", balance=True)
    wishes = Wishes(changes={"data.leave_out": "2-4", "data.balance": "true"})
    both = plan(report(left_out=(4, 9)), given, CPU, wishes, measure=never, clock=lambda: 0.0).recipe.data
    assert both.leave_out == "2-4,9" and both.balance


# ---- With a budget


@pytest.mark.parametrize("seconds", [60.0, 120.0, 600.0, 3600.0])
def test_the_length_fills_the_time(seconds):
    measure = by_size(0.05)
    found = planned(measure=measure, seconds=seconds)
    budget, recipe = found.budget, found.recipe
    steps = recipe.training.num_steps(10_000 // recipe.training.batch_size)
    validations = 11 * 1000 * budget.pace.answer_s
    spent = budget.before_s + budget.after_s + budget.pace.start_s + validations + steps * budget.pace.step_s
    assert budget.pace == measure(recipe, 1.0)
    assert spent == pytest.approx(seconds, abs=2 * budget.pace.step_s)
    recipe.schedule.phases(steps)
    assert recipe.schedule.warmup_steps == pytest.approx(0.05 * steps, abs=2)


def test_more_time_or_a_faster_machine_means_a_larger_model():
    widths = [planned(measure=by_size(0.05), seconds=seconds).recipe.model.width for seconds in (60, 600, 6000, 60_000)]
    assert widths == sorted(widths) and widths[0] == 64 and widths[-1] == 192
    assert planned(measure=by_size(0.001), seconds=600).recipe.model.width > widths[1]
    kept = planned(measure=by_size(0.05), seconds=60_000, changes={"model.depth": "2"}).recipe.model
    assert (kept.width, kept.depth) == (64, 2), "who gives a part of the model decides on its size"


@pytest.mark.parametrize(("minutes", "step_s"), [(0.5, 0.5), (0.1, 0.5), (0.1, 0.0001), (0.01, 0.05)])
def test_too_little_time_says_how_much_is_needed(minutes, step_s):
    with pytest.raises(UserError, match=rf"^{minutes:g} minutes are too few: .* Give --minutes") as error:
        planned(measure=by_size(step_s), seconds=60 * minutes)
    needed = float(str(error.value).partition("--minutes ")[2].split()[0])
    planned(measure=by_size(step_s), seconds=60 * needed)


def test_a_given_length_is_kept():
    found = planned(measure=by_size(0.05), seconds=60.0, changes={"training.epochs": "3"})
    assert found.recipe.training.epochs == 3
    assert rechecks(found, Wishes(changes={"training.epochs": "3"}), 100) == []


def test_the_length_is_corrected_by_the_pace_of_the_run():
    found = planned(measure=by_size(0.05), seconds=600.0)
    steps = found.recipe.training.num_steps(10_000 // 128)
    first, *later = rechecks(found, Wishes(changes={}), steps)
    assert 0 < first < min(later) and max(later) < steps / 2
    slower = corrected(found, report(), first, 2 * found.budget.pace.step_s, 10 + 2 * first * found.budget.pace.step_s)
    new = slower.recipe.training.num_steps(10_000 // 128)
    assert new == pytest.approx(steps / 2, rel=0.1)
    assert "corrected after step" in next(one.why for one in slower.choices if one.what == "length")
    # However slow it is: what has been done must lie before the rate falls, or it would have been done differently.
    late = corrected(found, report(), first, 100.0, 590.0).recipe
    total = late.training.num_steps(10_000 // 128)
    for step in (0, first // 2, first - 1):
        rates = [one.schedule.rate(torch.tensor(step), num) for one, num in ((found.recipe, steps), (late, total))]
        assert rates[0] == rates[1]


def test_the_length_is_corrected_only_where_steps_tell_a_pace():
    pace = Pace(step_s=0.05, start_s=0.5, answer_s=0.0)
    long = planned(measure=lambda recipe, seconds: pace, seconds=600.0)
    assert rechecks(long, Wishes(changes={}), 1000) == [100, 250, 400]
    assert rechecks(long, Wishes(changes={}), 1000, done=100) == [250, 400]
    assert rechecks(long, Wishes(changes={}), 240, done=90) == [], "the rate would fall first"
    assert rechecks(long, Wishes(changes={}), 100) == [], "under 3 s the start would be most of it"
    slow = replace(long, budget=replace(long.budget, pace=replace(pace, start_s=3.0)))
    assert rechecks(slow, Wishes(changes={}), 1000) == [400]


def test_neither_the_start_nor_the_figures_count_as_pace():
    found = planned(measure=by_size(0.05), seconds=600.0)
    assert run_step_s(found, 100, 1.0 + 100 * 0.05) == pytest.approx(0.05)
    assert run_step_s(found, 1, 1.0) == pytest.approx(0.5), "a start may be quicker than it was"
    # Ten times slower: answers take as much longer, figures do not.
    slower = corrected(found, report(), 10, 0.5, 100.0).recipe.training.num_steps(10_000 // 128)
    after_s = FIGURES_S + (found.budget.after_s - FIGURES_S) * 0.5 / found.budget.pace.step_s
    assert slower == pytest.approx(10 + (600 - 100 - 1 - after_s) / 0.5, abs=2)


@pytest.mark.parametrize("slowness", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("start_s", [0.0, 2.0])
@pytest.mark.parametrize("seconds", [30.0, 120.0])
def test_a_run_keeps_its_time_whatever_its_pace(seconds, start_s, slowness, tmp_path, monkeypatch, capsys):
    """With a clock of our own: what is trained takes a start and its steps."""
    pace = Pace(step_s=0.02, start_s=start_s, answer_s=0.0)
    data, time = report(counts=(27, 26)), [5.0]
    chosen = planned(data, measure=lambda recipe, _: pace, clock=lambda: time[0], seconds=seconds)

    def train(recipe, out, until=None, **rest):
        end = recipe.training.num_steps(53 // recipe.training.batch_size)
        time[0] += start_s + ((until or end) - done[-1]) * pace.step_s * slowness
        done.append(until or end)
        return {}

    done = [0]
    monkeypatch.setattr(jobs, "train", train)
    begun = fit.Begun(request=fit.Request(data="made", minutes=seconds / 60), plan=chosen)
    splits = argparse.Namespace(train=range(53))
    final, _ = fit._trained(begun, tmp_path, data, splits, lambda: time[0])
    spent = time[0] + chosen.budget.after_s
    steps = [one.recipe.training.num_steps(53 // one.recipe.training.batch_size) for one in (chosen, final)]
    assert done == sorted(set(done)) and done[-1] == steps[1]
    assert len(done) > 2 or seconds == 30
    if len(done) > 2:
        assert spent == pytest.approx(seconds, rel=0.15)
        assert f"length: {final.choices[4].value}; corrected after step" in capsys.readouterr().out
    else:
        assert steps[0] == steps[1]


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


def test_a_corrected_run_is_the_run_its_recipe_describes(folder, tmp_path):
    splits = DataSettings(where=str(folder)).build()
    data = check(splits, str(folder))
    wishes = Wishes(changes=TINY, seconds=60.0)
    pace = Pace(step_s=0.5, start_s=0.0, answer_s=0.0)
    found = plan(
        data, DataSettings(where=str(folder)), CPU, wishes, measure=lambda recipe, seconds: pace, clock=lambda: 0.0
    )
    per_epoch = data.num_train // 8
    until = rechecks(found, wishes, found.recipe.training.num_steps(per_epoch))[0]
    assert jobs.train(found.recipe, tmp_path / "a", until=until) == {}
    shorter = corrected(found, data, until, 1.0, until * 1.0).recipe
    assert shorter.training.epochs < found.recipe.training.epochs
    settings.save(shorter, tmp_path / "a" / "recipe.json")
    jobs.train(shorter, tmp_path / "a")
    jobs.train(settings.load(Recipe, tmp_path / "a" / "recipe.json"), tmp_path / "b")
    a, b = (Trained.load(tmp_path / name).weights for name in "ab")
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_measuring_leaves_no_trace(folder):
    splits = DataSettings(where=str(folder)).build()
    recipe = planned(check(splits), changes=TINY).recipe
    pace = measured(recipe, splits, 0.05)
    assert 0 < pace.step_s < 1 and pace.start_s >= 0 and 0 < pace.answer_s < 1


def test_the_steps_that_are_timed_wait_for_their_turn(folder, monkeypatch):
    splits = DataSettings(where=str(folder)).build()
    recipe = planned(check(splits), changes=TINY).recipe
    events = []

    def build_loop(*given):
        loop = build(*given)
        step = loop.run_step
        loop.run_step = lambda *inputs: [events.append("step"), step(*inputs)]
        return loop

    @contextmanager
    def turn():
        events.append("in")
        yield
        events.append("out")

    build = jobs.build_loop
    monkeypatch.setattr(jobs, "build_loop", build_loop)
    measured(recipe, splits, 0.01, alone=turn())
    begins = events.index("in")
    assert events[:begins] == ["step"] * (WARM_UP_STEPS + 1)
    assert events[-1] == "out" and set(events[begins + 1 : -1]) == {"step"}


def test_given_weights_are_fine_tuned_at_their_size(tmp_path):
    model = ViTSettings(picture_px=(24, 24), patch=8, width=16, depth=2, heads=2)
    card = Card(model=model, preprocessing=planned().recipe.normalise)
    Trained(card, model.build().state_dict(prefix="encoder."), "made").save(tmp_path / "model")
    found = planned(start=str(tmp_path))
    assert found.recipe.model == model and found.recipe.start == str(tmp_path)
    assert isinstance(found.recipe.optimizer, AdamWSettings) and found.recipe.optimizer.layer_decay < 1
    assert found.recipe.normalise == card.preprocessing
    assert "given" in next(one.why for one in found.choices if one.what == "resolution")
    timed = planned(start=str(tmp_path), measure=by_size(0.05), seconds=100.0)
    assert isinstance(timed.budget, Budget)
