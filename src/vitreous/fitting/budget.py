"""Budget: the pace of a recipe on this machine, and how much of a given time is left for training."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace

import torch

from vitreous.data.check import DataReport
from vitreous.data.splits import Splits
from vitreous.evaluation.probes import SHOTS
from vitreous.jobs.build import build_loop, build_objective
from vitreous.recipes.recipe import Recipe
from vitreous.training.devices import World, autocast
from vitreous.training.graph import WARM_UP_STEPS

FIGURES_S = 7.0  # few-shot fits, drawing and writing the report, which depend little on the data
PROBED = 4 * max(SHOTS)  # most training pictures per class that few-shot probes draw from
PROBED_SHARE = 0.03  # of the time, at most, for embedding them
LEAST_SCORED = 1000  # test pictures: enough to know an accuracy to 3 points
SCORED_SHARE = 0.3  # of the time, at most, for scoring more: all can be scored later, when there is a model
VAL_PASSES = 5  # after the last step: raw and averaged weights, the best of them, the mean of two, a new head
NEW_HEAD_PICTURES = 4000  # most pictures that a new head is fitted to, once features were trained
NEW_HEAD_SHARE = 0.15  # of the time, for embedding them
NEW_HEAD_LEAST = 0.25  # of the pictures: a head fitted to fewer would lose what better features gain
NUM_VALIDATIONS = 5  # during the run, for its curves
VALIDATIONS_SHARE = 0.15  # of the time for training, at most
STUDENT_SHARE = 0.5  # of the time for training, if there are unlabelled pictures
TRAINING_PASSES = 3.3  # time of a training step, in forward passes
TIMED_PICTURES = 8  # to estimate a step from
MOST_MEASURED, MOST_MEASURED_S = 8.0, 4.0  # times the seconds for measuring, or seconds: slower steps are estimated


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The speed of a recipe on this machine."""

    step_s: float
    start_s: float  # before steps reach that pace: building, compiling, allocating
    picture_s: float  # prediction, per picture


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How the time of the whole command is divided, in seconds."""

    total_s: float
    before_s: float  # used when training begins: reading, checking, measuring
    after_s: float  # reserved for calibration, evaluation, inspection, report
    train_s: float  # left for training and its validations; below 0 if the rest already takes too long
    pace: Pace
    student_s: float = 0.0  # part of after_s: for a student, which also learns from unlabelled pictures
    scored: int | None = None  # test pictures, drawn at random; None: all


def with_student_s(budget: Budget) -> Budget:
    """The budget with a share of the time for training reserved for a student."""
    student_s = STUDENT_SHARE * max(0.0, budget.train_s)
    return replace(budget, student_s=student_s, after_s=budget.after_s + student_s, train_s=budget.train_s - student_s)


Measure = Callable[[Recipe, float], Pace]  # a recipe, and the seconds to measure for
Clock = Callable[[], float]  # seconds since the command began


def budget(total_s: float, report: DataReport, pace: Pace, before_s: float, *, first_s: float = 0.0) -> Budget:
    """`first_s`: seconds per picture of the first model. It may be the one that is kept; and its pictures were read for
    the first time, as those of the test part will be."""
    scoring_s = max(pace.picture_s, first_s)
    scored = num_scored(total_s, report, scoring_s, before_s)
    kept_s = FIGURES_S + pace.picture_s * _others_after(total_s, report, pace)
    kept_s += scoring_s * (report.size("test") if scored is None else scored)
    return Budget(
        total_s=total_s,
        before_s=before_s,
        after_s=kept_s,
        train_s=total_s - before_s - kept_s,
        pace=pace,
        scored=scored,
    )


def after_s(budget: Budget, *, slower: float, contention: float) -> float:
    """The time after training if steps are this much slower than planned, and if other programs compete for the
    processor. A student gets the time that was reserved for it."""
    return FIGURES_S * contention + (budget.after_s - budget.student_s - FIGURES_S) * slower + budget.student_s


def least_after_s(total_s: float, report: DataReport, picture_s: float) -> float:
    """The least time after a first model that is kept as it is."""
    return FIGURES_S + picture_s * (_all_probed(total_s, report, picture_s) + min(LEAST_SCORED, report.size("test")))


def _others_after(total_s: float, report: DataReport, pace: Pace) -> int:
    """Predictions after training, apart from those that are scored."""
    probed, refitted = (count(total_s, report, pace.picture_s) for count in (_all_probed, num_for_new_head))
    return VAL_PASSES * report.size("val") + probed + refitted


def num_scored(total_s: float, report: DataReport, picture_s: float, before_s: float) -> int | None:
    """How many test pictures there is time to score, but at least LEAST_SCORED; None: all."""
    left_s = total_s - before_s - FIGURES_S - picture_s * _all_probed(total_s, report, picture_s)
    affordable = int(min(left_s, SCORED_SHARE * total_s) / max(picture_s, 1e-9))
    num = max(LEAST_SCORED, affordable)
    return num if num < report.size("test") else None


def _all_probed(total_s: float, report: DataReport, picture_s: float) -> int:
    """The number of training pictures that few-shot probes draw from."""
    return sum(min(count, num_probed(total_s, report, picture_s)) for count in report.train_counts)


def num_for_new_head(total_s: float | None, report: DataReport, picture_s: float) -> int:
    """How many training pictures to fit a new head to after training; 0: there is no time for one."""
    most = min(NEW_HEAD_PICTURES, report.num_train)
    if total_s is None:
        return most
    affordable = int(NEW_HEAD_SHARE * total_s / max(picture_s, 1e-9))
    return min(most, affordable) if affordable >= NEW_HEAD_LEAST * most else 0


def num_probed(total_s: float | None, report: DataReport, picture_s: float) -> int:
    """The most training pictures per class that few-shot probes draw from."""
    if total_s is None:
        return PROBED
    affordable = PROBED_SHARE * total_s / max(picture_s, 1e-9) / max(1, len(report.classes))
    return int(min(PROBED, max(1, affordable)))


def pace_of(recipe: Recipe, picture_s: float) -> Pace:
    """Estimated from the time of a prediction: exact enough to begin with, since a run is adjusted as it goes."""
    step_s = TRAINING_PASSES * picture_s * recipe.training.batch_size
    return Pace(step_s=step_s, start_s=1.0 + step_s, picture_s=picture_s)


def steps_within(budget: Budget, report: DataReport) -> int:
    """Steps that fit into the time for training; below 0 if there is none."""
    val_s = _validations_s(budget, report) if has_validations(budget, report) else 0.0
    return int((budget.train_s - budget.pace.start_s - val_s) / budget.pace.step_s)


def has_validations(budget: Budget, report: DataReport) -> bool:
    """Whether there is time for validations during the run; there is always one at its end."""
    return _validations_s(budget, report) <= VALIDATIONS_SHARE * budget.train_s


def _validations_s(budget: Budget, report: DataReport) -> float:
    """Of raw and averaged weights each time, except at the end, which counts as time after training."""
    return budget.pace.picture_s * report.size("val") * 2 * (NUM_VALIDATIONS - 1)


def measured(
    recipe: Recipe, splits: Splits, seconds: float, alone: AbstractContextManager[object] | None = None
) -> Pace:
    """Time some real steps of a recipe, on a model that is thrown away. `alone` is entered while steps are timed:
    processes that share a device can compile side by side, and be timed in turn."""
    world = World.join(recipe.training.device)

    def now() -> float:
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)
        return time.monotonic()

    began, steps = now(), 0
    objective = build_objective(recipe, splits.train.classes).to(world.device)
    loop = build_loop(recipe, splits, objective, world)
    images = loop.data.prepare(*next(iter(loop.data.inputs(0, 1)))).images

    def prediction_s(num: int) -> float:
        """Per picture, in a batch of at most `num`; a head adds next to nothing."""
        with torch.no_grad(), autocast(world.device, recipe.training.precision):
            before = now()
            objective.encoder(images[:num])
        return (now() - before) / len(images[:num])

    foreseen = pace_of(recipe, min(prediction_s(TIMED_PICTURES) for _ in range(2)))
    most_s = max(MOST_MEASURED_S, MOST_MEASURED * seconds)
    if world.device.type == "cpu" and (WARM_UP_STEPS + 5) * foreseen.step_s > most_s:
        return foreseen  # a large model, asked for by name
    with closing(loop.data.inputs(0, 1_000_000)) as inputs:
        coming = iter(inputs)
        for _ in range(WARM_UP_STEPS + 1):  # the last one captures a CUDA graph
            loop.run_step(*next(coming))
        warm = now()
        with alone or nullcontext():
            first = last = now()
            while last - first < seconds or not steps:
                for _ in range(4):
                    loop.run_step(*next(coming))
                steps, last = steps + 4, now()
    step_s = (last - first) / steps
    objective.eval()
    return Pace(
        step_s=step_s,
        start_s=max(0.0, warm - began - (WARM_UP_STEPS + 1) * step_s),
        picture_s=[prediction_s(len(images)) for _ in range(2)][-1],
    )
