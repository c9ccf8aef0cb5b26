"""Class token or mean of the patches? Each at its own learning rate (paper, appendix D.3, Figure 9).

The paper found that mean pooling only seemed to fail because it needs a different rate. So the rate is chosen for each
on validation pictures, with one seed, and results are then reported with several.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from matplotlib.figure import Figure

from vitreous.models.vit import as_vit
from vitreous.studies.figures import lines_figure
from vitreous.studies.grid import Cell, Grid, Row
from vitreous.studies.study import Study, grouped, spread

POOLS = {"class token": {"pool": "class", "num_prefix": 1}, "mean": {"pool": "mean", "num_prefix": 0}}


@dataclass(frozen=True, kw_only=True)
class Head(Study):
    name: ClassVar[str] = "head"
    columns: ClassVar[tuple[str, ...]] = ("pool", "rate")
    values: ClassVar[tuple[str, ...]] = ("val_accuracy", "accuracy")
    unused: ClassVar[tuple[str, ...]] = ("rate",)  # chosen among `rates`

    base: str = "vit-s"  # the model to pool in two ways
    rates: tuple[float, ...] = (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3)  # peak learning rates to choose from

    @classmethod
    def quick_changes(cls) -> dict[str, Any]:
        return {"base": "vit-t", "rates": (5e-4, 2e-3), "seeds": 1}

    def run(self, grid: Grid) -> None:
        grid.run([self.cell(pool, rate, 0, chosen=False) for rate in self.rates for pool in POOLS], "choosing the rate")
        best = best_rates(grid.rows)
        cells = [self.cell(pool, best[pool], seed, chosen=True) for seed in range(1, self.seeds + 1) for pool in best]
        grid.run(cells, "reporting")

    def cell(self, pool: str, rate: float, seed: int, chosen: bool) -> Cell:
        model = as_vit(self.model(self.base).settings, f"{self.base} has no class token; give --base a ViT or a hybrid")
        study = replace(self, rate=rate)
        return Cell(
            name=f"{pool.replace(' ', '-')}-{rate:g}-seed{seed}",
            facts={"pool": pool, "rate": rate, "seed": seed},
            recipe=study.recipe(self.name, replace(model, **POOLS[pool]), seed),  # type: ignore[arg-type]
            read_test=chosen,
        )

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        choices = [row for row in rows if row["seed"] == 0]
        title = f"{self.base} on {self.data}"
        return {
            "head": lines_figure(
                choices,
                "rate",
                "pool",
                "val_accuracy",
                title=title,
                labels=("peak learning rate", "validation accuracy"),
            )
        }

    def findings(self, rows: Sequence[Row]) -> list[str]:
        reported = grouped([row for row in rows if "accuracy" in row], ("pool", "rate"), ("accuracy",))
        return [f"{pool} at its rate of {rate:g}: {spread(found)} on test" for (pool, rate), (found,) in reported]


def best_rates(rows: Sequence[Row]) -> dict[str, float]:
    """The best by validation accuracy, for each way of pooling."""
    best: dict[str, Row] = {}
    for row in rows:
        if row["seed"] != 0 or "val_accuracy" not in row:
            continue
        if row["pool"] not in best or row["val_accuracy"] > best[row["pool"]]["val_accuracy"]:
            best[row["pool"]] = row
    return {pool: row["rate"] for pool, row in best.items()}
