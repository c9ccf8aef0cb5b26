"""Names in data sets: which split a file or folder belongs to, and what its classes are called."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from vitreous.batch import UNLABELLED
from vitreous.data.files import read_regular
from vitreous.data.targets import ClassLabels, NoTargets, Targets
from vitreous.data.targets.base import Indices
from vitreous.errors import UserError, did_you_mean, first_line, shown

T = TypeVar("T")

ALL = "all"  # the only split of a set that is not split
MAX_CLASSES_BYTES = 64 * 2**20  # of classes.json
SEPARATORS = ",;|"  # that people write between several labels
_SPLIT = re.compile(r"(trainval|train(?:ing)?|val(?:id(?:ation)?)?|dev|test(?:ing)?)(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class LayoutSettings:
    """Where a data set holds what is known of its pictures, as far as it does not say so itself."""

    label_column: str | None = None  # with the labels, in parquet and tables, by number without a header; or several
    path_column: str | None = None  # the column with the paths, in tables
    label_separator: str | None = None  # what stands between several labels in one cell, such as ; in cat;dog
    label_pattern: str | None = None  # where file names hold the labels: a regular expression such as (.+)_\d+
    targets: Literal["labels", "masks", "boxes", "instances", "captions"] | None = None  # of a set that has several
    mask_column: str | None = None  # the column with the masks, in parquet and tables
    caption_column: str | None = None  # the column with the captions, in parquet and tables
    ignored: str | None = None  # values in masks that do not count: 0,255 or #000000; none: 255, where it is no class


@dataclass(frozen=True, kw_only=True)
class Layout(LayoutSettings):
    """With what is asked of all pictures: see DataSettings."""

    need_labels: bool = True
    max_unreadable: int | None = None


def split_of(name: str) -> str | None:
    """train, trainval, val or test, for `train-00000-of-00002`, `validation`, `Test` ..., else None."""
    match = _SPLIT.match(name)
    if match is None:
        return None
    word = match[1].lower()
    if word == "trainval":
        return word
    return "val" if word[0] in "vd" else "train" if word.startswith("train") else "test"


def grouped_by_split(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Files by split. A lone file is not split; trainval is train where that is not there beside it."""
    files = sorted(paths)
    found: dict[str, list[Path]] = {}
    for path in files:
        found.setdefault(split_of(path.name) or ALL, []).append(path)
    if len(files) == 1 or set(found) == {ALL}:
        return {ALL: files}
    if ALL in found:
        raise UserError(
            f"{found[ALL][0]}: cannot tell which split this file belongs to; begin its name with train, val or test."
        )
    return merged_trainval(found)


def merged_trainval(found: dict[str, T]) -> dict[str, T]:
    """trainval is train, unless train is there beside it."""
    trainval = found.pop("trainval", None)
    return found if trainval is None or "train" in found else {"train": trainval, **found}


def class_table(folder: Path) -> list[tuple[set[str], str]]:
    """classes.json in a folder: for each class, in order, the marks it goes by in the data, and its readable name."""
    rows = [(marks, str(name)) for _, marks, name in class_rows(folder)]
    # ImageNet has two classes called crane: names must tell classes apart.
    times = Counter(name for _, name in rows)
    return [
        (marks, name if times[name] == 1 else f"{name} ({', '.join(sorted(marks - {name}))})") for marks, name in rows
    ]


