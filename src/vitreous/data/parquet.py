"""Parquet files in the layout of the Hugging Face hub: a column of {bytes, path}, and a column of labels, or of masks.

A picture is found by its row group. The last few row groups stay in memory, for each process on its own.
"""

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vitreous.data.base import Source
from vitreous.data.captioned import caption_column, texts_in, with_captions
from vitreous.data.files import check_regular
from vitreous.data.images import BadPicture, Picture, read_orientation, read_picture
from vitreous.data.legends import Entry, entries_of, find_legend, numbered_entries
from vitreous.data.masks import Legend
from vitreous.data.names import ALL, Layout, Numbered, column, grouped_by_split, label_column_of, numbered, unlabelled
from vitreous.data.parquet_objects import COLUMN as OBJECTS
from vitreous.data.parquet_objects import COLUMNS, read_objects, reads_objects
from vitreous.data.several import from_flags, label_columns, separated, several, several_by_number
from vitreous.data.targets import ClassLabels, Masks, PixelLabels
from vitreous.data.targets.base import Digest
from vitreous.data.targets.pixels import Mask
from vitreous.errors import UserError

IMAGES = ("image", "img", "picture", "images")
LABELS = ("label", "labels", "class", "target", "fine_label")
MASKS = ("mask", "annotation", "segmentation", "segmentation_mask", "semantic_mask", "trimap")
CACHE_BYTES = 128 * 2**20  # unless more is asked for


class RowGroups:
    """The row groups read last. Made anew in a forked process: locks and files do not survive a fork."""

    def __init__(self, max_bytes: int) -> None:
        self.process, self.max_bytes = os.getpid(), max_bytes
        self.lock = threading.Lock()
        self.groups: OrderedDict[tuple[str, int, str], Any] = OrderedDict()
        self.files: dict[str, pq.ParquetFile] = {}

    def get(self, path: str, group: int, column: str) -> Any:
        with self.lock:
            key = (path, group, column)
            if key not in self.groups:
                if path not in self.files:
                    self.files[path] = pq.ParquetFile(path, memory_map=True)
                # Without threads: those of pyarrow would be missing in a forked process.
                table = self.files[path].read_row_group(group, columns=[column], use_threads=False)
                self.groups[key] = table.column(0)
                while len(self.groups) > 1 and sum(held.nbytes for held in self.groups.values()) > self.max_bytes:
                    self.groups.popitem(last=False)
            self.groups.move_to_end(key)
            return self.groups[key]


