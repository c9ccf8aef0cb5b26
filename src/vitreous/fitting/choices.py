"""Choices: what a fit decided to do, and why, as data."""

from dataclasses import dataclass, replace

from vitreous.data.check import DataReport
from vitreous.fitting.budget import Budget
from vitreous.fitting.transfer import Found, Scratch
from vitreous.fitting.wishes import Wishes
from vitreous.recipes.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Choice:
    name: str
    value: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    recipe: Recipe
    choices: tuple[Choice, ...]
    budget: Budget | None = None
    trains: bool = True  # False: the time is enough for the first model alone
    most_steps: int | None = None  # more would not help, whatever the time
    threads: int | None = None  # that torch computes with: others would round differently

    @property
    def scored(self) -> int | None:
        """Test pictures that are scored; None: all."""
        return None if self.budget is None else self.budget.scored

    def with_choice(self, name: str, value: str, reason: str) -> "Plan":
        """In its place, or as the last."""
        new = Choice(name=name, value=value, reason=reason)
        if all(one.name != name for one in self.choices):
            return replace(self, choices=(*self.choices, new))
        return replace(self, choices=tuple(new if one.name == name else one for one in self.choices))


def usual_steps(recipe: Recipe, report: DataReport) -> int:
    """That a draft has: what suits the number of pictures, whatever the time."""
    return recipe.training.num_steps(max(1, report.num_train // recipe.training.batch_size))


def length(recipe: Recipe, report: DataReport) -> str:
    batch = recipe.training.batch_size
    steps = usual_steps(recipe, report)
    return f"{steps * batch / report.num_train:.1f} epochs, {steps:,} steps"


# ---- that every kind of task has


def start_choice(start: Found) -> Choice:
    if isinstance(start, Scratch):
        return Choice(name="start", value="random weights", reason=start.why)
    return Choice(name="start", value=f"{start.where} (sha256 {start.digest[:12]})", reason=start.why)


def scored_choice(report: DataReport, kept: Budget | None) -> tuple[Choice, ...]:
    """Only where it is not the whole test part."""
    if kept is None or kept.scored is None:
        return ()
    value = f"{kept.scored:,} of {report.size('test'):,} pictures"
    why = "drawn at random, as scoring all would take too much of the time; `vitreous evaluate` scores all"
    return (Choice(name="test", value=value, reason=why),)


def reason_for_length(report: DataReport, wishes: Wishes, kept: Budget | None) -> str:
    if kept is None:
        return f"the usual number of passes for {report.num_train:,} training pictures; --minutes sets a time instead"
    usual = "" if wishes.seconds is not None else ", the usual time; --minutes sets another"
    student = f", {kept.student_s:.0f} s for its student" if kept.student_s else ""
    return (
        f"about {1000 * kept.pace.step_s:.0f} ms per step: {max(0.0, kept.train_s):.0f} s of {kept.total_s:.0f} s are "
        f"left{usual}, with {kept.before_s:.0f} s gone{student} and {kept.after_s - kept.student_s:.0f} s kept for "
        "evaluation and report"
    )