def class_rows(folder: Path) -> list[tuple[int, set[str], str | None]]:
    """classes.json as it is written: the number, the marks and the name of each class, by number; nothing where there
    is no such file.

    It is a list of names, or an object {mark: name} or {name: number}, or {"classes": [{"label": 0, "name": ..., ...},
    ...]}, in which every other value marks the class too.
    """
    path = folder / "classes.json"
    if not path.is_file():
        return []
    try:
        data = json.loads(read_regular(path, MAX_CLASSES_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as JSON ({first_line(error)}).") from None
    try:
        data = data["classes"] if isinstance(data, dict) and isinstance(data.get("classes"), list) else data
        if isinstance(data, dict):
            if not any(isinstance(name, str | None) for name in data.values()):
                data = {str(mark): name for name, mark in data.items()}
            data = [{"label" if mark.isdigit() else "mark": mark, "name": name} for mark, name in data.items()]
        rows = []
        for number, entry in enumerate(data):
            values = entry if isinstance(entry, dict) else {"name": entry, "label": number}
            name = values["name"]
            marks = {str(value) for value in values.values()}
            rows.append((int(values.get("label", number)), marks, None if name is None else str(name)))
        return sorted(rows, key=lambda row: row[0])
    except (ValueError, KeyError, TypeError, OverflowError):
        raise UserError(f"{path}: not a list of class names: {shown(data)}.") from None


Numbered = tuple[Targets, tuple[str, ...], tuple[str, ...]]  # targets, class names, and notes about them


def numbered(marks: Sequence[str] | Sequence[int] | Indices, folder: Path, where: str) -> Numbered:
    """The marks in a data set by number, through classes.json where it is in the folder, else sorted."""
    marks = np.asarray(marks)
    unique = np.unique(marks)
    labels = np.searchsorted(unique, marks)  # np.unique would sort their places too, in several times the memory
    for number, mark in enumerate(map(str, unique)):
        if is_missing(mark):
            raise UserError(
                f"{where}: {int((labels == number).sum()):,} pictures have the label {mark!r}, which means "
                "that it is missing. Fill in their labels, or remove them."
            )
    if unique.tolist() == [UNLABELLED]:
        return unlabelled(len(labels))
    numbers, classes = named([str(mark) for mark in unique], folder)
    notes = () if class_table(folder) else _several_labels(labels, classes, where)
    return ClassLabels(numbers[labels]), classes, notes


def named(marks: Sequence[str], folder: Path) -> tuple[Indices, tuple[str, ...]]:
    """The class number of each mark, and the names of all classes: as classes.json in the folder says, or else in the
    order of the marks."""
    table = class_table(folder)
    if not table:
        return np.arange(len(marks)), tuple(marks)
    numbers = {mark: number for number, (marks, _) in enumerate(table) for mark in marks}
    for mark in marks:
        if mark not in numbers:
            raise UserError(f"{folder / 'classes.json'}: has no class {mark!r}.{did_you_mean(mark, list(numbers))}")
    return np.array([numbers[mark] for mark in marks], dtype=np.int64), tuple(name for _, name in table)


def is_missing(mark: str) -> bool:
    """Whether this is how a table says that there is no label."""
    return mark.strip().lower() in ("", "nan")


def separator_in(label: str) -> str | None:
    """What stands between the parts of what looks like a list of labels."""
    return next((mark for mark in SEPARATORS if mark in label), None)


def _several_labels(labels: Indices, classes: Sequence[str], where: str) -> tuple[str, ...]:
    """A note where classes look like lists of labels."""
    joined = [number for number, name in enumerate(classes) if separator_in(name)]
    if not joined:
        return ()
    num, first = int(np.isin(labels, joined).sum()), classes[joined[0]]
    return (
        f"{where}: {num:,} pictures have labels such as {first!r}, each read as one class; several labels per picture "
        f"are read from a labels.json, or from a table with --data.layout.label_separator '{separator_in(first)}'",
    )


def unlabelled(num: int) -> Numbered:
    """Of so many pictures that come without labels."""
    return NoTargets(num), (UNLABELLED,), ()


def table_hint(folder: Path) -> str:
    """For a folder whose pictures have no labels: a table in it may have them."""
    table = min(folder.glob("*.[ct]sv"), default=None)
    return "" if table is None else f" If {table.name} holds the labels, give {table}."


# ---- Labels in file names


def label_pattern(text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise UserError(f"--data.layout.label_pattern {text!r}: not a regular expression ({error}).") from None
    if pattern.groups != 1:
        raise UserError(
            f"--data.layout.label_pattern {text!r}: put the part that is the label, and only that, into parentheses, "
            r"as in '(.+)_\d+'."
        )
    return pattern


def matched(text: str, paths: Sequence[str], where: Path) -> list[str]:
    """The label in each file's name, or, where the pattern has a slash, in its path below `where`."""
    pattern = label_pattern(text)
    searched = paths if "/" in text else [path.rpartition("/")[2] for path in paths]
    found = [pattern.search(name) for name in searched]
    misses = [path for path, match in zip(paths, found, strict=True) if match is None or not match[1]]
    if misses:
        raise UserError(
            f"{where}: --data.layout.label_pattern {text!r} finds no label in {len(misses):,} of {len(paths):,} files, "
            f"such as {misses[0]}."
        )
    return [match[1] for match in found if match is not None]


# ---- Columns


def label_column_of(names: Sequence[str], usual: Sequence[str], where: str, layout: Layout) -> str | None:
    """The column with the labels; None where there is none and none is needed."""
    if not layout.need_labels and layout.label_column is None and not set(usual) & set(names):
        return None
    return column(names, layout.label_column, usual, "label", where)


def column(names: Sequence[str], wanted: str | None, usual: Sequence[str], what: str, where: str) -> str:
    """The column a setting names, or else the first of the usual ones."""
    if wanted is not None:
        if wanted in names:
            return wanted
        raise UserError(f"{where}: no column {wanted!r} among {_shown(names)}.{did_you_mean(wanted, list(names))}")
    for name in usual:
        if name in names:
            return name
    setting = f" Name it with --data.layout.{what}_column" if what in ("label", "path", "caption") else ""
    setting += ", or one of captions with --data.layout.caption_column." if what == "label" else "." if setting else ""
    raise UserError(f"{where}: no {what} column ({', '.join(usual)}) among {_shown(names)}.{setting}")


def _shown(names: Sequence[str], num: int = 12, length: int = 40) -> str:
    """In one line, which may be the first line of any file."""
    short = [" ".join(name.split())[:length] for name in names[:num]]
    return ", ".join(short + ["..."] * (len(names) > num)) or "none"