class Rows:
    """The rows of several files, in one line."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths, self.path, self.folder = [str(path) for path in paths], paths[0], paths[0].parent
        self.files = [_opened(path) for path in paths]
        self.schema = self.files[0].schema_arrow
        self._groups = [
            (number, group) for number, file in enumerate(self.files) for group in range(file.metadata.num_row_groups)
        ]
        rows = [self.files[number].metadata.row_group(group).num_rows for number, group in self._groups]
        self._starts = np.cumsum([0, *rows])
        self._first_rows = [0, *accumulate(file.metadata.num_rows for file in self.files)]  # of each file
        self._sizes = [path.stat().st_size for path in paths]
        self._held_bytes = CACHE_BYTES
        self._cache = RowGroups(self._held_bytes)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _place(self, index: int) -> tuple[int, int, int]:
        """(file, row group, row in it)"""
        at = int(np.searchsorted(self._starts, index, side="right")) - 1
        return *self._groups[at], index - int(self._starts[at])

    def stored(self, index: int, column: str) -> bytes | Path:
        """The picture in a cell; raises BadPicture."""
        number, group, row = self._place(index)
        if self._cache.process != os.getpid():
            self._cache = RowGroups(self._held_bytes)
        try:
            cell = self._cache.get(self.paths[number], group, column)[row].as_py()
        except MemoryError:
            raise
        except Exception as error:
            raise BadPicture(f"row group {group} is damaged ({_reason(error)})") from None
        return stored_in(cell, self.folder)

    def hold(self, pictures: int, runs: int) -> None:
        """The row groups of some runs, at both ends of which there may be rows of others."""
        rows = pictures + runs * int(np.diff(self._starts).max())
        groups = (self.files[number].metadata.row_group(group) for number, group in self._groups)
        total_bytes = sum(group.total_byte_size for group in groups)
        self._held_bytes = max(CACHE_BYTES, total_bytes * min(rows, len(self)) // len(self))
        self._cache = RowGroups(self._held_bytes)

    def where(self, index: int) -> str:
        number = self._place(index)[0]
        return f"{self.paths[number]}:row {index - self._first_rows[number]}"

    def size(self, index: int) -> int:
        """Of the file, in bytes."""
        return self._sizes[self._place(index)[0]]

    def __getstate__(self) -> dict[str, Any]:  # for workers that are spawned and not forked
        return {**self.__dict__, "_cache": None, "files": [], "schema": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _cache=RowGroups(state["_held_bytes"]))


class ParquetSource(Source):
    """Pictures in the rows of parquet files."""

    def __init__(self, name: str, rows: Rows, known: Numbered) -> None:
        self.name, self.rows = name, rows
        self.targets, self.classes, self.notes = known
        self._column = column(rows.schema.names, None, IMAGES, "image", str(rows.path))

    def read(self, index: int) -> Picture:
        return read_picture(self.rows.stored(index, self._column))

    def orientation(self, index: int) -> int:
        return read_orientation(self.rows.stored(index, self._column))

    def where(self, index: int) -> str:
        return self.rows.where(index)

    def size(self, index: int) -> int:
        return self.rows.size(index)

    def hold(self, pictures: int, runs: int) -> None:
        self.rows.hold(pictures, runs)


class ParquetMasks(Masks):
    """A column of masks."""

    def __init__(self, rows: Rows, column: str, legend: Legend) -> None:
        self._rows, self._column, self.legend = rows, column, legend

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> Mask:
        try:
            return self.legend.read(self._rows.stored(index, self._column))
        except BadPicture as error:
            raise BadPicture(f"its mask: {error}") from None

    def update(self, index: int, digest: Digest) -> None:
        """Nothing: masks are in the same file as the pictures, whose name and size are told."""


def stored_in(cell: Any, folder: Path) -> bytes | Path:
    """The picture in a cell: {bytes, path}, or the bytes alone."""
    data, path = (cell.get("bytes"), cell.get("path")) if isinstance(cell, dict) else (cell, None)
    if data is not None:
        return bytes(data)
    if path is None:
        raise BadPicture("no picture in this row")
    return folder / str(path)


def open_parquet(path: Path, layout: Layout, entries: Sequence[Entry] = ()) -> dict[str, Source]:
    """The splits of a parquet file, or of a folder of them. `entries`: the classes of masks, where these are known."""
    found = grouped_by_split([path] if path.is_file() else path.glob("*.parquet"))
    base = path.stem if path.is_file() else path.parent.name if path.name == "data" else path.name
    names = {split: base if split == ALL else f"{base} {split}" for split in found}
    rows = {split: Rows(files) for split, files in found.items()}
    schema = next(iter(rows.values())).schema
    captions = caption_column(schema.names, layout, str(path), {*LABELS, *MASKS, OBJECTS})
    if captions is not None:
        return {split: _with_captions(names[split], part, captions) for split, part in rows.items()}
    if reads_objects(schema, set(LABELS) & set(schema.names), layout, str(path)):
        return {split: _with_objects(names[split], part, layout.max_unreadable) for split, part in rows.items()}
    known = _read_masks(base, rows, layout, entries) or {
        split: _read_labels(part, layout) for split, part in rows.items()
    }
    return {split: ParquetSource(names[split], part, known[split]) for split, part in rows.items()}


def _opened(path: Path) -> pq.ParquetFile:
    try:
        check_regular(path)
        return pq.ParquetFile(path, memory_map=True)
    except Exception as error:  # pyarrow raises nearly anything where a file is damaged
        raise UserError(f"{path}: cannot be read as parquet ({_reason(error)}).") from None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or (str(error) or type(error).__name__).splitlines()[0]


def _features(schema: pa.Schema) -> dict[str, Any]:
    """What the hub's metadata say about each column."""
    try:
        info = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        return dict(info.get("info", {}).get("features", {}))
    except (ValueError, AttributeError):
        return {}


# ---- Labels


def _read_labels(rows: Rows, layout: Layout) -> Numbered:
    where, schema = rows.path, rows.schema
    if flagged := label_columns(schema.names, layout, str(where)):
        values = ([str(value) for part in _column(rows, name) for value in part.to_pylist()] for name in flagged)
        return from_flags(dict(zip(flagged, values, strict=True)), str(where))
    name = label_column_of(schema.names, LABELS, str(where), layout)
    if name is None:
        return unlabelled(len(rows))
    kind = schema.field(name).type
    columns = _column(rows, name)
    if pa.types.is_nested(kind) or layout.label_separator:
        return _read_several(rows, name, columns, layout)
    marks = np.concatenate([np.asarray(values) for values in columns])
    is_text = marks.dtype.kind in "OUS"
    if not is_text and marks.dtype.kind not in "iub":
        raise UserError(f"{where}: column {name!r} holds {kind}, not one label per picture.")
    if not is_text and len(marks) and marks.min() < 0:
        raise UserError(
            f"{where}: {int((marks < 0).sum()):,} rows are unlabelled ({name} {marks.min()}). Leave this file out."
        )
    names = _features(schema).get(name, {}).get("names")
    if names and not is_text:
        if len(marks) and marks.max() >= len(names):
            raise UserError(f"{where}: {name} {marks.max()} but only {len(names)} class names in the file's metadata.")
        return ClassLabels(marks), tuple(map(str, names)), ()
    found = [str(mark) for mark in marks] if is_text else marks.astype(np.int64, copy=False)
    return numbered(found, where.parent, str(where))


