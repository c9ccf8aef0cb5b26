"""Choices: what a fit decided to do, and why, as data."""

from dataclasses import dataclass, replace

from vitreous.data.check import DataReport
from vitreous.display.words import counted
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
    trains: bool = True  # False: there is only time for the first model
    most_steps: int | None = None  # more would not help, whatever the time
    threads: int | None = None  # number that torch uses: another would round differently

    @property
    def scored(self) -> int | None:
        """Test pictures to score; None: all."""
        return None if self.budget is None else self.budget.scored

    def with_choice(self, name: str, value: str, reason: str) -> "Plan":
        """Replaces the choice of this name, or appends it."""
        new = Choice(name=name, value=value, reason=reason)
        if all(one.name != name for one in self.choices):
            return replace(self, choices=(*self.choices, new))
        return replace(self, choices=tuple(new if one.name == name else one for one in self.choices))


def usual_steps(recipe: Recipe, report: DataReport) -> int:
    """The length of a draft: what suits the number of pictures, whatever the time."""
    return recipe.training.num_steps(max(1, report.num_train // recipe.training.batch_size))


def length(recipe: Recipe, report: DataReport) -> str:
    batch = recipe.training.batch_size
    steps = usual_steps(recipe, report)
    return f"{steps * batch / report.num_train:.1f} epochs, {counted(steps, 'step')}"


# ---- choices that every kind of task has


def start_choice(start: Found) -> Choice:
    if isinstance(start, Scratch):
        return Choice(name="start", value="random weights", reason=start.why)
    return Choice(name="start", value=f"{start.where} (sha256 {start.digest[:12]})", reason=start.why)


def scored_choice(report: DataReport, kept: Budget | None) -> tuple[Choice, ...]:
    """Only if it is not the whole test part."""
    if kept is None or kept.scored is None:
        return ()
    value = f"{kept.scored:,} of {report.size('test'):,} pictures"
    why = "drawn at random, since scoring all would take too long; `vitreous evaluate` scores all"
    return (Choice(name="test", value=value, reason=why),)


def reason_for_length(report: DataReport, wishes: Wishes, kept: Budget | None) -> str:
    if kept is None:
        return f"the usual number of passes for {report.num_train:,} training pictures; --minutes sets a time instead"
    usual = "" if wishes.seconds is not None else " (the default; --minutes sets another)"
    student = f", {kept.student_s:.0f} s for its student" if kept.student_s else ""
    return (
        f"about {1000 * kept.pace.step_s:.0f} ms per step for {max(0.0, kept.train_s):.0f} s of {kept.total_s:.0f} s"
        f"{usual}; the rest: {kept.before_s:.0f} s already used{student} and {kept.after_s - kept.student_s:.0f} s for "
        "evaluation and report"
    )
