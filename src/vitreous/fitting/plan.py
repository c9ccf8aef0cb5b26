"""Plan: which model, resolution, recipe and length for this data on this machine, and why."""

import math
from dataclasses import dataclass, replace

from vitreous import settings
from vitreous.data.check import DataReport
from vitreous.data.sources import DataSettings
from vitreous.errors import UserError
from vitreous.fitting.budget import FIGURES_S, Budget, Clock, Measure, budget, epochs_within
from vitreous.fitting.drafts import IMBALANCE, STRONG_EPOCHS, Hardware, Wishes, balance_of, drafts, lengthened
from vitreous.models import ModelSettings, ResNetSettings, ViTSettings
from vitreous.recipes.recipe import Recipe

ENOUGH_EPOCHS, ENOUGH_PICTURES, PLENTY_EPOCHS = 20, 250_000, 100  # seen before a larger model pays
# Shares of the steps before the rate falls after which a run with a budget is corrected by the pace it really has
RECHECKS = (0.2, 0.5, 0.8)
TELLING_S, TELLING_STARTS = 3.0, 5  # seconds, and times the start of a run: what is shorter tells no pace of steps


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


def plan(
    report: DataReport, data: DataSettings, hardware: Hardware, wishes: Wishes, *, measure: Measure, clock: Clock
) -> Plan:
    """What to do with this data. Measures only where there is a budget to keep."""
    drafted = drafts(report, data, hardware, wishes)
    if wishes.seconds is None:
        return Plan(recipe=drafted[0], choices=_choices(drafted[0], report, hardware, wishes, None))
    recipe, kept = _fitted(drafted, report, wishes, measure, clock)
    return Plan(recipe=recipe, choices=_choices(recipe, report, hardware, wishes, kept), budget=kept)


# ---- keeping a budget