def _columns(rows: Rows, name: str) -> list[pa.ChunkedArray]:
    """Of every file."""
    try:
        return [file.read(columns=[name], use_threads=False).column(0) for file in rows.files]
    except Exception as error:
        raise UserError(f"{rows.folder}: column {name!r} cannot be read ({_reason(error)}).") from None


def _column(rows: Rows, name: str) -> list[pa.ChunkedArray]:
    """The same; none of its cells is empty."""
    columns = _columns(rows, name)
    for path, values in zip(rows.paths, columns, strict=True):
        if values.null_count:
            raise UserError(f"{path}: {values.null_count:,} rows have no {name}. Remove them.")
    return columns


def _read_several(rows: Rows, name: str, columns: Sequence[pa.ChunkedArray], layout: Layout) -> Numbered:
    """Of lists of names or numbers; of texts, where a setting says what is between labels."""
    where, kind = str(rows.path), rows.schema.field(name).type
    cells = [cell for values in columns for cell in values.to_pylist()]
    if layout.label_separator and pa.types.is_string(kind):
        return separated(cells, layout.label_separator, rows.folder, where)
    inner = getattr(kind, "value_type", pa.null())
    if not (pa.types.is_integer(inner) or pa.types.is_string(inner) or pa.types.is_large_string(inner)):
        raise UserError(f"{where}: column {name!r} holds {kind}: labels must be names or numbers, or lists of them.")
    if any(label is None for cell in cells for label in cell):
        raise UserError(f"{where}: column {name!r} has lists with an empty label. Fill them in, or leave them out.")
    names = _names_inside(rows.schema, name)
    if names and pa.types.is_integer(inner):
        return several_by_number(cells, names, where)
    return several([[str(label) for label in cell] for cell in cells], rows.folder, where)


def _names_inside(schema: pa.Schema, name: str) -> list[str]:
    """The names of classes in lists, from the hub's metadata."""
    about = _features(schema).get(name, {})
    about = about[0] if isinstance(about, list) and about else about
    about = about.get("feature", about) if isinstance(about, dict) else {}
    names = about.get("names") if isinstance(about, dict) else None
    return [str(name) for name in names] if isinstance(names, list) else []


# ---- Objects


def _with_objects(name: str, rows: Rows, most_bad: int | None) -> Source:
    names = rows.schema.names
    picture = column(names, None, IMAGES, "image", str(rows.path))
    columns = {name: _cells(rows, name) for name in COLUMNS if name in names}
    known = read_objects(columns, rows.schema, lambda index: rows.stored(index, picture), str(rows.path), most_bad)
    return known.labelled_of(ParquetSource(name, rows, (known.targets, known.classes, known.notes)))


def _cells(rows: Rows, name: str) -> list[Any]:
    """Of every file, empty ones too."""
    return [cell for values in _columns(rows, name) for cell in values.to_pylist()]


# ---- Captions


def _with_captions(name: str, rows: Rows, captions: str) -> Source:
    source = ParquetSource(name, rows, unlabelled(len(rows)))
    return with_captions(source, [texts_in(cell) for cell in _cells(rows, captions)])


# ---- Masks


def _read_masks(
    base: str, splits: Mapping[str, Rows], layout: Layout, entries: Sequence[Entry]
) -> dict[str, Numbered] | None:
    """Of all splits, which have the same classes; None where there is no column of masks."""
    first = next(iter(splits.values()))
    name = _mask_column(first, layout)
    if name is None:
        return None
    every = [(rows, index) for rows in splits.values() for index in range(len(rows))]
    known = entries or entries_of(first.folder) or _entries_inside(first.schema)
    legend, notes = find_legend(
        len(every), lambda place: every[place][0].stored(every[place][1], name), known, layout.ignored, base
    )
    notes = (f"{base}: read as pictures with a mask each (the column {name})", *notes)
    return {
        split: (PixelLabels(ParquetMasks(rows, name, legend)), legend.classes, notes) for split, rows in splits.items()
    }


def _mask_column(rows: Rows, layout: Layout) -> str | None:
    """The one that is named; else that of the labels, where it holds pictures, or else one with a usual name."""
    names = rows.schema.names
    if layout.mask_column is not None:
        return column(names, layout.mask_column, (), "mask", str(rows.path))
    if layout.label_column is not None or layout.targets == "labels":
        return None
    usual = [name for name in (*LABELS, *MASKS) if name in names]
    return usual[0] if usual and _holds_pictures(rows.schema.field(usual[0]).type) else None


def _holds_pictures(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(kind.field(number).name == "bytes" for number in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _entries_inside(schema: pa.Schema) -> list[Entry]:
    """What the file says of itself: its metadata `classes`, a list of names, and `ignore_index`."""
    metadata = schema.metadata or {}
    try:
        names, ignored = (json.loads(metadata.get(key, b"null")) for key in (b"classes", b"ignore_index"))
    except ValueError:
        return []
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        return []
    return numbered_entries(names, [ignored] if isinstance(ignored, int) else [])
