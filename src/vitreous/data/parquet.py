"""Parquet files in the layout of the Hugging Face hub: a column of {bytes, path}, and a column of labels.

A picture is found by its row group. The last few row groups stay in memory, for each process on its own.
"""

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vitreous.data.base import Source
from vitreous.data.files import check_regular
from vitreous.data.images import BadPicture, Picture, read_picture
from vitreous.data.names import ALL, Layout, Numbered, column, grouped_by_split, label_column_of, numbered, unlabelled
from vitreous.data.targets import ClassLabels
from vitreous.errors import UserError

IMAGES = ("image", "img", "picture", "images")
LABELS = ("label", "labels", "class", "target", "fine_label")
CACHE_BYTES = 128 * 2**20


class RowGroups:
    """The row groups read last. Made anew in a forked process: locks and files do not survive a fork."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.groups: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self.files: dict[str, pq.ParquetFile] = {}

    def get(self, path: str, group: int, image_column: str) -> Any:
        with self.lock:
            key = (path, group)
            if key not in self.groups:
                if path not in self.files:
                    self.files[path] = pq.ParquetFile(path, memory_map=True)
                # Without threads: those of pyarrow would be missing in a forked process.
                table = self.files[path].read_row_group(group, columns=[image_column], use_threads=False)
                self.groups[key] = table.column(0)
                while len(self.groups) > 1 and sum(held.nbytes for held in self.groups.values()) > CACHE_BYTES:
                    self.groups.popitem(last=False)
            self.groups.move_to_end(key)
            return self.groups[key]


class ParquetSource(Source):
    """Pictures in the rows of parquet files."""

    def __init__(self, name: str, paths: Sequence[Path], layout: Layout) -> None:
        self.name = name
        self._paths, self._folder = [str(path) for path in paths], paths[0].parent
        files = [_opened(path) for path in paths]
        self._image_column = column(files[0].schema_arrow.names, None, IMAGES, "image", self._paths[0])
        self._groups = [
            (number, group) for number, file in enumerate(files) for group in range(file.metadata.num_row_groups)
        ]
        rows = [files[number].metadata.row_group(group).num_rows for number, group in self._groups]
        self._starts = np.cumsum([0, *rows])
        self._first_rows = [0, *accumulate(file.metadata.num_rows for file in files)]  # of each file
        self._sizes = [path.stat().st_size for path in paths]
        self.targets, self.classes, self.notes = _read_labels(paths, files, layout)
        self._cache = RowGroups()

    def _place(self, index: int) -> tuple[int, int, int]:
        """(file, row group, row in it)"""
        at = int(np.searchsorted(self._starts, index, side="right")) - 1
        return *self._groups[at], index - int(self._starts[at])

    def read(self, index: int) -> Picture:
        number, group, row = self._place(index)
        if self._cache.process != os.getpid():
            self._cache = RowGroups()
        try:
            cell = self._cache.get(self._paths[number], group, self._image_column)[row].as_py()
        except MemoryError:
            raise
        except Exception as error:
            raise BadPicture(f"row group {group} is damaged ({_reason(error)})") from None
        return read_cell(cell, self._folder)

    def where(self, index: int) -> str:
        number = self._place(index)[0]
        return f"{self._paths[number]}:row {index - self._first_rows[number]}"

    def size(self, index: int) -> int:
        return self._sizes[self._place(index)[0]]

    def __getstate__(self) -> dict[str, Any]:  # for workers that are spawned and not forked
        return {**self.__dict__, "_cache": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _cache=RowGroups())


def read_cell(cell: Any, folder: Path) -> Picture:
    """The picture in a cell: {bytes, path}, or the bytes alone."""
    data, path = (cell.get("bytes"), cell.get("path")) if isinstance(cell, dict) else (cell, None)
    if data is not None:
        return read_picture(data)
    if path is None:
        raise BadPicture("no picture in this row")
    return read_picture(folder / path)


def open_parquet(path: Path, layout: Layout) -> dict[str, Source]:
    """The splits of a parquet file, or of a folder of them."""
    found = grouped_by_split([path] if path.is_file() else path.glob("*.parquet"))
    base = path.stem if path.is_file() else path.parent.name if path.name == "data" else path.name
    return {
        split: ParquetSource(base if split == ALL else f"{base} {split}", files, layout)
        for split, files in found.items()
    }


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


def _read_labels(paths: Sequence[Path], files: Sequence[pq.ParquetFile], layout: Layout) -> Numbered:
    where, schema = paths[0], files[0].schema_arrow
    name = label_column_of(schema.names, LABELS, str(where), layout)
    if name is None:
        return unlabelled(sum(file.metadata.num_rows for file in files))
    kind = schema.field(name).type
    if pa.types.is_nested(kind):
        raise UserError(f"{where}: column {name!r} holds {kind}: several labels per picture are not supported yet.")
    try:
        columns = [file.read(columns=[name], use_threads=False).column(0) for file in files]
    except Exception as error:
        raise UserError(f"{where.parent}: column {name!r} cannot be read ({_reason(error)}).") from None
    for path, values in zip(paths, columns, strict=True):
        if values.null_count:
            raise UserError(f"{path}: {values.null_count:,} rows have no {name}. Remove them.")
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
    return numbered(
        [str(mark) for mark in marks] if is_text else marks.astype(np.int64).tolist(), where.parent, str(where)
    )
