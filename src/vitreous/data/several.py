"""Several labels per picture: in one cell, in columns of 0 and 1, in lists, or in a labels.json beside the pictures."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from vitreous.data.base import BadFiles
from vitreous.data.files import read_regular
from vitreous.data.names import Layout, Numbered, column, is_missing, named, numbered
from vitreous.data.skipped import listed
from vitreous.data.targets import ManyLabels
from vitreous.errors import UserError, shown

LABELS_FILE = "labels.json"
MAX_BYTES = 2**30  # of labels.json
FLAGS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}

Rows = Sequence[Collection[str]]  # the labels of each picture


def several(rows: Rows, folder: Path, where: str) -> Numbered:
    """Labels by name, through classes.json where it is in the folder, else sorted. A picture may have none."""
    marks = {label for row in rows for label in row}
    if not marks:
        raise UserError(f"{where}: none of the pictures has a label.")
    # As numbers, where they are: 10 comes after 9.
    unique = sorted(marks, key=int) if all(mark.isdecimal() for mark in marks) else sorted(marks)
    numbers, classes = named(unique, folder)
    places = dict(zip(unique, numbers.tolist(), strict=True))
    return _many([[places[label] for label in row] for row in rows], classes, where)


def several_by_number(rows: Sequence[Collection[int]], classes: Sequence[str], where: str) -> Numbered:
    """Labels by their number among known classes."""
    worst = next((number for row in rows for number in row if not 0 <= number < len(classes)), None)
    if worst is not None:
        raise UserError(f"{where}: a label {worst}, but there are only {len(classes)} class names, numbered from 0.")
    return _many(rows, classes, where)


def _many(rows: Sequence[Collection[int]], classes: Sequence[str], where: str) -> Numbered:
    labels = np.zeros((len(rows), len(classes)), dtype=np.bool_)
    for row, numbers in zip(labels, rows, strict=True):
        row[list(numbers)] = True
    bare = int((~labels.any(axis=1)).sum())
    notes = (f"{where}: {bare:,} of {len(rows):,} pictures have no label at all",) if bare else ()
    return ManyLabels(labels), tuple(classes), notes


# ---- In one cell


def separated(cells: Sequence[str], separator: str, folder: Path, where: str) -> Numbered:
    """'cat;dog'. What is empty between two separators is no label."""
    rows = [[label.strip() for label in cell.split(separator)] for cell in cells]
    empty = [cell for cell, row in zip(cells, rows, strict=True) if not is_missing(cell) and any(map(is_missing, row))]
    targets, classes, notes = several(
        [[label for label in row if not is_missing(label)] for row in rows], folder, where
    )
    if empty:
        notes += (f"{where}: {len(empty):,} pictures have an empty label, which is skipped, such as {empty[0]!r}",)
    return targets, classes, notes


# ---- In columns of 0 and 1


def label_columns(names: Sequence[str], layout: Layout, where: str) -> list[str]:
    """Those that a setting names, with commas between them; none where it names one or none."""
    wanted = layout.label_column
    if wanted is None or wanted in names or "," not in wanted:
        return []
    return [column(names, name.strip(), (), "label", where) for name in wanted.split(",") if name.strip()]


def from_flags(columns: Mapping[str, Sequence[str]], where: str) -> Numbered:
    """By the name of a label, whether each picture has it."""
    for name, cells in columns.items():
        wrong = next((cell for cell in cells if not is_flag(cell)), None)
        if wrong is not None:
            raise UserError(
                f"{where}: column {name!r} holds {shown(wrong)}. If each label has a column of its own, it must "
                "hold 0 or 1 for every picture."
            )
    flags = np.array([[FLAGS[cell.lower()] for cell in cells] for cells in columns.values()], dtype=np.bool_)
    return _many([np.flatnonzero(row).tolist() for row in flags.T], tuple(columns), where)


def is_flag(cell: str) -> bool:
    return cell.lower() in FLAGS


# ---- In labels.json


def labels_file(folder: Path, root: Path) -> Path | None:
    """Beside the pictures of one split, or of all."""
    return next((one / LABELS_FILE for one in (folder, root) if (one / LABELS_FILE).is_file()), None)


def from_file(path: Path, pictures: Sequence[str], root: Path, layout: Layout) -> Numbered:
    """{"a.jpg": ["cat", "dog"], "more/b.jpg": []}, files being named from where it lies. One label for each picture,
    where these are not in lists."""
    try:
        document = json.loads(read_regular(path, MAX_BYTES))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON ({error}).") from None
    if not isinstance(document, dict) or not all(map(_are_labels, document.values())):
        raise UserError(f'{path}: expected labels by file, such as {{"a.jpg": ["cat", "dog"], "b.jpg": []}}.')
    files = [Path(picture).relative_to(path.parent).as_posix() for picture in pictures]
    unnamed = [file for file in files if file not in document]
    if unnamed:
        raise UserError(
            f"{path}: does not mention {len(unnamed):,} of {len(files):,} pictures ({listed(unnamed, 3)}). Add "
            "them, with [] if no label applies, or remove them."
        )
    found = [document[file] for file in files]
    if all(isinstance(labels, str) for labels in found):
        targets, classes, notes = numbered(found, root, str(path))
    else:
        rows = [[labels] if isinstance(labels, str) else labels for labels in found]
        targets, classes, notes = several(rows, root, str(path))
    return targets, classes, (*notes, *_absent(path, document, files, layout))


def _are_labels(value: object) -> bool:
    return (isinstance(value, str) and not is_missing(value)) or (
        isinstance(value, list) and all(isinstance(label, str) and not is_missing(label) for label in value)
    )


def _absent(path: Path, document: Mapping[str, object], files: Sequence[str], layout: Layout) -> tuple[str, ...]:
    """A note of files that are named and are not there; a few may be missing."""
    present = set(files)
    absent = [name for name in document if name not in present and not (path.parent / name).is_file()]
    if len(absent) > BadFiles(path.name, len(files), layout.max_unreadable).limit:
        raise UserError(f"{path}: {len(absent):,} of the files that it names do not exist ({listed(absent, 3)}).")
    return (f"{path}: names files that do not exist: {listed(absent)}",) if absent else ()
