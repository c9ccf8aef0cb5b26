"""Data sets of the Hugging Face hub, through its own library where that is installed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitreous.data.base import Source
from vitreous.data.images import BadPicture, Picture
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
from vitreous.data.parquet import IMAGES, LABELS, read_cell
from vitreous.data.several import separated, several, several_by_number
from vitreous.data.targets import ClassLabels
from vitreous.errors import UserError


class HubSource(Source):
    """One split of a data set of the hub."""

    def __init__(self, name: str, rows: Any, layout: Layout) -> None:
        import datasets

        self.name = name
        self._image_column = column(rows.column_names, None, IMAGES, "image", name)
        if "objects" in rows.column_names and not set(LABELS) & set(rows.column_names) and layout.need_labels:
            raise UserError(f"hf:{name}: boxes of the hub are not read from there. Name its parquet files, downloaded.")
        label = label_column_of(rows.column_names, LABELS, name, layout)
        self.targets, self.classes, self.notes = _labels(name, rows, label, layout)
        # Bytes as stored: pictures are decoded by read_picture and by nothing else.
        self._rows = rows.select_columns([self._image_column]).cast_column(
            self._image_column, datasets.Image(decode=False)
        )

    def read(self, index: int) -> Picture:
        try:
            cell = self._rows[index][self._image_column]
        except OSError as error:
            raise BadPicture(str(error)) from None
        return read_cell(cell, Path())

    def where(self, index: int) -> str:
        return f"{self.name}:row {index}"


def _labels(name: str, rows: Any, label: str | None, layout: Layout) -> Numbered:
    if label is None:
        return unlabelled(len(rows))
    marks = list(rows[label])
    if any(mark is None or mark == -1 for mark in marks):
        raise UserError(f"{name}: some pictures have no {label}.")
    if any(isinstance(mark, dict) for mark in marks):
        raise UserError(f"{name}: column {label!r} holds records: labels are names or numbers, or lists of them.")
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
    return {split: HubSource(f"{name} {split}", rows, layout) for split, rows in known.items()}
