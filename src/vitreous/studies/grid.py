"""A grid of runs, cell by cell. A cell is an ordinary run directory; a finished one is never run again.

Several processes, on one GPU or several, may work on one grid: each takes cells that no other has.
"""

import csv
import gc
import json
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from vitreous.data.memory import InMemory
from vitreous.data.sources import DataSettings
from vitreous.data.splits import Splits
from vitreous.errors import UserError
from vitreous.jobs.train import BEST, train
from vitreous.recipes.recipe import Recipe, read_recipe
from vitreous.storage import atomic, locks
from vitreous.studies.models import size_of
from vitreous.terminal import Bar, note
from vitreous.training.environment import environment
from vitreous.training.stopping import StoppedError

Row = dict[str, Any]  # one cell's facts and numbers

CELL = "cell.json"  # in a cell's folder once it is done
STUDY = "study.json"  # marks a study's folder
LOCK = "cell.lock"  # held by the process that works on the cell
LOOK_AGAIN_S = 1.0  # between checks while other processes have all remaining cells
RECENT = 4  # cells from which the time of the next is estimated
KEPT_SETS = 6  # data sets to keep decoded


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point of a study: a run, and what is measured on it."""

    name: str  # of its folder
    facts: dict[str, Any]  # which point it is: model, fraction, seed ...
    recipe: Recipe | None = None  # what to train; None: only measure
    read_test: bool = True  # False where choices are made
    measure: Callable[[Path], dict[str, Any]] | None = field(default=None, compare=False)  # given the run's folder


class DecodedOnce:
    """Opens data for many runs: pictures are decoded once, and subsets are taken from memory."""

    def __init__(self) -> None:
        self._kept: dict[DataSettings, Splits] = {}

    def __call__(self, wanted: DataSettings) -> Splits:
        whole = replace(wanted, train_fraction=1.0, train_limit=None)
        if whole not in self._kept:
            while len(self._kept) >= KEPT_SETS:
                self._kept.pop(next(iter(self._kept)))
            found = whole.build()
            note(*found.notes)  # once, not for every run
            self._kept[whole] = replace(found, notes=())
        found = self._kept[whole]
        if wanted == whole or not isinstance(found.train, InMemory):  # a part may fit even if the whole does not
            return found if wanted == whole else wanted.build()
        return wanted.reduced(found)


class Grid:
    """The cells of a study in a folder, and their results. The same calls again resume where they ended."""

    def __init__(
        self, folder: Path, about: dict[str, Any], minutes: float | None = None, results: Path | None = None
    ) -> None:
        self.folder, self.about = folder, about
        self.results = results or folder  # where results.json and results.csv go
        self.rows: list[Row] = []
        self.left: list[Cell] = []  # that there was no time for
        self.environment = environment()
        self.open_data = DecodedOnce()
        self._took_s: list[float] = []
        self.after_cell: Callable[[], None] = lambda: None
        self._deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self._claim()

    def _claim(self) -> None:
        """Refuses a folder that somebody else filled."""
        if (self.folder / STUDY).is_file():
            return
        names = atomic.strangers(self.folder) if self.folder.is_dir() else []
        if names and not any((self.folder / name / LOCK).is_file() for name in names):
            raise UserError(f"{self.folder}: not a study, but a folder with {names[0]!r} in it; choose another --out")
        atomic.write_json({"format": "vitreous study 1"}, self.folder / STUDY)

    @property
    def out_of_time(self) -> bool:
        """Whether the next cell would end too late, if it takes as long as the longest recent one."""
        expected_s = max(self._took_s[-RECENT:], default=0.0)
        return self._deadline is not None and time.monotonic() + expected_s >= self._deadline

    def path(self, cell: Cell) -> Path:
        return self.folder / cell.name

    def run(self, cells: Sequence[Cell], what: str = "cells") -> list[Row]:
        """The rows of all finished cells; a cell that fails is recorded, and the others are still run."""
        finished: list[Row] = []
        waiting, put_back = deque(cells), 0  # in a row
        with Bar(what, len(cells)) as bar:
            while waiting:
                cell = waiting.popleft()
                row = self._known(cell)
                if row is None and self.out_of_time:
                    self.left.append(cell)
                    continue
                row = row or self._if_free(cell)
                if row is None:  # another process works on it, and we will read its result
                    waiting.append(cell)
                    put_back += 1
                    if put_back >= len(waiting):
                        time.sleep(LOOK_AGAIN_S)
                    continue
                put_back = 0
                self.rows.append(row)
                self._write()
                self.after_cell()
                if "failed" not in row:
                    finished.append(row)
                bar.update(len(cells) - len(waiting), last=cell.name)
        return finished

    def _if_free(self, cell: Cell) -> Row | None:
        """Its row, unless another process works on this cell, or on the one that it starts from."""
        if cell.recipe is not None and cell.recipe.start is not None:
            start = Path(cell.recipe.start)
            if start.parent == self.folder and start.is_dir() and not (start / CELL).is_file():
                before = locks.take(start / LOCK)
                if before is None:
                    return None
                before.close()
        self.path(cell).mkdir(parents=True, exist_ok=True)
        lock = locks.take(self.path(cell) / LOCK)
        if lock is None:
            return None
        with lock:
            row = self._known(cell)  # another process may just have finished it
            if row is None:
                began = time.monotonic()
                row = self._worked_out(cell)
                self._took_s.append(time.monotonic() - began)
            return row

    def _known(self, cell: Cell) -> Row | None:
        """The row from an earlier call, if it was the same cell."""
        path = self.path(cell) / CELL
        if not path.is_file():
            return None
        row: Row = atomic.read_json(path)
        facts = {name: row.get(name) for name in cell.facts}
        there = read_recipe(path.with_name("recipe.json")) if cell.recipe is not None else None
        if facts != json.loads(json.dumps(cell.facts)) or there != cell.recipe:
            raise UserError(
                f"{self.folder} holds a study with different settings (in {cell.name}). Choose another --out, or give "
                "the same settings to resume it"
            )
        return row

    def _worked_out(self, cell: Cell) -> Row:
        path = self.path(cell)
        row: Row = {"cell": cell.name, **cell.facts}
        try:
            if cell.recipe is not None:
                row |= self._trained(cell, cell.recipe)
            if cell.measure is not None:
                row |= cell.measure(path)
        except StoppedError:
            raise
        except (UserError, torch.OutOfMemoryError) as error:
            print(f"{cell.name}: {error}", file=sys.stderr)
            return row | {"failed": str(error)}
        finally:
            if torch.cuda.is_available():
                gc.collect()  # a run and its CUDA graph refer to each other, and hold device memory
        path.mkdir(parents=True, exist_ok=True)
        atomic.write_json(row, path / CELL)
        # Only a run that resumes needs them, and a study has many runs.
        shutil.rmtree(path / "checkpoints", ignore_errors=True)
        shutil.rmtree(path / BEST, ignore_errors=True)
        return row

    def _trained(self, cell: Cell, recipe: Recipe) -> Row:
        if recipe.training.compile:
            # Every model shape is compiled again; beyond torch's limit of 8 they would silently run uncompiled.
            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 256)
        results = train(recipe, self.path(cell), cell.read_test, self.open_data)
        row = {name: results[name] for name in ("steps", "parameters", "train_s")}
        # A study may be resumed elsewhere and later, so every run records where and with what it was made.
        gpus = self.environment["gpus"] if recipe.training.device != "cpu" else []
        row["device"] = gpus[0] if gpus else self.environment["cpu"]
        row["commit"] = self.environment["commit"]
        row["training_flops"] = size_of(recipe.model)[1] * results["steps"] * results["batch_size"]
        if "val" in results:
            row["val_accuracy"] = results["val"][results["headline"]]
        if "test" in results:
            row |= {"accuracy": results["test"][results["headline"]], "test_pictures": results["test"]["pictures"]}
        return row

    def _write(self) -> None:
        self.results.mkdir(parents=True, exist_ok=True)
        document = {**self.about, "environment": self.environment, "rows": self.rows}
        atomic.write_json(document, self.results / "results.json")
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        with atomic.placed(self.results / "results.csv") as new, new.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self.rows)
