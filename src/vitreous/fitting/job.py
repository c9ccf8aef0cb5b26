"""Job: what a fit of any kind of task has: the request, the data, the folder, the clock."""

from dataclasses import dataclass, replace
from pathlib import Path

from vitreous import settings
from vitreous.data.check import DataReport
from vitreous.data.fingerprint import names_digest
from vitreous.data.kinds import TaskKind
from vitreous.data.memory import InMemory
from vitreous.data.sources import DataSettings, without
from vitreous.data.splits import Splits
from vitreous.errors import UserError
from vitreous.fitting.after import scored_part
from vitreous.fitting.begun import Begun, Request, checked, data_settings, hardware_of, wishes_of, write
from vitreous.fitting.choices import Plan
from vitreous.fitting.drafts import Problem
from vitreous.fitting.stages import Stages
from vitreous.fitting.wishes import DEFAULT_S
from vitreous.recipes.recipe import Recipe
from vitreous.training.run import RunDirectory


class Parts:
    """What a recipe's `data.build()` would return, from pictures that are open already."""

    def __init__(self, splits: Splits) -> None:
        self.splits = splits
        self._made: dict[int, Splits] = {}  # by the size at which train is kept

    def of(self, recipe: Recipe) -> Splits:
        px = recipe.data.shrink_px
        if px is None:
            return self.splits
        if px not in self._made:
            self._made = {px: replace(self.splits, train=InMemory(self.splits.train, px))}
        return self._made[px]


@dataclass(frozen=True)
class Job:
    request: Request
    out: Path
    report: DataReport
    source: DataSettings
    pictures: tuple[str, ...]  # digests of names and labels by part
    parts: Parts
    clock: Stages

    @classmethod
    def opened(cls, request: Request, out: Path, begun: Begun | None, clock: Stages) -> "Job":
        """A job with its data found, split and checked."""
        source = data_settings(request)
        splits = source.build()
        pictures = tuple(names_digest(part) for part in (splits.train, splits.val, splits.test) if part is not None)
        if begun is not None and begun.pictures != pictures:
            raise UserError(
                f"the pictures in {request.data} have changed since the fit in {out} began; give another --out"
            )
        report = checked(splits, source, out, resumed=begun is not None)
        train = without(splits.train, report.left_out) if report.left_out else splits.train
        parts = Parts(replace(splits, train=train, notes=()))  # notes are in the report
        return cls(request, out, report, source.located(), pictures, parts, clock)

    @property
    def problem(self) -> Problem:
        return Problem(self.report, self.source, hardware_of(self.request), wishes_of(self.request))

    @property
    def seconds_left(self) -> float:
        return (wishes_of(self.request).budget_s or DEFAULT_S) - self.clock()

    def scored(self, plan: Plan) -> Splits:
        """The splits with the planned part of test."""
        return scored_part(self.parts.of(plan.recipe), plan.scored, plan.recipe.data.split_seed)

    def note(self, begun: Begun) -> None:
        """Records the plan, so that the same call resumes it."""
        with RunDirectory(self.out):
            write(self.out, "plan", settings.to_json(begun))
            settings.save(begun.plan.recipe, self.out / "recipe.json")


def task_of(request: Request) -> TaskKind | None:
    """The task of a model of these pictures. Nothing is decoded."""
    return replace(data_settings(request), keep_gb=0.0).build().train.targets.task
