"""What a run was trained on, and which part of it, or of other data, is asked about."""

from collections.abc import Callable
from pathlib import Path

from vitreous import settings
from vitreous.data.names import ALL
from vitreous.data.sources import DataSettings, Source, Splits, open_sources, same_data
from vitreous.errors import UserError
from vitreous.recipes.recipe import Recipe
from vitreous.terminal import note

OpenData = Callable[[DataSettings], Splits]


def part(where: str | Path, data: str | None, split: str) -> Source:
    """A split of the data that the run at `where` was trained on, as it was split then; or of other data."""
    own = own_data(where, data)
    if data is None and own is None:
        raise UserError(f"{where} does not say what it was trained on; name the data to evaluate on")
    if own is not None:
        source: Source | None = getattr(own.build(), split)
    else:
        found = open_sources(str(data))
        source = found.get(split, found.get(ALL))  # what is not split has no part that was trained on: all counts
        note(*(source.notes if source is not None else ()))
    if source is None:
        raise UserError(f"{data or where}: there is no {split} part")
    return source


def own_data(where: str | Path, data: str | None) -> DataSettings | None:
    """What a run was trained on, where that is what is asked for, by whatever path; None for other data."""
    own = data_of(where)
    return own if own is not None and (data is None or same_data(data, own.where)) else None


def data_of(where: str | Path) -> DataSettings | None:
    """What a run was trained on; None where that is not known."""
    path = Path(where) / "recipe.json"
    return settings.load(Recipe, path).data if path.is_file() else None
