"""A CSV of paths and labels."""

import csv
from pathlib import Path

from vitreous.data.base import Source
from vitreous.data.folder import FileSource
from vitreous.data.names import ALL, UNLABELLED, column, label_column_of, numbered, split_of
from vitreous.errors import UserError

PATHS = ("path", "file", "image", "filename", "file_name", "image_path", "filepath")
LABELS = ("label", "class", "labels", "target", "category")


def open_table(path: Path, label_column: str | None, need_labels: bool = True) -> dict[str, Source]:
    """The splits of a CSV: by its column `split`, where it has one.

    Relative paths start from the CSV's own folder. Paths may lead anywhere: the table is the user's own.
    """
    splits: dict[str, list[tuple[str, str]]] = {}
    for line, file, label, split in _rows(path, label_column, need_labels):
        if not label:
            raise UserError(f"{path}, line {line}: no label. Fill it in, or remove the line.")
        name = split_of(split) if split else ALL
        if name is None:
            raise UserError(f"{path}, line {line}: split {split!r} is none of train, val and test.")
        splits.setdefault("train" if name == "trainval" else name, []).append((str(path.parent / file), label))
    if not splits:
        raise UserError(f"{path}: no rows.")
    if ALL in splits and len(splits) > 1:
        raise UserError(
            f"{path}: some rows name a split and {len(splits[ALL])} do not. Fill in the column, or remove it."
        )
    return {name: _source(path, name, rows) for name, rows in splits.items()}


def _rows(path: Path, label_column: str | None, need_labels: bool) -> list[tuple[int, str, str, str]]:
    """(line, file, label, split) of every row."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", restval="")
            names = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = names
            path_column = column(names, None, PATHS, "path", str(path))
            labels = label_column_of(names, label_column, LABELS, str(path), need_labels)
            return [
                (
                    reader.line_num,
                    row[path_column].strip(),
                    UNLABELLED if labels is None else row[labels].strip(),
                    row.get("split", "").strip(),
                )
                for row in reader
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read as CSV ({error}).") from None


def _source(table: Path, split: str, rows: list[tuple[str, str]]) -> FileSource:
    missing = [file for file, _ in rows if not Path(file).is_file()]
    if len(missing) > 0.01 * len(rows):  # fewer are left to the count of bad pictures
        raise UserError(
            f"{table}: {len(missing):,} of its {len(rows):,} files do not exist, the first is {missing[0]}. "
            f"Paths are relative to {table.parent}."
        )
    marks: list[str] | list[int] = [label for _, label in rows]
    if all(label.isdecimal() for _, label in rows):  # 10 comes after 9
        marks = [int(label) for _, label in rows]
    name = table.stem if split == ALL else f"{table.stem} {split}"
    return FileSource(name, [file for file, _ in rows], *numbered(marks, table.parent))
