"""A table of paths and labels, or of paths and masks: CSV with commas, semicolons or tabs, with a header or without."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TextIO

from vitreous.batch import UNLABELLED
from vitreous.data.base import BadFiles, Source
from vitreous.data.captioned import CAPTIONS, caption_column, texts_in, with_captions
from vitreous.data.files import is_regular, open_regular
from vitreous.data.folder import FileSource
from vitreous.data.images import HEIC_SUFFIXES, SUFFIXES
from vitreous.data.legends import entries_of
from vitreous.data.names import (
    ALL,
    Layout,
    Numbered,
    column,
    is_missing,
    label_column_of,
    matched,
    numbered,
    separator_in,
    split_of,
    unlabelled,
)
from vitreous.data.pairs import Pairs
from vitreous.data.segmented import with_masks
from vitreous.data.several import from_flags, is_flag, label_columns, separated
from vitreous.data.skipped import listed
from vitreous.errors import UserError

PATHS = ("path", "file", "image", "filename", "file_name", "image_path", "filepath")
LABELS = ("label", "class", "labels", "target", "category")
MASKS = ("mask", "mask_path", "label_path", "annotation", "annotation_path", "segmentation")
SPLIT = "split"
DELIMITERS = (",", ";", "\t")
PEEKED = 20  # lines by which the delimiter is found
MAX_LINE = 2**20  # characters


class Row(NamedTuple):
    line: int
    file: str  # as written
    label: str  # or several, or the mask's file
    split: str
    flags: tuple[str, ...] = ()  # of labels that have a column each


class Cells(NamedTuple):
    """A table as it stands in its file."""

    names: list[str]  # of the columns: their numbers, from 1, where there is no header
    has_header: bool
    rows: list[list[str]]
    lines: list[int]  # of each row

    def column(self, name: str) -> list[str]:
        place = self.names.index(name)
        return [row[place] for row in self.rows]


def open_table(path: Path, layout: Layout) -> dict[str, Source]:
    """The splits of a table: by its column `split`, where it has one.

    Relative paths start from the table's own folder. Paths may lead anywhere: the table is the user's own.
    """
    cells = _cells(path, layout)
    captions = caption_column(cells.names, layout, str(path), {*LABELS, *MASKS})
    if captions is not None:
        return _with_captions(path, cells, captions, layout)
    splits: dict[str, list[Row]] = {}
    rows, flagged = _rows(path, cells, layout)
    have_masks = _name_masks(rows)
    for row in rows:
        if not row.label and not (have_masks or flagged or layout.label_separator):
            mark = next(filter(None, (separator_in(one.label) for one in rows)), None)
            hint = f" Where pictures have several or none: --data.layout.label_separator '{mark}'." if mark else ""
            raise UserError(f"{path}, line {row.line}: no label. Fill it in, or remove the line.{hint}")
        splits.setdefault(_split(path, row.line, row.split), []).append(row)
    if not splits:
        raise UserError(f"{path}: no rows.")
    if ALL in splits and len(splits) > 1:
        raise UserError(
            f"{path}: some rows name a split and {len(splits[ALL])} do not. Fill in the column, or remove it."
        )
    _check_files(path, [row.file for row in rows], layout)
    if have_masks:
        _check_files(path, [row.label for row in rows if row.label], layout)
        pairs = {split: _pairs(path, rows) for split, rows in splits.items()}
        return with_masks(path.stem, pairs, entries_of(path.parent), layout.ignored)
    return {name: _source(path, name, rows, flagged, layout) for name, rows in splits.items()}


def _split(path: Path, line: int, word: str) -> str:
    name = split_of(word) if word else ALL
    if name is None:
        raise UserError(f"{path}, line {line}: split {word!r} is not train, val or test.")
    return "train" if name == "trainval" else name


def _name_masks(rows: Sequence[Row]) -> bool:
    """Whether all labels that there are name pictures; a label may be missing, as a mask may be."""
    labels = [row.label for row in rows if row.label]
    return bool(labels) and all(map(_is_picture, labels))


def _pairs(table: Path, rows: Sequence[Row]) -> Pairs:
    masks = [str(table.parent / row.label) if row.label else "" for row in rows]
    note = f"{table}: read as pictures with a mask each, since two of its columns name pictures"
    return Pairs([str(table.parent / row.file) for row in rows], masks, [note])


def _check_files(table: Path, files: Sequence[str], layout: Layout) -> None:
    """Some may be missing, as some may be unreadable; more are a sign that the paths start from elsewhere."""
    missing = [file for file in files if not is_regular(table.parent / file)]
    if len(missing) > BadFiles(table.name, len(files), layout.max_unreadable).limit:
        raise UserError(
            f"{table}: {len(missing):,} of its {len(files):,} files do not exist or are not regular files, such as "
            f"{missing[0]}. Paths are relative to {table.parent}."
        )


def _source(table: Path, split: str, rows: Sequence[Row], flagged: Sequence[str], layout: Layout) -> FileSource:
    name = table.stem if split == ALL else f"{table.stem} {split}"
    return FileSource(name, [str(table.parent / row.file) for row in rows], *_known(table, rows, flagged, layout))


def _known(table: Path, rows: Sequence[Row], flagged: Sequence[str], layout: Layout) -> Numbered:
    if flagged:
        columns = zip(flagged, zip(*(row.flags for row in rows), strict=True), strict=True)
        targets, classes, notes = from_flags(dict(columns), str(table))
        return targets, classes, (*notes, f"{table}: several labels per picture, in the columns {listed(flagged)}")
    labels = [row.label for row in rows]
    if layout.label_separator:
        return separated(labels, layout.label_separator, table.parent, str(table))
    numeric = all(label.isdecimal() for label in labels)  # 10 comes after 9
    return numbered([int(label) for label in labels] if numeric else labels, table.parent, str(table))


def _with_captions(path: Path, cells: Cells, captions: str, layout: Layout) -> dict[str, Source]:
    """A picture may have several rows, one per caption."""
    pictures = PATHS if cells.has_header else [name for name in cells.names if _is_picture(cells.column(name)[0])]
    files = cells.column(column(cells.names, layout.path_column, pictures, "path", str(path)))
    words = cells.column(SPLIT) if SPLIT in cells.names else [""] * len(files)
    texts: dict[str, dict[str, list[str]]] = {}  # by split and file
    for line, file, text, word in zip(cells.lines, files, cells.column(captions), words, strict=True):
        split = _split(path, line, word)
        texts.setdefault(split, {}).setdefault(file, []).extend(texts_in(text))
    _check_files(path, list(dict.fromkeys(files)), layout)
    found = {}
    for split, by_file in texts.items():
        name = path.stem if split == ALL else f"{path.stem} {split}"
        paths = [str(path.parent / file) for file in by_file]
        found[split] = with_captions(FileSource(name, paths, *unlabelled(len(paths))), list(by_file.values()))
    return found


# ---- Rows and columns


def _rows(path: Path, cells: Cells, layout: Layout) -> tuple[list[Row], list[str]]:
    """And the names of labels that have a column each."""
    flagged = _flag_columns(path, cells, layout)
    find = _columns_by_name if cells.has_header else _columns_by_number
    others = replace(layout, need_labels=False, label_column=None) if flagged else layout
    file_column, label_column, split_column = find(path, cells, others)
    files = cells.column(file_column)
    if layout.label_pattern is not None:
        labels = matched(layout.label_pattern, files, path)
    else:
        labels = cells.column(label_column) if label_column else [""] * len(files)
    if not (layout.need_labels or flagged) and any(
        map(is_missing, labels)
    ):  # pictures of which some have labels are learned from
        labels = [UNLABELLED] * len(files)
    splits = cells.column(split_column) if split_column else [""] * len(files)
    flags = zip(*map(cells.column, flagged), strict=True) if flagged else [()] * len(files)
    return [Row(*row) for row in zip(cells.lines, files, labels, splits, flags, strict=True)], flagged


def _flag_columns(path: Path, cells: Cells, layout: Layout) -> list[str]:
    """Those that are named; or all that are left beside paths and splits, where a header names no labels and there is
    nothing but 0 and 1 in them."""
    given = label_columns(cells.names, layout, str(path))
    one_is_named = layout.label_column or layout.label_pattern or layout.mask_column or not cells.has_header
    if given or one_is_named or not layout.need_labels:
        return given
    left = [name for name in cells.names if name not in (layout.path_column, *PATHS, SPLIT)]
    if len(left) < 2 or set(left) & {*LABELS, *MASKS} or not cells.rows:
        return []
    return left if all(is_flag(cell) for name in left for cell in cells.column(name)) else []


Columns = tuple[str, str | None, str | None]  # the names of those with paths, labels and splits


def _columns_by_name(path: Path, cells: Cells, layout: Layout) -> Columns:
    files = column(cells.names, layout.path_column, PATHS, "path", str(path))
    labels = None if layout.label_pattern else _label_or_mask_column(path, cells, layout)
    return files, labels, SPLIT if SPLIT in cells.names else None


def _label_or_mask_column(path: Path, cells: Cells, layout: Layout) -> str | None:
    if layout.mask_column is not None:
        return column(cells.names, layout.mask_column, (), "mask", str(path))
    masks = [name for name in MASKS if name in cells.names]
    if masks and layout.label_column is None and not set(LABELS) & set(cells.names):
        return masks[0]
    return label_column_of(cells.names, LABELS, str(path), layout)


def _columns_by_number(path: Path, cells: Cells, layout: Layout) -> Columns:
    """Without a header: the first column that looks like it has the paths, one of nothing but splits has these, and
    if one more is left, it has the labels."""
    usual = [name for name in cells.names if _is_picture(cells.column(name)[0])]
    files = column(cells.names, layout.path_column, usual, "path", str(path))
    others = [name for name in cells.names if name not in (files, layout.label_column, layout.mask_column)]
    splits = [name for name in others if all(cell.isalpha() and split_of(cell) for cell in cells.column(name))]
    left = [name for name in others if name not in splits]
    labels = None
    if layout.label_column is not None or layout.mask_column is not None:
        wanted = layout.mask_column or layout.label_column
        labels = column(cells.names, wanted, (), "label", str(path))
    elif layout.label_pattern is None and len(left) == 1:
        labels = left[0]
    elif layout.label_pattern is None and layout.need_labels:
        raise UserError(
            f"{path}: has no header, and {len(left)} columns that may hold the labels. Name one by its number with "
            "--data.layout.label_column."
        )
    return files, labels, splits[0] if splits else None


def _cells(path: Path, layout: Layout) -> Cells:
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            delimiter = _delimiter(list(islice(_lines(file), PEEKED)), path, layout)
            file.seek(0)
            reader = csv.reader(_lines(file), delimiter=delimiter, strict=True)  # so that a lost quote is an error
            found = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read as a table ({reason}).") from None
    if not found:
        raise UserError(f"{path}: empty.")
    names = found[0][1]
    has_header = not any(map(_is_picture, names))
    if has_header:
        found = found[1:]
    else:
        names = [str(number) for number in range(1, len(names) + 1)]
    for line, row in found:
        if len(row) > len(names):
            raise UserError(
                f"{path}, line {line}: {len(row)} cells, but the first line has {len(names)}. Put a text that contains "
                f"the separator {delimiter!r} into quotes."
            )
    rows = [row + [""] * (len(names) - len(row)) for _, row in found]
    return Cells(names, has_header, rows, [line for line, _ in found])


def _is_picture(cell: str) -> bool:
    return cell.lower().endswith((*SUFFIXES, *HEIC_SUFFIXES))


# ---- Lines


def _lines(file: TextIO) -> Iterator[str]:
    """A file without line ends is not read in one piece."""
    while line := file.readline(MAX_LINE):
        if len(line) == MAX_LINE:
            raise csv.Error(f"a line of {MAX_LINE:,} characters or more")
        yield line


def _delimiter(lines: Sequence[str], path: Path, layout: Layout) -> str:
    """The one that leaves known names or a picture's path in the first line, and cuts all lines alike, into most."""
    named = (layout.path_column, layout.label_column, layout.mask_column, layout.caption_column)
    known = {*PATHS, *LABELS, *MASKS, *CAPTIONS, *named}

    def fits(delimiter: str) -> tuple[bool, bool, int]:
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=delimiter) if row]
        widths = {len(row) for row in rows}
        is_clear = bool(rows) and any(cell in known or _is_picture(cell) for cell in rows[0])
        return is_clear, len(widths) == 1, max(widths, default=0)

    usual = sorted(DELIMITERS, key=lambda delimiter: (delimiter == "\t") != (path.suffix.lower() == ".tsv"))
    return max(usual, key=fits)
