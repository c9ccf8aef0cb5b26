"""How much data does a ViT need? Accuracy against the share of the training pictures (paper, 4.3, Figures 3 and 4).

Every model and share gets the same number of optimizer steps of the same batch size, and so sees equally many pictures.
With equal epochs instead, a hundredth of the data would also mean a hundredth of the training.

Figure 4: the regularisation is fixed, the best weights are chosen on validation pictures (early stopping), and their
features are judged by a few-shot probe on another set. Figure 3: weight decay, dropout and label smoothing are chosen
together, on validation pictures, for every model and share; then the model is scored, and fine-tuned on another set.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from matplotlib.figure import Figure

from vitreous.display.words import percent
from vitreous.errors import UserError
from vitreous.models import ModelSettings
from vitreous.studies.downstream import few_shot_accuracy, test_accuracy
from vitreous.studies.figures import Panel, curves_figure
from vitreous.studies.grid import Cell, Grid, Row
from vitreous.studies.study import TransferStudy, grouped
from vitreous.tasks.classify import ClassifySettings


@dataclass(frozen=True)
class Regularisation:
    weight_decay: float
    dropout: float  # of transformers; a BiT ResNet has none
    label_smoothing: float


FIXED = "medium"  # what Figure 4 trains with
GRID = {
    "medium": Regularisation(0.5, 0.0, 0.1),
    "light": Regularisation(0.1, 0.0, 0.0),
    "heavy": Regularisation(1.0, 0.1, 0.2),
}


@dataclass(frozen=True, kw_only=True)
class DataSize(TransferStudy):
    name: ClassVar[str] = "data-size"
    columns: ClassVar[tuple[str, ...]] = ("model", "fraction", "regularisation", "target")
    values: ClassVar[tuple[str, ...]] = ("accuracy", "val_accuracy", "few_shot")
    unused: ClassVar[tuple[str, ...]] = ("weight_decay", "label_smoothing")  # the regularisations have their own
    shares: ClassVar[tuple[str, ...]] = (*TransferStudy.shares, "fractions")
    choices: ClassVar[dict[str, tuple[str, ...]]] = {"regularisations": tuple(GRID)}

    models: tuple[str, ...] = ("vit-s", "vit-l", "hybrid-s", "hybrid-l", "resnet-s", "resnet-l")  # to compare
    fractions: tuple[float, ...] = (0.01, 0.1, 0.3, 1.0)  # shares of the training pictures, each contained in the next
    regularisations: tuple[str, ...] = ("medium", "light", "heavy")  # to choose from; Figure 4's is medium
    shots: int = 5  # training pictures per class for the few-shot probe
    evaluations: int = 5  # validations during a run, from which early stopping chooses

    @classmethod
    def quick_changes(cls) -> dict[str, Any]:
        return {
            "models": ("vit-t", "hybrid-t", "resnet-t"),
            "fractions": (0.02, 1.0),
            "regularisations": ("medium", "light"),
            "seeds": 1,
            "evaluations": 2,
        }

    def run(self, grid: Grid) -> None:
        leave_out = self.leave_out(grid)
        points = [(model, fraction) for fraction in sorted(self.fractions, reverse=True) for model in self.models]
        for seed in range(self.seeds):
            # Figure 4 first: after its first seed there is something to look at.
            grid.run(
                [self.cell(grid, *point, FIXED, seed=seed, leave_out=leave_out) for point in points],
                f"fixed, seed {seed}",
            )
            if seed == 0:
                others = [name for name in self.regularisations if name != FIXED]
                cells = [
                    self.cell(grid, *point, name, seed=0, leave_out=leave_out) for name in others for point in points
                ]
                grid.run(cells, "choosing the regularisation")
            chosen = chosen_regularisation(grid.rows, self.regularisations)
            tuned = [
                self.cell(grid, *point, chosen[point], seed=seed, leave_out=leave_out)
                for point in points
                if point in chosen
            ]
            if seed > 0:
                grid.run([cell for cell in tuned if cell.facts["regularisation"] != FIXED], f"tuned, seed {seed}")
            reports = [self.report(grid, cell) for cell in tuned if not cell.read_test]
            transfers = [transfer for cell in tuned for transfer in self.transfer_cells(cell, grid.folder)]
            grid.run(reports + transfers, f"transfers, seed {seed}")

    def cell(self, grid: Grid, model: str, fraction: float, regularisation: str, *, seed: int, leave_out: str) -> Cell:
        chosen, found = GRID[regularisation], self.model(model)
        recipe = self.recipe(f"{self.name}-{model}", _dropping(found.settings, chosen.dropout), seed, leave_out)
        whole = len(grid.open_data(recipe.data).train)
        pictures = round(fraction * whole)
        if not pictures:
            raise UserError(f"--fractions {fraction:g}: none of {self.data}'s {whole:,} pictures; give a larger share")
        batch_size = min(self.batch_size, pictures)
        steps_per_epoch = pictures // batch_size
        recipe = replace(
            recipe,
            data=replace(recipe.data, train_fraction=fraction),
            objective=ClassifySettings(label_smoothing=chosen.label_smoothing),
            optimizer=replace(recipe.optimizer, weight_decay=chosen.weight_decay),
            training=replace(
                recipe.training,
                batch_size=batch_size,
                keep="best",
                evaluate_every_epochs=max(1, self.steps // self.evaluations) / steps_per_epoch,
            ),
        )
        return Cell(
            name=f"{model}-{fraction:g}-{regularisation}-seed{seed}",
            facts={**found.facts, "fraction": fraction, "regularisation": regularisation, "seed": seed},
            recipe=recipe,
            # Candidates are compared only on validation pictures; `report` reads the test set for the chosen one.
            read_test=regularisation == FIXED or seed > 0,
            measure=self.probe(grid) if regularisation == FIXED else None,
        )

    def probe(self, grid: Grid) -> Any:
        def measure(run: Path) -> dict[str, float]:
            found = {
                f"few_shot_{name}": few_shot_accuracy(run, where, self.shots, grid.open_data, self.device)
                for where, name in self.target_names.items()
            }
            return found | ({"few_shot": sum(found.values()) / len(found)} if found else {})

        return measure

    def report(self, grid: Grid, cell: Cell) -> Cell:
        run, recipe = grid.path(cell), cell.recipe
        assert recipe is not None

        def measure(_: Path) -> dict[str, float]:
            return {"accuracy": test_accuracy(run, recipe, grid.open_data)}

        return Cell(name=f"{cell.name}-test", facts=cell.facts, measure=measure)

    @property
    def _chosen(self) -> str:
        return "tuned" if len(self.regularisations) > 1 else self.regularisations[0]

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        chosen = chosen_regularisation(rows, self.regularisations)
        tuned = [row for row in rows if chosen.get((row["model"], row["fraction"])) == row["regularisation"]]
        own = [row for row in tuned if "target" not in row]
        panels = [Panel(f"{self.data}, regularisation {self._chosen}", own, "accuracy", "test accuracy")]
        panels += [
            Panel(f"fine-tuned on {where}", found, "accuracy", "")
            for where in self.transfer
            if (found := [row for row in tuned if row.get("target") == where])
        ]
        fixed = [row for row in rows if row["regularisation"] == FIXED and "target" not in row]
        few = [Panel(f"{self.data}, regularisation fixed", fixed, "accuracy", "test accuracy")]
        few += [
            Panel(f"{self.shots} shots of {where}", fixed, f"few_shot_{name}", "accuracy")
            for where, name in self.target_names.items()
        ]
        x = f"share of the training pictures of {self.data}"
        return {"figure3": curves_figure(panels, "fraction", x), "figure4": curves_figure(few, "fraction", x)}

    def findings(self, rows: Sequence[Row]) -> list[str]:
        """The best of each family at every share: the curves cross where the order changes."""
        chosen = chosen_regularisation(rows, self.regularisations)
        own = [
            row
            for row in rows
            if "target" not in row and chosen.get((row["model"], row["fraction"])) == row["regularisation"]
        ]
        best: dict[float, dict[str, tuple[float, str]]] = {}
        for (fraction, family, model), (values,) in grouped(own, ("fraction", "family", "model"), ("accuracy",)):
            found = (statistics.fmean(values), model)
            families = best.setdefault(fraction, {})
            families[family] = max(found, families.get(family, found))
        return [
            f"{percent(fraction, 0)} of {self.data}, regularisation {self._chosen}: "
            + ", ".join(f"{model} {percent(mean, 2)}" for mean, model in sorted(families.values(), reverse=True))
            for fraction, families in sorted(best.items())
        ]


def chosen_regularisation(rows: Sequence[Row], among: Sequence[str]) -> dict[tuple[str, float], str]:
    """The best of these on validation pictures with the first seed, by model and fraction."""
    best: dict[tuple[str, float], tuple[float, str]] = {}
    for row in rows:
        if row["seed"] == 0 and row["regularisation"] in among and "target" not in row and "val_accuracy" in row:
            point = (row["model"], row["fraction"])
            found = (row["val_accuracy"], row["regularisation"])
            if point not in best or found[0] > best[point][0]:
                best[point] = found
    return {point: name for point, (_, name) in best.items()}


def _dropping(model: ModelSettings, dropout: float) -> ModelSettings:
    return model.regularised(dropout=dropout)
