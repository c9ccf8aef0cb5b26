"""Plan: which model, resolution, recipe and length for this data on this machine, and why."""

from dataclasses import dataclass, replace

from vitreous import settings
from vitreous.data.check import DataReport
from vitreous.data.sources import DataSettings
from vitreous.fitting.budget import (
    FIGURES_S,
    Budget,
    Clock,
    Measure,
    Pace,
    budget,
    has_validations,
    num_for_new_head,
    pace_of,
    steps_within,
)
from vitreous.fitting.course import can_be_paced, paced
from vitreous.fitting.drafts import IMBALANCE, STRONG_EPOCHS, balance_of, drafts, lengthened, usual_steps
from vitreous.fitting.transfer import Found, Scratch, Start
from vitreous.fitting.wishes import Hardware, Wishes
from vitreous.recipes.recipe import Recipe

ENOUGH_EPOCHS, ENOUGH_PICTURES, PLENTY_EPOCHS = 20, 250_000, 100  # seen before a larger model pays
USUAL_S = 0.001  # of an answer, where there is no time to measure it
LEAST_STEPS = 8  # of training: fewer are not worth their time


@dataclass(frozen=True, kw_only=True)
class Choice:
    what: str
    value: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    recipe: Recipe
    choices: tuple[Choice, ...]
    budget: Budget | None = None
    trains: bool = True  # False: the time is enough for the first answer alone
    most_steps: int | None = None  # more would not help, whatever the time
    new_head: int = 0  # training pictures that a head is fitted to anew when training has ended
    threads: int | None = None  # that torch computes with: others would round differently

    @property
    def scored(self) -> int | None:
        """Test pictures that are scored; None: all."""
        return None if self.budget is None else self.budget.scored

    def with_choice(self, what: str, value: str, why: str) -> "Plan":
        """In its place, or as the last."""
        new = Choice(what=what, value=value, why=why)
        if all(one.what != what for one in self.choices):
            return replace(self, choices=(*self.choices, new))
        return replace(self, choices=tuple(new if one.what == what else one for one in self.choices))


def plan(
    report: DataReport,
    data: DataSettings,
    hardware: Hardware,
    wishes: Wishes,
    start: Found,
    *,
    measure: Measure,
    clock: Clock,
    first_s: float = 0.0,
) -> Plan:
    """What to do with this data. Measures only where a model has to be chosen by the time. `first_s`: what a
    picture takes the first model."""
    encoder = start if isinstance(start, Start) else None
    drafted = drafts(report, data, hardware, wishes, encoder)
    seconds = wishes.budget_s
    if seconds is None:
        choices = _choices(drafted[0], report, hardware, wishes, start, kept=None)
        return Plan(recipe=drafted[0], choices=choices, new_head=num_for_new_head(None, report, 0.0))
    if encoder is not None:
        recipe, pace = drafted[0], pace_of(drafted[0], encoder.picture_s)
    elif seconds - clock() < FIGURES_S and not wishes.gives_a_length:
        recipe, pace = drafted[0], pace_of(drafted[0], USUAL_S)  # nothing will be trained: measuring would be late, too
    else:
        recipe, pace = _largest(drafted, report, wishes, measure, clock)
    kept = budget(seconds, report, pace, clock(), first_s=first_s)
    steps = steps_within(kept, recipe, report)
    usual = usual_steps(next(draft for draft in drafted if draft.model == recipe.model), report)
    # Trained weights are spoiled by too many passes; random ones learn for as long as they are given.
    most = usual if wishes.seconds is None else 2 * usual if encoder is not None else None
    steps = steps if most is None else min(steps, most)
    trains = wishes.gives_a_length or steps >= LEAST_STEPS
    if trains and not wishes.gives_a_length:
        recipe = _of_length(recipe, steps, report, wishes)
        if not has_validations(kept, report) and not wishes.gives("training.evaluate_every_epochs"):
            recipe = replace(recipe, training=replace(recipe.training, evaluate_every_epochs=0.0))
    choices = _choices(recipe, report, hardware, wishes, start, kept=kept)
    new_head = num_for_new_head(seconds, report, pace.picture_s)
    found = Plan(recipe=recipe, choices=choices, budget=kept, trains=trains, most_steps=most, new_head=new_head)
    if trains:
        return found
    why = f"{seconds:.0f} s are used up by reading, the first answer, evaluation and report; --minutes gives more"
    return found.with_choice("length", "no training", why)


