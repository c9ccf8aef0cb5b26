"""Deeper, wider, a wider MLP, smaller patches: what pays? One dimension at a time (paper, appendix D.2, Figure 8)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from matplotlib.figure import Figure

from vitreous.models.flops import TRAINING_FACTOR
from vitreous.models.vit import ViTSettings, as_plain_vit
from vitreous.studies.figures import lines_figure
from vitreous.studies.grid import Cell, Grid, Row
from vitreous.studies.models import HEAD_WIDTH, size_of
from vitreous.studies.study import Study


@dataclass(frozen=True, kw_only=True)
class Shape(Study):
    name: ClassVar[str] = "shape"
    columns: ClassVar[tuple[str, ...]] = ("dimension", "value", "gflop", "encoder_parameters")
    may_be_nothing: ClassVar[tuple[str, ...]] = (*Study.may_be_nothing, "depths", "widths", "mlp_widths", "patches")

    base: str = "vit-s"  # the ViT to change, one dimension at a time
    depths: tuple[int, ...] = (2, 4, 6, 8, 12)  # blocks
    widths: tuple[int, ...] = (64, 128, 192, 256)  # of a token; the MLP four times as wide, heads of 32
    mlp_widths: tuple[int, ...] = (128, 256, 512, 1024)  # of the hidden layer
    patches: tuple[int, ...] = (2, 4, 8)  # in pixels

    @classmethod
    def quick_changes(cls) -> dict[str, Any]:
        small = {"depths": (1, 3), "widths": (32, 64), "mlp_widths": (128, 256), "patches": (7, 14)}
        return {"base": "vit-t", "seeds": 1, **small}

    def run(self, grid: Grid) -> None:
        grid.run([cell for seed in range(self.seeds) for cell in self.cells(seed)])

    def cells(self, seed: int) -> list[Cell]:
        wrong = f"{self.base} is not a plain ViT, whose shape this study changes: give another --base"
        base = as_plain_vit(self.model(self.base).settings, wrong)
        shapes = {
            "depth": {value: replace(base, depth=value) for value in self.depths},
            "width": {value: replace(base, width=value, heads=max(1, value // HEAD_WIDTH)) for value in self.widths},
            "MLP width": {value: base.changed(mlp_width=value) for value in self.mlp_widths},
            "patch": {value: replace(base, patch=value) for value in self.patches},
        }
        return [
            Cell(
                name=f"{dimension.replace(' ', '-').lower()}-{value}-seed{seed}",
                facts={"dimension": dimension, "value": value, **_size(model), "seed": seed},
                recipe=self.recipe(self.name, model, seed),
            )
            for dimension, models in shapes.items()
            for value, model in models.items()
        ]

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        title = f"{self.base} on {self.data}, one dimension changed at a time"
        return {
            "shape": lines_figure(
                rows,
                "gflop",
                "dimension",
                "accuracy",
                title=title,
                labels=("GFLOP per picture, forward", "test accuracy"),
                note="value",
            )
        }


def _size(model: ViTSettings) -> dict[str, Any]:
    parameters, training = size_of(model)
    return {"gflop": round(training / TRAINING_FACTOR / 1e9, 6), "encoder_parameters": parameters}
