"""Which position embedding, and added where? (paper, appendix D.4, Table 8)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from matplotlib.figure import Figure

from vitreous.models.vit import ABSOLUTE, PositionKind, PositionPlace, ViTSettings, as_vit
from vitreous.studies.figures import bars_figure
from vitreous.studies.grid import Cell, Grid, Row
from vitreous.studies.study import Study

PAPER_NAMES = {"learned": "1-D", "learned-2d": "2-D", "sincos": "sine-cosine", "bias": "bias, each layer"}
PLACE_NAMES = {
    "stem": "added to the patches",
    "every-layer": "added in every layer",
    "every-layer-shared": "added in every layer, shared",
}


@dataclass(frozen=True, kw_only=True)
class Positions(Study):
    name: ClassVar[str] = "positions"
    columns: ClassVar[tuple[str, ...]] = ("positions", "place")
    choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "kinds": get_args(PositionKind),
        "places": get_args(PositionPlace),
    }

    base: str = "vit-s"  # the model whose positions to change
    kinds: tuple[str, ...] = ("none", "learned", "learned-2d", "relative")  # also: sincos, bias, bias-shared
    places: tuple[str, ...] = ("stem", "every-layer", "every-layer-shared")  # for absolute positions

    @classmethod
    def quick_changes(cls) -> dict[str, Any]:
        return {"base": "vit-t"}

    def run(self, grid: Grid) -> None:
        grid.run([cell for seed in range(self.seeds) for cell in self.cells(seed)])

    def cells(self, seed: int) -> list[Cell]:
        found = []
        for kind in self.kinds:
            for place in self.places if kind in ABSOLUTE else ("stem",):
                model = self._model(kind, place)
                found.append(
                    Cell(
                        name=f"{kind}-{place}-seed{seed}",
                        facts={"positions": kind, "place": place if kind in ABSOLUTE else "-", "seed": seed},
                        recipe=self.recipe(self.name, model, seed),
                    )
                )
        return found

    def _model(self, kind: str, place: str) -> ViTSettings:
        wrong = f"{self.base} has no position embeddings; give --base a ViT or a hybrid"
        return as_vit(self.model(self.base).settings, wrong).changed(positions=kind, positions_where=place)

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        labelled = [
            {**row, "kind": PAPER_NAMES.get(row["positions"], row["positions"]), "place": _place_name(row)}
            for row in rows
        ]
        title = f"Position embeddings of {self.base} on {self.data}"
        return {"positions": bars_figure(labelled, "kind", "place", "accuracy", title=title, label="test accuracy")}


def _place_name(row: Row) -> str:
    if row["positions"] in ABSOLUTE:
        return PLACE_NAMES[row["place"]]
    return "no positions" if row["positions"] == "none" else "within the attention"
