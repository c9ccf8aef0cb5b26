"""Data sets of the Hugging Face hub, through its own library where that is installed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitreous.data.base import Source
from vitreous.data.images import BadPicture, Picture, read_orientation, read_picture
from vitreous.data.legends import find_legend
from vitreous.data.masks import Legend
from vitreous.data.names import (
    ALL,
    Layout,
    Numbered,
    column,
    label_column_of,
    merged_trainval,
    numbered,
    split_of,
    unlabelled,
)
from vitreous.data.parquet import IMAGES, LABELS, MASKS, stored_in
from vitreous.data.parquet_objects import COLUMNS, read_objects, reads_objects
from vitreous.data.several import separated, several, several_by_number
from vitreous.data.targets import ClassLabels, Masks, PixelLabels
from vitreous.data.targets.base import Digest
from vitreous.data.targets.pixels import Mask
from vitreous.errors import UserError


class Cells:
    """A column of pictures, as they are stored: they are decoded by `images` and `masks`, and by nothing else."""

    def __init__(self, rows: Any, name: str) -> None:
        import datasets

        self._name = name
        self._rows = rows.select_columns([name]).cast_column(name, datasets.Image(decode=False))

    def __len__(self) -> int:
        return len(self._rows)

    def stored(self, index: int) -> bytes | Path:
        """Raises BadPicture."""
        try:
            cell = self._rows[index][self._name]
        except OSError as error:
            raise BadPicture(str(error)) from None
        return stored_in(cell, Path())


class HubSource(Source):
    """One split of a data set of the hub."""

    def __init__(self, name: str, rows: Any, known: Numbered) -> None:
        self.name = name
        self.targets, self.classes, self.notes = known
        self._cells = Cells(rows, column(rows.column_names, None, IMAGES, "image", name))

    def read(self, index: int) -> Picture:
        return read_picture(self._cells.stored(index))

    def orientation(self, index: int) -> int:
        return read_orientation(self._cells.stored(index))

    def where(self, index: int) -> str:
        return f"{self.name}:row {index}"


class HubMasks(Masks):
    """A column of masks."""

    def __init__(self, cells: Cells, legend: Legend) -> None:
        self._cells, self.legend = cells, legend

    def __len__(self) -> int:
        return len(self._cells)

    def read(self, index: int) -> Mask:
        try:
            return self.legend.read(self._cells.stored(index))
        except BadPicture as error:
            raise BadPicture(f"its mask: {error}") from None

    def update(self, index: int, digest: Digest) -> None:
        """Nothing: a data set of the hub is known by its name."""


def _reads_objects(name: str, rows: Any, layout: Layout) -> bool:
    if "objects" not in rows.column_names and layout.targets != "boxes":
        return False
    return reads_objects(rows.features.arrow_schema, set(LABELS) & set(rows.column_names), layout, f"hf:{name}")


def _with_objects(name: str, rows: Any, most_bad: int | None) -> Source:
    cells = Cells(rows, column(rows.column_names, None, IMAGES, "image", name))
    columns = {one: list(rows[one]) for one in COLUMNS if one in rows.column_names}
    known = read_objects(columns, rows.features.arrow_schema, cells.stored, name, most_bad)
    return known.labelled_of(HubSource(name, rows, (known.targets, known.classes, known.notes)))


def _masks(name: str, splits: Mapping[str, Any], layout: Layout) -> dict[str, Numbered] | None:
    """Of all splits, which have the same classes; None where there is no column of masks."""
    mask = _mask_column(name, next(iter(splits.values())), layout) if splits else None
    if mask is None:
        return None
    cells = {split: Cells(rows, mask) for split, rows in splits.items()}
    every = [(one, index) for one in cells.values() for index in range(len(one))]
    legend, notes = find_legend(
        len(every), lambda place: every[place][0].stored(every[place][1]), (), layout.ignored, f"hf:{name}"
    )
    notes = (f"hf:{name}: read as pictures with a mask each (the column {mask})", *notes)
    return {split: (PixelLabels(HubMasks(one, legend)), legend.classes, notes) for split, one in cells.items()}


def _mask_column(name: str, rows: Any, layout: Layout) -> str | None:
    """The one that is named; else that of the labels, where it holds pictures, or else one with a usual name."""
    import datasets

    if layout.mask_column is not None:
        given = column(rows.column_names, layout.mask_column, (), "mask", f"hf:{name}")
        if not isinstance(rows.features[given], datasets.Image):
            raise UserError(f"hf:{name}: column {given!r} holds no pictures, so it cannot hold masks.")
        return given
    if layout.label_column is not None:
        return None
    usual = [one for one in (*LABELS, *MASKS) if one in rows.column_names]
    return usual[0] if usual and isinstance(rows.features[usual[0]], datasets.Image) else None


def _labels(name: str, rows: Any, layout: Layout) -> Numbered:
    label = label_column_of(rows.column_names, LABELS, name, layout)
    if label is None:
        return unlabelled(len(rows))
    marks = list(rows[label])
    if any(mark is None or mark == -1 for mark in marks):
        raise UserError(f"{name}: some pictures have no {label}.")
    if any(isinstance(mark, dict) for mark in marks):
        raise UserError(f"{name}: column {label!r} holds records: labels must be names or numbers, or lists of them.")
    if any(isinstance(mark, list) for mark in marks):
        names = getattr(getattr(rows.features[label], "feature", None), "names", None)
        return several_by_number(marks, names, name) if names else several(_texts(marks), Path(), name)
    if layout.label_separator and all(isinstance(mark, str) for mark in marks):
        return separated(marks, layout.label_separator, Path(), name)
    names = getattr(rows.features[label], "names", None)
    return (ClassLabels(marks), tuple(names), ()) if names else numbered(marks, Path(), name)


def _texts(rows: Sequence[Sequence[object]]) -> list[list[str]]:
    return [[str(label) for label in row] for row in rows]


def open_hub(name: str, layout: Layout) -> dict[str, Source]:
    """The splits of `NAME`, or of `NAME:CONFIGURATION`."""
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"hf:{name}: the Hugging Face library `datasets` is not installed; run pip install 'vitreous[datasets]'."
        ) from None
    try:
        found = datasets.load_dataset(*name.split(":", 1))
    except Exception as error:  # the library raises its own, its network's and its parsers' errors
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"hf:{name}: cannot be loaded ({reason}).") from None
    known = merged_trainval({split: rows for key, rows in found.items() if (split := split_of(key)) is not None})
    if "train" not in known and len(found) == 1:
        known = {ALL: next(iter(found.values()))}
    names = {split: f"{name} {split}" for split in known}
    if known and _reads_objects(name, next(iter(known.values())), layout):
        return {split: _with_objects(names[split], rows, layout.max_unreadable) for split, rows in known.items()}
    targets = _masks(name, known, layout) or {
        split: _labels(names[split], rows, layout) for split, rows in known.items()
    }
    return {split: HubSource(names[split], rows, targets[split]) for split, rows in known.items()}
