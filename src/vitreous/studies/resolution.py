"""Fine-tuning at other picture sizes: the patches stay, so the sequence grows, and positions are interpolated (3.2)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from matplotlib.figure import Figure

from vitreous.data.sources import DataSettings
from vitreous.studies.downstream import is_structured, test_split, transfer_recipe
from vitreous.studies.figures import lines_figure
from vitreous.studies.grid import Cell, Grid, Row
from vitreous.studies.models import size_of
from vitreous.studies.study import Study


@dataclass(frozen=True, kw_only=True)
class Resolution(Study):
    name: ClassVar[str] = "resolution"
    columns: ClassVar[tuple[str, ...]] = ("model", "finetuned_px")

    models: tuple[str, ...] = ("vit-s", "hybrid-s", "resnet-s")  # to pre-train
    sizes_px: tuple[int, ...] = (24, 32, 48, 64)  # to fine-tune at, on the same data; multiples of the patch
    finetune_steps: int = 1000  # at each size
    finetune_rate: float = 0.01  # learning rate (SGD)

    @classmethod
    def quick_changes(cls) -> dict[str, Any]:
        return {
            "models": ("vit-t", "resnet-t"),
            "sizes_px": (28, 42),
            "finetune_steps": 30,
            "seeds": 1,
        }

    def run(self, grid: Grid) -> None:
        cells = []
        for seed in range(self.seeds):
            for name in self.models:
                pretrained = self.pretrained(name, seed)
                cells += [pretrained, *(self.finetuned(pretrained, px, grid) for px in self.sizes_px)]
        grid.run(cells)

    def pretrained(self, name: str, seed: int) -> Cell:
        found = self.model(name)
        return Cell(
            name=f"{name}-seed{seed}",
            facts={**found.facts, "seed": seed},
            recipe=self.recipe(f"{self.name}-{name}", found.settings, seed),
        )

    def finetuned(self, pretrained: Cell, px: int, grid: Grid) -> Cell:
        recipe = pretrained.recipe
        assert recipe is not None
        model = replace(recipe.model, picture_px=(px, px))
        size_of(model)  # an impossible size is reported before anything is trained
        return Cell(
            name=f"{pretrained.name}-{px}px",
            facts={**pretrained.facts, "finetuned_px": px},
            recipe=transfer_recipe(
                str(grid.path(pretrained)),
                model,
                recipe.normalise,
                DataSettings(where=self.data, val_fraction=self.val_fraction, test_split=test_split(self.data)),
                steps=self.finetune_steps,
                rate=self.finetune_rate,
                training=recipe.training,
                keeps_sides=is_structured(self.data),
            ),
        )

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        tuned = [row for row in rows if "finetuned_px" in row]
        title = f"Pre-trained at {self.picture_px} px on {self.data}, fine-tuned at other sizes"
        words = ("side of the pictures in fine-tuning (pixels)", "test accuracy")
        return {"resolution": lines_figure(tuned, "finetuned_px", "model", "accuracy", title=title, labels=words)}
