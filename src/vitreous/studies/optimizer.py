"""Adam or SGD for pre-training ResNets? (paper, appendix D.1, Table 7)

Each pre-trains at its own rate, chosen on validation pictures; then both are fine-tuned in the same way, with SGD.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from matplotlib.figure import Figure

from vitreous.studies.figures import bars_figure
from vitreous.studies.grid import Cell, Grid, Row
from vitreous.studies.study import TransferStudy
from vitreous.training.optim import AdamWSettings, OptimizerSettings, SGDSettings


@dataclass(frozen=True, kw_only=True)
class OptimizerChoice(TransferStudy):
    name: ClassVar[str] = "optimizer"
    columns: ClassVar[tuple[str, ...]] = ("model", "optimizer", "lr", "target")
    values: ClassVar[tuple[str, ...]] = ("val_accuracy", "accuracy")
    unused: ClassVar[tuple[str, ...]] = ("rate", "weight_decay")  # each optimizer has its own
    may_be_nothing: ClassVar[tuple[str, ...]] = (*TransferStudy.may_be_nothing, "adam_decay", "sgd_decay")

    models: tuple[str, ...] = ("resnet-s", "resnet-l")  # to pre-train
    adam_rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)  # to choose from
    sgd_rates: tuple[float, ...] = (0.01, 0.03, 0.1)  # to choose from
    adam_decay: float = 0.1  # decoupled weight decay (paper, Table 3)
    sgd_decay: float = 1e-4  # added to the gradient, as in BiT

    @classmethod
    def quick_changes(cls) -> dict[str, Any]:
        return {"models": ("resnet-t",), "adam_rates": (1e-3, 3e-3), "sgd_rates": (0.03, 0.1), "seeds": 1}

    def run(self, grid: Grid) -> None:
        leave_out = self.leave_out(grid)
        candidates = [("Adam", rate) for rate in self.adam_rates] + [("SGD", rate) for rate in self.sgd_rates]
        grid.run(
            [self.cell(model, *one, 0, leave_out) for one in candidates for model in self.models], "choosing the rate"
        )
        cells = []
        for seed in range(1, self.seeds + 1):
            for (model, name), rate in best_rates(grid.rows).items():
                pretrained = self.cell(model, name, rate, seed, leave_out)
                cells += [pretrained, *self.transfer_cells(pretrained, grid.folder)]
        grid.run(cells, "reporting")

    def cell(self, model: str, name: str, rate: float, seed: int, leave_out: str) -> Cell:
        found = self.model(model)
        optimizer: OptimizerSettings = (
            AdamWSettings(lr=rate, weight_decay=self.adam_decay)
            if name == "Adam"
            else SGDSettings(lr=rate, momentum=0.9, weight_decay=self.sgd_decay)
        )
        recipe = self.recipe(f"{self.name}-{model}", found.settings, seed, leave_out)
        return Cell(
            name=f"{model}-{name.lower()}-{rate:g}-seed{seed}",
            facts={**found.facts, "optimizer": name, "lr": rate, "seed": seed},
            recipe=replace(recipe, optimizer=optimizer),
            read_test=seed > 0,
        )

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        reported = [
            {**row, "where": f"{row['model']}\n{row.get('target', self.data)}"} for row in rows if "accuracy" in row
        ]
        title = f"ResNets pre-trained on {self.data} by Adam or SGD"
        return {
            "optimizer": bars_figure(reported, "where", "optimizer", "accuracy", title=title, label="test accuracy")
        }


def best_rates(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    """The best by validation accuracy, for every model and optimizer."""
    best: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row["seed"] == 0 and "val_accuracy" in row:
            key = (row["model"], row["optimizer"])
            if key not in best or row["val_accuracy"] > best[key]["val_accuracy"]:
                best[key] = row
    return {key: row["lr"] for key, row in best.items()}
