"""Fitted: the results of a fit, with an account of its own for each kind of task. The report is made from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from vitreous.data.check import DataReport
from vitreous.data.splits import Splits
from vitreous.display.html import tag, together
from vitreous.evaluation.full import Evaluation
from vitreous.fitting.after import shown_as
from vitreous.fitting.base import Own
from vitreous.fitting.begun import Request
from vitreous.fitting.candidates import Candidate
from vitreous.fitting.choices import Plan
from vitreous.fitting.costs import Costs
from vitreous.fitting.first import FirstModel
from vitreous.fitting.student import Lesson
from vitreous.inspection.findings import Findings
from vitreous.recipes.recipe import Recipe
from vitreous.weights.card import Card


@dataclass(frozen=True, kw_only=True)
class Fitted(Generic[Own]):
    out: Path  # the run directory: recipe.json, environment.json, metrics.jsonl, results.json, model/
    request: Request
    data: DataReport
    plan: Plan
    splits: Splits  # the pictures for training, choosing and testing
    results: Mapping[str, Any]  # results.json of the run
    card: Card  # of the model that was kept
    first_models: tuple[FirstModel, ...]  # made at once, before training
    candidates: tuple[Candidate, ...]  # all that could have been kept
    lesson: Lesson | None = None  # what was learned from unlabelled pictures, if there were any
    evaluation: Evaluation
    account: Own  # what its kind of task measures besides
    findings: Findings
    timings: Mapping[str, float]  # stage -> seconds
    costs: Costs
    resumed: bool = False  # whether an earlier call began it

    def _repr_html_(self) -> str:
        """The report, if it is written, in a frame of its own, which a notebook's styles do not reach."""
        page, line = self.out / "report.html", tag.p(str(self))
        if not page.is_file():
            return line.markup
        frame = tag.iframe(srcdoc=page.read_text(encoding="utf-8"), style="width: 100%; height: 44rem; border: 0")
        return together(line, frame).markup

    def __str__(self) -> str:
        scored = f"{self.evaluation.headline_name} {self.evaluation.headline.percent()}{self.on_a_part}"
        return f"Test {scored}. Saved to {self.out}."

    @property
    def first(self) -> FirstModel | None:
        """The last of the first models: that of an encoder, if there is one."""
        return self.first_models[-1] if self.first_models else None

    @property
    def on_a_part(self) -> str:
        """In words, if not all test pictures were scored."""
        num = self.plan.scored
        return "" if num is None else f" on {num:,} of {self.data.size('test'):,} test pictures"

    @property
    def recipe(self) -> Recipe:
        """The recipe with the preprocessing of the model that was kept."""
        return shown_as(self.plan.recipe, self.card)
