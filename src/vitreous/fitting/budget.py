"""Budget: how fast a recipe goes here, and what of a given time is left for training."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace

import torch

from vitreous.data.check import DataReport
from vitreous.data.sources import Splits
from vitreous.evaluation.probes import SHOTS
from vitreous.jobs.build import build_loop, build_objective
from vitreous.recipes.recipe import Recipe
from vitreous.training.devices import World, autocast
from vitreous.training.graph import WARM_UP_STEPS

FIGURES_S = 7.0  # few-shot fits, drawing and writing the report, which depend little on the data
PROBED = 4 * max(SHOTS)  # training pictures of a class, at most, that few-shot probes draw from
PROBED_SHARE = 0.03  # of the time, at most, for embedding them
LEAST_SCORED = 1000  # test pictures: they tell an accuracy to 3 points or better
SCORED_SHARE = 0.3  # of the time, at most, for scoring more: all can be scored later, when the model is there
VAL_PASSES = 5  # after the last step: raw and averaged weights, what is kept of them, the mean of two, a new head
NEW_HEAD_PICTURES = 4000  # that a head is fitted to anew, at most, once features were trained
NEW_HEAD_SHARE = 0.15  # of the time, for embedding them
NEW_HEAD_LEAST = 0.25  # of the pictures: a head that knows fewer would lose what better features gain
NUM_VALIDATIONS = 5  # along the run, for its curves
VALIDATIONS_SHARE = 0.15  # of the time for training, at most
STUDENT_SHARE = 0.5  # of the time for training, where there are pictures without labels
TRAINING_PASSES = 3.3  # forward passes that a training step takes the time of
TIMED_PICTURES = 8  # that show how long a step will take
MOST_MEASURED, MOST_MEASURED_S = 8.0, 4.0  # times the seconds for measuring, or so many: slower steps are foreseen


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast a recipe goes here, measured."""

    step_s: float
    start_s: float  # before steps come at that pace: building, compilation, first touches of memory
    picture_s: float  # a picture's prediction


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Of the whole command, in seconds."""

    total_s: float
    before_s: float  # gone when training begins: reading, checking, measuring
    after_s: float  # kept for calibration, evaluation, inspection, report
    train_s: float  # what is left for training and its validations; below 0 where the rest is too much already
    pace: Pace
    student_s: float = 0.0  # of what is kept: for a student, which learns from pictures without labels too
    scored: int | None = None  # test pictures, drawn at random; None: all


def with_student_s(budget: Budget) -> Budget:
    """With a share of the time for training kept for a student of what is trained."""
    student_s = STUDENT_SHARE * max(0.0, budget.train_s)
    return replace(budget, student_s=student_s, after_s=budget.after_s + student_s, train_s=budget.train_s - student_s)


Measure = Callable[[Recipe, float], Pace]  # a recipe, and for how many seconds
Clock = Callable[[], float]  # seconds since the command began


def budget(total_s: float, report: DataReport, pace: Pace, before_s: float, *, first_s: float = 0.0) -> Budget:
    """`first_s`: what a picture takes the first model, which may be what is kept."""
    scored = num_scored(total_s, report, max(pace.picture_s, first_s), before_s)
    kept_s = FIGURES_S + pace.picture_s * _predictions_after(total_s, report, pace, scored)
    return Budget(
        total_s=total_s,
        before_s=before_s,
        after_s=kept_s,
        train_s=total_s - before_s - kept_s,
        pace=pace,
        scored=scored,
    )


def after_s(budget: Budget, *, slower: float, contention: float) -> float:
    """What the end takes where steps are so much slower than planned, and other programs have the processor, too. A
    student learns for as long as was kept for it."""
    return FIGURES_S * contention + (budget.after_s - budget.student_s - FIGURES_S) * slower + budget.student_s


def least_after_s(total_s: float, report: DataReport, picture_s: float) -> float:
    """What comes after a first model that is kept as it is takes at least."""
    return FIGURES_S + picture_s * (_all_probed(total_s, report, picture_s) + min(LEAST_SCORED, report.size("test")))


def _predictions_after(total_s: float, report: DataReport, pace: Pace, scored: int | None) -> int:
    held_out = VAL_PASSES * report.size("val") + (report.size("test") if scored is None else scored)
    return held_out + _all_probed(total_s, report, pace.picture_s) + num_for_new_head(total_s, report, pace.picture_s)


def num_scored(total_s: float, report: DataReport, picture_s: float, before_s: float) -> int | None:
    """Test pictures that there is time to score, and LEAST_SCORED whatever the time; None: all."""
    left_s = total_s - before_s - FIGURES_S - picture_s * _all_probed(total_s, report, picture_s)
    affordable = int(min(left_s, SCORED_SHARE * total_s) / max(picture_s, 1e-9))
    num = max(LEAST_SCORED, affordable)
    return num if num < report.size("test") else None


def _all_probed(total_s: float, report: DataReport, picture_s: float) -> int:
    """Training pictures that few-shot probes draw from."""
    return sum(min(count, num_probed(total_s, report, picture_s)) for count in report.train_counts)


def num_for_new_head(total_s: float | None, report: DataReport, picture_s: float) -> int:
    """Training pictures for a new head on features that were trained; 0: the time is too short for one."""
    most = min(NEW_HEAD_PICTURES, report.num_train)
    if total_s is None:
        return most
    affordable = int(NEW_HEAD_SHARE * total_s / max(picture_s, 1e-9))
    return min(most, affordable) if affordable >= NEW_HEAD_LEAST * most else 0


def num_probed(total_s: float | None, report: DataReport, picture_s: float) -> int:
    """Training pictures of a class that few-shot probes draw from, at most."""
    if total_s is None:
        return PROBED
    affordable = PROBED_SHARE * total_s / max(picture_s, 1e-9) / max(1, len(report.classes))
    return int(min(PROBED, max(1, affordable)))


def pace_of(recipe: Recipe, picture_s: float) -> Pace:
    """Foreseen from what a prediction takes: exact enough to begin with, where a run is corrected as it goes."""
    step_s = TRAINING_PASSES * picture_s * recipe.training.batch_size
    return Pace(step_s=step_s, start_s=1.0 + step_s, picture_s=picture_s)


def steps_within(budget: Budget, recipe: Recipe, report: DataReport) -> int:
    """That fit into the time for training; below 0 where there is none."""
    val_s = _validations_s(budget, report) if has_validations(budget, report) else 0.0
    return int((budget.train_s - budget.pace.start_s - val_s) / budget.pace.step_s)


def has_validations(budget: Budget, report: DataReport) -> bool:
    """Whether there is time for them along the run; the one at its end is always taken."""
    return _validations_s(budget, report) <= VALIDATIONS_SHARE * budget.train_s


def _validations_s(budget: Budget, report: DataReport) -> float:
    """Raw and averaged weights at each validation but the last, which is counted with the rest of the end."""
    return budget.pace.picture_s * report.size("val") * 2 * (NUM_VALIDATIONS - 1)


def measured(
    recipe: Recipe, splits: Splits, seconds: float, alone: AbstractContextManager[object] | None = None
) -> Pace:
    """Some real steps of a recipe, on a model that is thrown away. `alone` is entered for the steps that are timed:
    processes that share a device can compile side by side, and take their times in turn."""
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
        """Of a picture, in a batch of so many at most; a head adds next to nothing."""
        with torch.no_grad(), autocast(world.device, recipe.training.precision):
            before = now()
            objective.encoder(images[:num])
        return (now() - before) / len(images[:num])

    foreseen = pace_of(recipe, min(prediction_s(TIMED_PICTURES) for _ in range(2)))
    most_s = max(MOST_MEASURED_S, MOST_MEASURED * seconds)
    if world.device.type == "cpu" and (WARM_UP_STEPS + 5) * foreseen.step_s > most_s:
        return foreseen  # a large model, asked for by name
    with closing(loop.data.inputs(0, 1_000_000)) as inputs:  # type: ignore[type-var]
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
