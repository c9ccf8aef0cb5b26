"""Plan: which of the drafts to train, and for how long, in the time there is."""

from dataclasses import replace

from vitreous.fitting.budget import (
    FIGURES_S,
    Budget,
    Clock,
    Measure,
    Pace,
    has_validations,
    pace_of,
    steps_within,
    with_student_s,
)
from vitreous.fitting.choices import Plan, usual_steps
from vitreous.fitting.course import can_be_paced, paced
from vitreous.fitting.drafts import Drafts
from vitreous.fitting.transfer import Found, Start
from vitreous.recipes.recipe import Recipe

USUAL_S = 0.001  # assumed for a prediction, if there is no time to measure it
LEAST_STEPS = 8  # of training: fewer are not worth their time


def plan(
    drafts: Drafts, start: Found, *, measure: Measure, clock: Clock, first_s: float = 0.0, must_train: bool = False
) -> Plan:
    """What to do with this data. Measures only if a model has to be chosen by the time. `first_s`: seconds per picture
    of the first model; `must_train`: there is none."""
    report, wishes, encoder = drafts.report, drafts.wishes, start if isinstance(start, Start) else None
    drafted = drafts.recipes(encoder)
    seconds = wishes.budget_s
    if seconds is None:
        return Plan(recipe=drafted[0], choices=drafts.choices(drafted[0], start, None))
    recipe, pace = drafted[0], None if encoder is None else drafts.foreseen(drafted[0], encoder)
    if pace is None and seconds - clock() < FIGURES_S and not (wishes.gives_a_length or must_train):
        pace = pace_of(recipe, USUAL_S)  # nothing will be trained: measuring would be too late as well
    elif pace is None:
        recipe, pace = _largest(drafts, drafted, measure, clock)
    kept = _budget(drafts, seconds, pace, clock(), first_s)
    usual = usual_steps(next(draft for draft in drafted if draft.model == recipe.model), report)
    most = drafts.most_steps(usual, encoder)
    steps = steps_within(kept, report)
    steps = steps if most is None else min(steps, most)
    trains = must_train or wishes.gives_a_length or steps >= LEAST_STEPS
    if trains and not wishes.gives_a_length:
        recipe = _of_length(drafts, recipe, max(steps, LEAST_STEPS))
        if not has_validations(kept, report) and not wishes.gives("training.evaluate_every_epochs"):
            recipe = replace(recipe, training=replace(recipe.training, evaluate_every_epochs=0.0))
    choices = drafts.choices(recipe, start, kept)
    found = Plan(recipe=recipe, choices=choices, budget=kept, trains=trains, most_steps=most)
    if trains:
        return found
    return found.with_choice("length", "no training", _why_not(kept, seconds))


def _budget(drafts: Drafts, seconds: float, pace: Pace, before_s: float, first_s: float = 0.0) -> Budget:
    kept = drafts.budget(seconds, pace, before_s, first_s)
    return with_student_s(kept) if drafts.wishes.has_unlabelled else kept


def _why_not(kept: Budget, seconds: float) -> str:
    """Why there is too little time for training."""
    pace = kept.pace
    if kept.train_s > 0:
        needs_s = pace.start_s + LEAST_STEPS * pace.step_s
        return (
            f"{LEAST_STEPS} steps would take {needs_s:.0f} s, and {kept.train_s:.0f} s are left; --minutes gives more"
        )
    if kept.before_s + FIGURES_S < seconds:
        return (
            f"at {1000 * pace.picture_s:.0f} ms per picture, its evaluation would take {kept.after_s:.0f} s of "
            f"{seconds:.0f} s; --minutes gives more, --model chooses another"
        )
    return f"{seconds:.0f} s are used up by reading, the first model and the report; --minutes gives more"


def _of_length(drafts: Drafts, recipe: Recipe, steps: int) -> Recipe:
    per_epoch = max(1, drafts.report.num_train // recipe.training.batch_size)
    # As measured: another length must not change the augmentation now.
    final = replace(drafts.lengthened(recipe, steps / per_epoch), augmentation=recipe.augmentation)
    return paced(final, steps) if can_be_paced(final) else final


def _largest(drafts: Drafts, drafted: list[Recipe], measure: Measure, clock: Clock) -> tuple[Recipe, Pace]:
    """The largest draft that there is time for, and its pace."""
    report, seconds = drafts.report, drafts.wishes.budget_s
    assert seconds is not None

    def epochs(recipe: Recipe, pace: Pace) -> float:
        steps = steps_within(_budget(drafts, seconds, pace, clock()), report)
        return steps / max(1, report.num_train // recipe.training.batch_size)

    probe_s = min(max(seconds / 100, 0.5), 4.0)
    recipe, pace = drafted[0], measure(drafted[0], probe_s)
    for larger in drafted[1:]:
        if not drafts.is_enough(epochs(larger, pace)):
            break  # too slow even at the pace of the smaller one
        its_pace = measure(larger, probe_s)
        if not drafts.is_enough(epochs(larger, its_pace)):
            break
        recipe, pace = larger, its_pace
    # Augmentation depends on the length, and the pace on augmentation: if that changes, measure again.
    longer = drafts.lengthened(recipe, max(epochs(recipe, pace), 1.0))
    if longer.augmentation != recipe.augmentation:
        pace = measure(longer, probe_s)
    return longer, pace
