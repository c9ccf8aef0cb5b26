"""The data that a model is measured on: that of its run, split as in training, or other data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from vitreous import settings
from vitreous.data.base import Source
from vitreous.data.loader import EvalLoader
from vitreous.data.names import LayoutSettings
from vitreous.data.opening import same_data
from vitreous.data.sources import SPLITS, DataSettings
from vitreous.data.splits import Splits
from vitreous.errors import UserError
from vitreous.recipes.recipe import read_recipe
from vitreous.settings import typed
from vitreous.terminal import note
from vitreous.training.devices import World
from vitreous.weights.trained import Trained

OpenData = Callable[[DataSettings], Splits]

READING = ("max_unreadable", "keep_gb")  # settings that do not change which pictures there are


def data_of(where: str | Path) -> DataSettings | None:
    """The data that a run was trained on; None if unknown."""
    path = Path(where) / "recipe.json"
    return read_recipe(path).data if path.is_file() else None


@dataclass(frozen=True)
class AskedData:
    settings: DataSettings
    is_own: bool  # the run was trained on it: it is split as in training
    name: str  # for messages

    @classmethod
    def find(
        cls,
        where: str | Path,
        data: str | Path | None = None,
        changes: Mapping[str, Any] | None = None,
        *,
        for_labels: bool = False,
    ) -> Self:
        """`data`, or what the run at `where` was trained on, by whatever path. `changes` are settings of other data by
        their dotted names: {"data.layout.label_column": "breed"}. `for_labels` reads the labels of other data, whatever
        the run learned from."""
        own = data_of(where)
        if own is None and data is None:
            raise UserError(f"{where} does not say what data it was trained on; name the data to evaluate it on")
        is_own = own is not None and (data is None or same_data(str(data), own.where))
        known = own if own is not None and is_own else _other(str(data), None if for_labels else own)
        words = {_within_data(name): typed(value) for name, value in (changes or {}).items()}
        for name in words:
            if is_own and name not in READING:
                raise UserError(
                    f"{where} was trained on this data, split as its recipe.json says: --data.{name} is only for other "
                    "data"
                )
        return cls(settings.changed(known, words), is_own, str(data or where))

    def splits(self, open_data: OpenData = DataSettings.build) -> Splits:
        """All parts. Other data without splits is split first."""
        splits = open_data(self.settings)
        if not self.is_own:
            note(*splits.notes)
        return splits

    def part(self, split: str, splits: Splits | None = None) -> Source:
        """One part, of `splits` if they are open already. Other data was not trained on: if it has no splits, all of it
        is that part."""
        own = (splits or self.splits()) if self.is_own else None
        found = self._part(split, own)
        if found is None:
            others = [name for name in SPLITS if name != split and self._part(name, own) is not None]
            raise UserError(f"{self.name}: there is no {split} part; choose another with --split {' or '.join(others)}")
        if own is None:
            note(*found.notes)
        return found

    def _part(self, split: str, own: Splits | None) -> Source | None:
        found: Source | None = self.settings.whole_part(split) if own is None else getattr(own, split)
        return found


def _other(where: str, own: DataSettings | None) -> DataSettings:
    """Other data, with the same targets as a model's own."""
    layout = LayoutSettings(targets=None if own is None else own.layout.targets)
    return DataSettings(where=where, layout=layout)


def _within_data(name: str) -> str:
    if not name.startswith("data."):
        raise UserError(f"--{name}: only data settings can be given here, such as --data.layout.label_column")
    return name.removeprefix("data.")


def batches_for(model: Trained, source: Source, world: World) -> EvalLoader:
    """All pictures, as the model reads them."""
    return EvalLoader(source, model.card.preprocessing, batch_size=256, device=world.device, workers=2)