def _fitted(
    drafts: list[Recipe], report: DataReport, wishes: Wishes, measure: Measure, clock: Clock
) -> tuple[Recipe, Budget]:
    """The largest draft that the time is enough for, as long as the time allows."""
    assert wishes.seconds is not None
    probe_s = min(max(wishes.seconds / 100, 0.5), 4.0)
    recipe, pace = drafts[0], measure(drafts[0], probe_s)
    for larger in drafts[1:]:
        if not _is_enough(epochs_within(budget(wishes.seconds, report, pace, clock()), larger, report), report):
            break  # not even at the pace of the smaller one
        its_pace = measure(larger, probe_s)
        if not _is_enough(epochs_within(budget(wishes.seconds, report, its_pace, clock()), larger, report), report):
            break
        recipe, pace = larger, its_pace
    # Augmentation depends on the length, and the pace on the augmentation; the second look is longer, and counts.
    for seconds in (0.0, min(max(wishes.seconds / 30, 1.0), 15.0)):
        kept = budget(wishes.seconds, report, pace, clock() + seconds)
        recipe = lengthened(recipe, epochs_within(kept, recipe, report), report, wishes)
        pace = measure(recipe, seconds) if seconds else pace
    kept = budget(wishes.seconds, report, pace, clock())
    epochs = epochs_within(kept, recipe, report)
    if not wishes.gives("training.epochs", "training.steps") and epochs < 1:
        epoch_s = pace.step_s * (report.num_train // recipe.training.batch_size)
        # More time is measured for longer: a twentieth of what is added, or less.
        least = math.ceil((wishes.seconds + 1.1 * (1 - epochs) * epoch_s) / 6) / 10
        raise UserError(
            f"{wishes.seconds / 60:g} minutes are too few: reading and measuring took {kept.before_s:.0f} s, "
            f"evaluation and report need {kept.after_s:.0f} s, one epoch {epoch_s:.0f} s. Give --minutes {least:.1f} "
            "or more, or a smaller model or picture size"
        )
    # As it was measured: another length must not change the augmentation now.
    final = replace(lengthened(recipe, epochs, report, wishes), augmentation=recipe.augmentation)
    return _with_fixed_warmup(final, report), kept


def _with_fixed_warmup(recipe: Recipe, report: DataReport) -> Recipe:
    """In steps, so that it stays when the length is corrected."""
    if not _is_correctable(recipe):
        return recipe
    steps = recipe.training.num_steps(report.num_train // recipe.training.batch_size)
    warmup, _ = recipe.schedule.phases(steps)
    return replace(recipe, schedule=replace(recipe.schedule, warmup_steps=warmup))


def _is_correctable(recipe: Recipe) -> bool:
    return recipe.schedule.decay == "constant" and recipe.training.steps is None and not recipe.rates


def rechecks(chosen: Plan, wishes: Wishes, steps: int, done: int = 0) -> list[int]:
    """The steps after which the length of a run of so many is corrected, of which some are done."""
    if chosen.budget is None or wishes.gives("training.epochs") or not _is_correctable(chosen.recipe):
        return []
    pace, steady = chosen.budget.pace, (1 - chosen.recipe.schedule.cooldown_fraction) * steps
    soonest = done + max(TELLING_S, TELLING_STARTS * pace.start_s) / pace.step_s
    return [int(share * steady) for share in RECHECKS if int(share * steady) >= soonest]


def run_step_s(chosen: Plan, steps: int, seconds: float) -> float:
    """Of a part of the run: without its start, which may take less than it did when it was measured."""
    assert chosen.budget is not None
    return max(seconds - chosen.budget.pace.start_s, seconds / 2) / steps


def corrected(chosen: Plan, report: DataReport, done: int, step_s: float, clock_s: float) -> Plan:
    """The plan with the length that fits the pace of the run so far. What was trained is as it would have been with
    this length from the start: until the rate falls, nothing depends on it."""
    kept, training = chosen.budget, chosen.recipe.training
    assert kept is not None
    # A machine that has slowed down answers slowly, too; figures depend less on it.
    after_s = FIGURES_S + (kept.after_s - FIGURES_S) * max(1.0, step_s / kept.pace.step_s)
    left = max(0.0, kept.total_s - clock_s - kept.pace.start_s - after_s) / step_s
    least = int(done / (1 - chosen.recipe.schedule.cooldown_fraction)) + 1
    per_epoch = report.num_train // training.batch_size
    steps = max(done + int(left), least)
    recipe = replace(chosen.recipe, training=replace(training, epochs=round(steps / per_epoch, 4)))
    note = f"; corrected after step {done:,} to {1000 * step_s:.0f} ms a step, validations included"
    choices = tuple(
        replace(one, value=_length(recipe, report), why=one.why.partition(";")[0] + note)
        if one.what == "length"
        else one
        for one in chosen.choices
    )
    return replace(chosen, recipe=recipe, choices=choices)


def _is_enough(epochs: float, report: DataReport) -> bool:
    seen = epochs * report.num_train
    return epochs >= PLENTY_EPOCHS or (epochs >= ENOUGH_EPOCHS and seen >= ENOUGH_PICTURES)


# ---- saying why


def _choices(
    recipe: Recipe, report: DataReport, hardware: Hardware, wishes: Wishes, kept: Budget | None
) -> tuple[Choice, ...]:
    def choice(what: str, value: str, why: str, *names: str) -> Choice:
        return Choice(what=what, value=value, why="as you asked" if wishes.gives(*names) else why)

    training, side = recipe.training, min(report.heights[1], report.widths[1])
    pictures = f"{report.num_train:,} training pictures"
    if kept is None:
        length = f"the usual number of passes for {pictures}; --minutes sets a time instead"
    else:
        length = (
            f"measured {1000 * kept.pace.step_s:.0f} ms a step: {kept.train_s:.0f} s of {kept.total_s:.0f} s are "
            f"left, with {kept.before_s:.0f} s gone and {kept.after_s:.0f} s kept for evaluation and report"
        )
    height, width = recipe.model.picture_px
    return (
        choice("hardware", hardware.name, "what is here", "training.device"),
        choice(
            "start",
            recipe.start or "random weights",
            "the weights you gave, a new head of zeros" if recipe.start else "no weights were given (--from)",
        ),
        choice("model", describe_model(recipe.model), _why_model(recipe, hardware, kept), "model"),
        choice(
            "resolution",
            f"{width} x {height} px",
            "what the given weights were trained at"
            if recipe.start
            else f"the pictures have {side} px on their shorter side"
            + (", more would be too slow here" if side > max(width, height) else "")
            + (f"; train is kept at {recipe.data.shrink_px} px" if recipe.data.shrink_px else ""),
            "model.picture_px",
        ),
        choice(
            "length",
            _length(recipe, report),
            length,
            "training.epochs",
            "training.steps",
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
            "strong" if recipe.augmentation.mixup or recipe.augmentation.randaugment_ops else "light",
            f"{STRONG_EPOCHS} passes or more would overfit"
            if recipe.augmentation.mixup
            else f"under {STRONG_EPOCHS} passes; strong augmentation would slow learning",
            "augmentation",
        ),
        choice("balance", *_balance_words(recipe, report, wishes), "data.balance", "objective.class_weights"),
    )


def _length(recipe: Recipe, report: DataReport) -> str:
    batch = recipe.training.batch_size
    steps = recipe.training.num_steps(report.num_train // batch)
    return f"{steps * batch / report.num_train:.1f} epochs, {steps:,} steps"


def _why_model(recipe: Recipe, hardware: Hardware, kept: Budget | None) -> str:
    if recipe.start:
        return "the one you gave"
    if kept is None:
        return (
            "learns small data in minutes on a CPU"
            if hardware.kind == "cpu"
            else "the size that does well on small data"
        )
    return "the largest of those tried that can see the data often enough in the time"


def _balance_words(recipe: Recipe, report: DataReport, wishes: Wishes) -> tuple[str, str]:
    way, ratio = balance_of(recipe), f"the largest class has {report.imbalance:.1f} times the pictures of the smallest"
    if wishes.balance != "auto" or wishes.gives("data.balance", "objective.class_weights"):
        return way, f"as you asked; {ratio}"
    if recipe.data.balance:
        return way, f"{ratio}, more than {IMBALANCE:g}: every class is shown equally often"
    return way, f"{ratio}, not more than {IMBALANCE:g}"


def describe_model(model: ModelSettings) -> str:
    if isinstance(model, ViTSettings):
        return f"ViT, width {model.width}, {model.depth} blocks, {model.heads} heads, patches of {model.patch} px"
    if isinstance(model, ResNetSettings):
        return f"ResNet, blocks {'+'.join(map(str, model.depths))}, width {model.base_width}"
    return settings.kind(type(model))


__all__ = ["IMBALANCE", "RECHECKS", "Choice", "Plan", "corrected", "plan", "rechecks", "run_step_s"]
