"""Picture files on disk: a folder with one sub-folder per class, or with labels in the files' names or in a file."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from vitreous.data.base import PathList, Source
from vitreous.data.images import Picture, read_orientation, read_picture
from vitreous.data.names import ALL, Layout, matched, merged_trainval, numbered, split_of, table_hint, unlabelled
from vitreous.data.several import from_file, labels_file
from vitreous.data.skipped import Skipped
from vitreous.data.targets import Targets
from vitreous.data.walk import entries, pictures_under, subfolders
from vitreous.errors import UserError


class FileSource(Source):
    """Picture files."""

    def __init__(
        self, name: str, paths: Sequence[str], targets: Targets, classes: tuple[str, ...], notes: tuple[str, ...]
    ) -> None:
        self.name, self.targets, self.classes, self._paths = name, targets, classes, PathList(paths)
        self.notes = notes

    def read(self, index: int) -> Picture:
        return read_picture(Path(self._paths[index]))

    def where(self, index: int) -> str:
        return self._paths[index]

    def orientation(self, index: int) -> int:
        return read_orientation(Path(self._paths[index]))

    def size(self, index: int) -> int:
        try:
            return os.stat(self._paths[index]).st_size  # noqa: PTH116  # a Path takes as long again to make
        except (OSError, ValueError):  # a table may name anything
            return -1


def open_folder(folder: Path, layout: Layout) -> dict[str, Source]:
    """The splits of a folder: its train, val and test folders, or all its class folders as one. Where no labels are
    needed, or file names or a labels.json hold them, pictures may lie in it as they come."""
    skipped = Skipped(str(folder))
    inside = subfolders(folder, skipped)
    splits = {split: path for path in inside if (split := split_folder(path)) is not None}
    # A class may be called "test": the folders are splits when train is among them, or when they are nothing else.
    if not splits or not (splits.keys() & {"train", "trainval"} or len(splits) == len(inside)):
        return {ALL: _open_part(folder, folder, folder.name, layout)}
    found = merged_trainval({split: [path] for split, path in splits.items()})
    skipped.beside += [path.name for path in inside if [path] not in found.values()]
    opened: dict[str, Source] = {}
    for split, (path,) in found.items():
        opened[split] = _open_part(path, folder, f"{folder.name} {split}", layout)
        opened[split].notes += skipped.notes()
    return opened


def split_folder(path: Path) -> str | None:
    # Only plain names: `test_tubes` or `train 2` may well be classes.
    return split_of(path.name) if path.name.isalpha() else None


def _open_part(folder: Path, root: Path, name: str, layout: Layout) -> FileSource:
    """One split: a folder of class folders, or of pictures as they come. classes.json lies in `root`."""
    skipped = Skipped(str(folder))
    if layout.label_pattern is not None:
        paths = _some(folder, pictures_under(folder, skipped), skipped)
        marks = matched(layout.label_pattern, [Path(path).relative_to(folder).as_posix() for path in paths], folder)
        targets, classes, notes = numbered(marks, root, str(folder))
    elif (file := labels_file(folder, root)) is not None:
        paths = _some(folder, pictures_under(folder, skipped), skipped)
        targets, classes, notes = from_file(file, paths, root, layout)
    elif not layout.need_labels and _num_pictures(folder):  # what lies beside them in folders belongs to them
        paths = _some(folder, pictures_under(folder, skipped), skipped)
        targets, classes, notes = unlabelled(len(paths))
    else:
        paths, marks = _in_class_folders(folder, skipped)
        targets, classes, notes = numbered(marks, root, str(folder))
    return FileSource(name, paths, targets, classes, (*skipped.notes(), *notes))


def _in_class_folders(folder: Path, skipped: Skipped) -> tuple[list[str], list[str]]:
    """The pictures, and for each the name of its class folder."""
    paths: list[str] = []
    marks: list[str] = []
    class_folders = subfolders(folder, skipped)
    if not class_folders:
        if hint := table_hint(folder):
            raise UserError(f"{folder}: no sub-folders of classes.{hint}")
        raise UserError(
            f"{folder}: no sub-folders. Put the pictures of each class into a sub-folder with its name; or list "
            "the labels of each file in a labels.json; or, if the file names contain them, give "
            "--data.layout.label_pattern."
        )
    for class_folder in class_folders:
        found = list(pictures_under(class_folder, skipped))
        if not found:
            skipped.empty.append(class_folder.name)
        paths += found
        marks += [class_folder.name] * len(found)
    skipped.loose = _num_pictures(folder)
    return _some(folder, paths, skipped), marks


def _some(folder: Path, paths: Iterator[str] | list[str], skipped: Skipped) -> list[str]:
    found = list(paths)
    if not found:
        raise UserError("; ".join([f"{folder}: no pictures in it", *skipped.words()]) + ".")
    return found


# ---- What lies in a folder


def _num_pictures(folder: Path) -> int:
    """Right in it."""
    ignored = Skipped("")
    files = [entry.name for entry in entries(folder) if entry.is_file() and not ignored.is_hidden(entry.name)]
    return sum(map(ignored.is_picture, files))
