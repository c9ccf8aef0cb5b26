"""VTAB: how well does a model adapt to unseen tasks with 1,000 examples each? (Zhai et al. 2019; ViT paper, 4.1)

Mode "paper": one setting for all tasks, 2,500 steps at rate 0.01, on all 1,000 examples. Mode "sweep": rates and
lengths are tried with 800 examples, chosen per task on the other 200, and the best then trains on all 1,000.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from matplotlib.figure import Figure

from vitreous.data.opening import same_data
from vitreous.data.sources import DataSettings
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ModelSettings
from vitreous.recipes.finetune import larger
from vitreous.recipes.recipe import read_recipe
from vitreous.studies.downstream import distinct_slugs, test_split, transfer_recipe, without_overlap
from vitreous.studies.figures import bars_figure
from vitreous.studies.grid import Cell, Grid, Row
from vitreous.studies.study import QUICK_PX, Study, spread
from vitreous.studies.vtab import EXAMPLES, TRAIN_SHARE, SuiteTask, find_suite, vtab_means
from vitreous.training.loop import TrainingSettings
from vitreous.weights.trained import Trained


@dataclass(frozen=True)
class Start:
    """A pre-trained model, or one that a cell will pre-train."""

    label: str
    where: str
    model: ModelSettings
    preprocessing: Preprocessing
    seen: str | None  # the set it was pre-trained on, if known, which cannot be a task

    def has_seen(self, where: str) -> bool:
        return self.seen is not None and same_data(self.seen, where)


@dataclass(frozen=True, kw_only=True)
class Transfer(Study):
    name: ClassVar[str] = "transfer"
    columns: ClassVar[tuple[str, ...]] = ("start", "group", "task")
    may_be_nothing: ClassVar[tuple[str, ...]] = (*Study.may_be_nothing, "tasks", "start")

    data: str = "offline"  # the tasks: offline, none, a folder with one folder per task, or a JSON file
    tasks: tuple[str, ...] = ()  # further tasks: NAME=PATH, or NAME:GROUP=PATH if VTAB does not have the name
    start: tuple[str, ...] = ()  # runs or weights to transfer; none: `models` are pre-trained first
    models: tuple[str, ...] = ("vit-s", "resnet-s")  # to pre-train if --start is not given
    pretrain: str = "cifar10"  # the data to pre-train on
    mode: Literal["paper", "sweep"] = "paper"  # one setting for all tasks, or chosen for each
    examples: int = EXAMPLES  # examples per task
    finetune_px: int | None = None  # side of the pictures; none: larger by the paper's ratio of 384 to 224
    transfer_steps: int = 2500  # of fine-tuning, in mode paper
    transfer_rate: float = 0.01  # learning rate of fine-tuning, in mode paper
    transfer_batch: int = 512  # pictures per step of fine-tuning
    sweep_rates: tuple[float, ...] = (0.1, 0.01)  # learning rates to choose from
    sweep_steps: tuple[int, ...] = (2500, 10_000)  # lengths to choose from

    @classmethod
    def quick_changes(cls) -> dict[str, Any]:
        return {
            "data": "offline",
            "pretrain": "fashion",
            "models": ("vit-t",),
            "examples": 300,
            "finetune_px": QUICK_PX,
            "transfer_batch": 64,
            "sweep_rates": (0.1, 0.03),
            "sweep_steps": (30,),
            "seeds": 1,
        }

    def run(self, grid: Grid) -> None:
        suite = find_suite(self.data, self.tasks)
        pretraining = [] if self.start else self.pretraining(suite, grid)
        grid.run(pretraining, "pre-training")
        starts = [_given(*one) for one in distinct_slugs(self.start).items()] + [
            self._own(cell, grid) for cell in pretraining
        ]
        for seed in range(self.seeds):
            for task in suite:
                pairs = [(start, task) for start in starts if not start.has_seen(task.where)]
                if self.mode == "sweep" and seed == 0:
                    grid.run([cell for pair in pairs for cell in self.candidates(*pair)], f"sweep of {task.name}")
                grid.run([cell for pair in pairs for cell in self.reported(*pair, seed, grid.rows)], task.name)

    # ---- cells

    def pretraining(self, suite: Sequence[SuiteTask], grid: Grid) -> list[Cell]:
        others = [task.where for task in suite if not same_data(task.where, self.pretrain)]
        dropped = without_overlap(self.pretrain, others, grid.folder / "overlap.json")
        grid.about["dropped_from_pretraining"] = {where: num for where, num, _ in dropped.sets}
        study, cells = replace(self, data=self.pretrain), []
        for name in self.models:
            found = self.model(name)
            recipe = study.recipe(f"{self.name}-{name}", found.settings, 0, dropped.leave_out)
            cells.append(
                Cell(
                    name=f"pretrained-{name}",
                    facts={"start": name, "group": "pre-training", **found.facts, "seed": 0},
                    recipe=recipe,
                )
            )
        return cells

    def _own(self, cell: Cell, grid: Grid) -> Start:
        assert cell.recipe is not None
        return Start(cell.facts["model"], str(grid.path(cell)), cell.recipe.model, cell.recipe.normalise, self.pretrain)

    def candidates(self, start: Start, task: SuiteTask) -> list[Cell]:
        return [
            self.cell(start, task, rate, steps, seed=0, chosen=False)
            for rate in self.sweep_rates
            for steps in self.sweep_steps
        ]

    def reported(self, start: Start, task: SuiteTask, seed: int, rows: Sequence[Row]) -> list[Cell]:
        if self.mode == "paper":
            return [self.cell(start, task, self.transfer_rate, self.transfer_steps, seed=seed, chosen=True)]
        tried = [
            row
            for row in rows
            if (row.get("start"), row.get("task")) == (start.label, task.name) and "val_accuracy" in row
        ]
        if not tried:
            return []
        best = max(tried, key=lambda row: row["val_accuracy"])
        return [self.cell(start, task, best["rate"], best["length"], seed=seed, chosen=True)]

    def cell(self, start: Start, task: SuiteTask, rate: float, steps: int, *, seed: int, chosen: bool) -> Cell:
        held_out = 0.0 if chosen else 1 - TRAIN_SHARE
        kind = f"seed{seed}" if chosen else f"try-{rate:g}-{steps}"
        return Cell(
            name=f"{start.label}-{task.name}-{self.mode}-{kind}",
            facts={
                "start": start.label,
                "task": task.name,
                "group": task.group,
                "mode": self.mode,
                "rate": rate,
                "length": steps,
                "seed": seed,
            },
            recipe=transfer_recipe(
                start.where,
                larger(start.model, self.finetune_px),
                start.preprocessing,
                DataSettings(
                    where=task.where,
                    examples=self.examples,
                    val_fraction=held_out,
                    test_split=test_split(task.where),
                ),
                steps=steps,
                rate=rate,
                training=TrainingSettings(
                    batch_size=min(self.transfer_batch, int(TRAIN_SHARE * self.examples)),
                    seed=seed,
                    precision=self.precision,
                    device=self.device,
                ),
                keeps_sides=task.group == "structured",
            ),
            read_test=chosen,
        )

    # ---- results

    def findings(self, rows: Sequence[Row]) -> list[str]:
        found = []
        for start, by_seed in _scores(rows).items():
            for group in by_seed[0]:
                values = [means[group] for means in by_seed if group in means]
                found.append(f"{start}, mean of {group}{' tasks' if group == 'all' else ''}: {spread(values)}")
        return found

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        reported = [row for row in rows if "task" in row and "accuracy" in row]
        means = [
            {"start": start, "task": f"mean: {group}", "accuracy": value}
            for start, by_seed in _scores(rows).items()
            for means in by_seed
            for group, value in means.items()
        ]
        title = f"{self.examples:,} examples per task, mode {self.mode}"
        return {
            "transfer": bars_figure(
                [*reported, *means], "task", "start", "accuracy", title=title, label="test accuracy"
            )
        }


def _given(where: str, label: str) -> Start:
    if not label:
        raise UserError(f"{where}: not a usable name for a model")
    card = Trained.load(where).card
    recipe = Path(where) / "recipe.json"
    seen = read_recipe(recipe).data.where if recipe.is_file() else None
    return Start(label, where, card.model, card.preprocessing, seen)


def _scores(rows: Sequence[Row]) -> dict[str, list[dict[str, float]]]:
    """start -> the means of every seed that has all tasks."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    groups: dict[str, str] = {}
    for row in rows:
        if "task" in row and "accuracy" in row:
            found.setdefault(row["start"], {}).setdefault(row["seed"], {})[row["task"]] = row["accuracy"]
            groups[row["task"]] = row["group"]
    scores = {}
    for start, by_seed in found.items():
        most = max(len(tasks) for tasks in by_seed.values())
        scores[start] = [vtab_means(tasks, groups) for tasks in by_seed.values() if len(tasks) == most]
    return scores