def _of_length(recipe: Recipe, steps: int, report: DataReport, wishes: Wishes) -> Recipe:
    per_epoch = max(1, report.num_train // recipe.training.batch_size)
    # As it was measured: another length must not change the augmentation now.
    final = replace(lengthened(recipe, steps / per_epoch, report, wishes), augmentation=recipe.augmentation)
    return paced(final, steps) if can_be_paced(final) else final


def _largest(
    drafts: list[Recipe], report: DataReport, wishes: Wishes, measure: Measure, clock: Clock
) -> tuple[Recipe, Pace]:
    """The largest draft that the time is enough for, and its pace."""
    seconds = wishes.budget_s
    assert seconds is not None

    def epochs(recipe: Recipe, pace: Pace, more_s: float = 0.0) -> float:
        steps = steps_within(budget(seconds, report, pace, clock() + more_s), recipe, report)
        return steps / max(1, report.num_train // recipe.training.batch_size)

    probe_s = min(max(seconds / 100, 0.5), 4.0)
    recipe, pace = drafts[0], measure(drafts[0], probe_s)
    for larger in drafts[1:]:
        if not _is_enough(epochs(larger, pace), report):
            break  # not even at the pace of the smaller one
        its_pace = measure(larger, probe_s)
        if not _is_enough(epochs(larger, its_pace), report):
            break
        recipe, pace = larger, its_pace
    # Augmentation depends on the length, and the pace on the augmentation: where that changes, it is measured anew.
    longer = lengthened(recipe, max(epochs(recipe, pace), 1.0), report, wishes)
    if longer.augmentation != recipe.augmentation:
        pace = measure(longer, probe_s)
    return longer, pace


def _is_enough(epochs: float, report: DataReport) -> bool:
    seen = epochs * report.num_train
    return epochs >= PLENTY_EPOCHS or (epochs >= ENOUGH_EPOCHS and seen >= ENOUGH_PICTURES)


# ---- saying why


def _choices(
    recipe: Recipe, report: DataReport, hardware: Hardware, wishes: Wishes, start: Found, *, kept: Budget | None
) -> tuple[Choice, ...]:
    def choice(what: str, value: str, why: str, *names: str) -> Choice:
        return Choice(what=what, value=value, why="as you asked" if wishes.gives(*names) else why)

    training = recipe.training
    return (
        *_task(report),
        choice("hardware", hardware.name, "what is here", "training.device"),
        _start(start),
        choice("model", recipe.model.describe(), _why_model(recipe, hardware, kept), "model"),
        choice("resolution", *_resolution(recipe, report), "model.picture_px"),
        choice(
            "length", length(recipe, report), _why_length(report, wishes, kept), "training.epochs", "training.steps"
        ),
        choice(
            "batch",
            f"{training.batch_size} pictures",
            "the largest that leaves an epoch eight steps, up to what learns well",
            "training.batch_size",
        ),
        choice(
            "optimizer",
            settings.kind(type(recipe.optimizer)),
            "gentle on the early layers of given weights"
            if recipe.start
            else "learns fastest from scratch on small data",
            "optimizer",
        ),
        choice(
            "augmentation",
            "strong" if recipe.augmentation.mix.is_on or recipe.augmentation.warp.ops else "light",
            f"{STRONG_EPOCHS} passes or more would overfit"
            if recipe.augmentation.mix.is_on
            else f"under {STRONG_EPOCHS} passes; strong augmentation would slow learning",
            "augmentation",
        ),
        choice("balance", *_balance_words(recipe, report, wishes), "data.balance", "objective.class_weights"),
        *_scored(report, kept),
    )


def _task(report: DataReport) -> tuple[Choice, ...]:
    """Only where it is not the usual one."""
    if report.task != "label":
        return ()
    why = "the data gives pictures any number of labels: each is decided for itself (sigmoid loss)"
    return (Choice(what="task", value="several labels per picture", why=why),)


def _scored(report: DataReport, kept: Budget | None) -> tuple[Choice, ...]:
    """Only where it is not the whole test part."""
    if kept is None or kept.scored is None:
        return ()
    value = f"{kept.scored:,} of {report.size('test'):,} pictures"
    why = "drawn at random, as scoring all would take too much of the time; `vitreous evaluate` scores all"
    return (Choice(what="test", value=value, why=why),)


def _start(start: Found) -> Choice:
    if isinstance(start, Scratch):
        return Choice(what="start", value="random weights", why=start.why)
    return Choice(what="start", value=f"{start.where} (sha256 {start.digest[:12]})", why=start.why)


def _resolution(recipe: Recipe, report: DataReport) -> tuple[str, str]:
    (height, width), side = recipe.model.picture_px, min(report.heights[1], report.widths[1])
    why = f"the pictures have {side} px on their shorter side"
    if side > max(width, height):
        why += ", more would be too slow here"
    elif side < min(width, height) and recipe.start:
        why += ", and what the encoder was trained on has more"
    return f"{width} x {height} px", why + (
        f"; train is kept at {recipe.data.shrink_px} px" if recipe.data.shrink_px else ""
    )


def _why_length(report: DataReport, wishes: Wishes, kept: Budget | None) -> str:
    if kept is None:
        return f"the usual number of passes for {report.num_train:,} training pictures; --minutes sets a time instead"
    usual = "" if wishes.seconds is not None else ", the usual time; --minutes sets another"
    return (
        f"about {1000 * kept.pace.step_s:.0f} ms per step: {max(0.0, kept.train_s):.0f} s of {kept.total_s:.0f} s are "
        f"left{usual}, with {kept.before_s:.0f} s gone and {kept.after_s:.0f} s kept for evaluation and report"
    )


def length(recipe: Recipe, report: DataReport) -> str:
    batch = recipe.training.batch_size
    steps = usual_steps(recipe, report)
    return f"{steps * batch / report.num_train:.1f} epochs, {steps:,} steps"


def _why_model(recipe: Recipe, hardware: Hardware, kept: Budget | None) -> str:
    if recipe.start:
        return "that of the weights it starts from"
    if kept is None:
        return (
            "learns small data in minutes on a CPU"
            if hardware.kind == "cpu"
            else "the size that does well on small data"
        )
    return "the largest of those tried that can see the data often enough in the time"


def _balance_words(recipe: Recipe, report: DataReport, wishes: Wishes) -> tuple[str, str]:
    if report.task != "classify":
        return balance_of(recipe), "a picture of several labels counts for all of them"
    way, ratio = balance_of(recipe), f"the largest class has {report.imbalance:.1f} times the pictures of the smallest"
    if wishes.balance != "auto" or wishes.gives("data.balance", "objective.class_weights"):
        return way, f"as you asked; {ratio}"
    if recipe.data.balance:
        return way, f"{ratio}, more than {IMBALANCE:g}: every class is shown equally often"
    return way, f"{ratio}, not more than {IMBALANCE:g}"


__all__ = ["IMBALANCE", "Choice", "Plan", "length", "plan"]
