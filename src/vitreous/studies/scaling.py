"""What does compute buy? Transfer accuracy against the FLOPs of pre-training (paper, 4.4, Figure 5).

Every model is pre-trained for several lengths, each a separate run with its own schedule, on all training pictures;
then fine-tuned on other sets with few examples, with one setting for all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from matplotlib.figure import Figure

from vitreous.studies.curve import PowerLaw, fit_power_law
from vitreous.studies.figures import Panel, scaling_figure
from vitreous.studies.grid import Cell, Grid, Row
from vitreous.studies.models import FAMILIES, size_of
from vitreous.studies.study import TransferStudy

ALL_SIZES = tuple(f"{family.lower()}-{size}" for size in ("s", "m", "l") for family in FAMILIES)


@dataclass(frozen=True, kw_only=True)
class Scaling(TransferStudy):
    name: ClassVar[str] = "scaling"
    columns: ClassVar[tuple[str, ...]] = ("model", "length", "pretraining_flops", "target")
    unused: ClassVar[tuple[str, ...]] = ("steps",)  # `lengths` replaces it

    models: tuple[str, ...] = ALL_SIZES  # to compare; also any of the catalogue
    lengths: tuple[int, ...] = (1000, 3000, 9000)  # optimizer steps of pre-training

    @classmethod
    def quick_changes(cls) -> dict[str, Any]:
        return {"models": ("vit-t", "hybrid-t", "resnet-t"), "lengths": (15, 30, 60), "seeds": 1}

    def run(self, grid: Grid) -> None:
        leave_out = self.leave_out(grid)
        cells = []
        for seed in range(self.seeds):
            for length in sorted(self.lengths):  # short ones first: all models have a point soon
                for model in self.models:
                    pretrained = self.cell(model, length, seed, leave_out)
                    cells += [pretrained, *self.transfer_cells(pretrained, grid.folder)]
        grid.run(cells)

    def cell(self, model: str, length: int, seed: int, leave_out: str) -> Cell:
        found = self.model(model)
        recipe = self.recipe(f"{self.name}-{model}", found.settings, seed, leave_out)
        return Cell(
            name=f"{model}-{length}-seed{seed}",
            facts={
                **found.facts,
                "length": length,
                "pretraining_flops": size_of(found.settings)[1] * length * self.batch_size,
                "seed": seed,
            },
            recipe=replace(
                recipe,
                average=replace(recipe.average, factor=0.995 if length < 2000 else 0.999),
                training=replace(recipe.training, steps=length),
            ),
        )

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        panels = [Panel(title, some, "accuracy", "test accuracy") for title, some in self._panels(rows)]
        return {"figure5": scaling_figure(panels, [self.curves(panel.rows) for panel in panels])}

    def _panels(self, rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
        """Our own test set, every other set and, if there are several, their mean, as in the paper."""
        panels = [(f"tested on {self.data}", [row for row in rows if "target" not in row])]
        panels += [
            (f"fine-tuned on {where}", [row for row in rows if row.get("target") == where]) for where in self.transfer
        ]
        if len(self.transfer) > 1:
            panels.append(("mean of all transfers", transfer_means(rows, len(self.transfer))))
        return panels if self.transfer_steps else panels[:1]

    def curves(self, rows: Sequence[Row]) -> dict[str, PowerLaw]:
        found = {}
        for family in dict.fromkeys(row["family"] for row in rows):
            some = [row for row in rows if row["family"] == family and "accuracy" in row]
            law = fit_power_law([row["pretraining_flops"] for row in some], [1 - row["accuracy"] for row in some])
            if law is not None:
                found[family] = law
        return found

    def findings(self, rows: Sequence[Row]) -> list[str]:
        return [
            f"{title}, {family}: {law} (rms {law.residual:.4f})"
            for title, some in self._panels(rows)
            for family, law in self.curves(some).items()
        ]


def transfer_means(rows: Sequence[Row], num_targets: int) -> list[Row]:
    """One row for every pre-trained model that was transferred to all sets."""
    by_start: dict[str, list[Row]] = {}
    for row in rows:
        if "target" in row and "accuracy" in row:
            by_start.setdefault(f"{row['model']} {row['length']} {row['seed']}", []).append(row)
    return [
        {**some[0], "accuracy": sum(row["accuracy"] for row in some) / num_targets}
        for some in by_start.values()
        if len(some) == num_targets
    ]
