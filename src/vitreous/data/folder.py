"""Picture files on disk: a folder with one sub-folder a class."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from vitreous.data.base import Labels, PathList, Source
from vitreous.data.images import SUFFIXES, Picture, read_picture
from vitreous.data.names import ALL, merged_trainval, numbered, split_of, unlabelled
from vitreous.errors import UserError


class FileSource(Source):
    """Picture files."""

    def __init__(self, name: str, paths: Sequence[str], labels: Labels, classes: tuple[str, ...]) -> None:
        self.name, self.labels, self.classes, self._paths = name, labels, classes, PathList(paths)

    def read(self, index: int) -> Picture:
        return read_picture(Path(self._paths[index]))

    def where(self, index: int) -> str:
        return self._paths[index]

    def size(self, index: int) -> int:
        try:
            return os.stat(self._paths[index]).st_size  # noqa: PTH116  # a Path takes as long again to make
        except OSError:
            return -1


def open_folder(folder: Path, need_labels: bool = True) -> dict[str, Source]:
    """The splits of a folder: its train, val and test folders, or all its class folders as one. Where no labels are
    needed, pictures may lie in it as they come."""
    inside = _subfolders(folder)
    if not inside and need_labels:
        raise UserError(f"{folder}: no sub-folders. Put the pictures of each class into a sub-folder with its name.")
    splits = {split: path for path in inside if (split := _split_folder(path)) is not None}
    # A class may be called "test": the folders are splits when train is among them, or when they are nothing else.
    if not splits or not (splits.keys() & {"train", "trainval"} or len(splits) == len(inside)):
        return {ALL: _open_classes(folder, folder, folder.name, need_labels)}
    found = merged_trainval({split: [path] for split, path in splits.items()})
    return {
        split: _open_classes(path, folder, f"{folder.name} {split}", need_labels) for split, (path,) in found.items()
    }


def _split_folder(path: Path) -> str | None:
    # Only plain names: `test_tubes` or `train 2` may well be classes.
    return split_of(path.name) if path.name.isalpha() else None


def _open_classes(folder: Path, root: Path, name: str, need_labels: bool) -> FileSource:
    if not need_labels and _has_pictures(folder):  # what lies beside them in folders belongs to them
        found = list(_pictures_under(folder))
        return FileSource(name, found, *unlabelled(len(found)))
    paths: list[str] = []
    marks: list[str] = []
    class_folders = _subfolders(folder)
    for class_folder in class_folders:
        found = list(_pictures_under(class_folder))
        if not found:
            raise UserError(f"{class_folder}: no pictures in this class folder. Add some, or remove the folder.")
        paths += found
        marks += [class_folder.name] * len(found)
    if not paths:
        raise UserError(f"{folder}: no class folders. Put the pictures of each class into a sub-folder with its name.")
    return FileSource(name, paths, *numbered(marks, root))


def _subfolders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror}).") from None


def _has_pictures(folder: Path) -> bool:
    return any(path.suffix.lower() in SUFFIXES for path in folder.iterdir() if not path.name.startswith("."))


def _pictures_under(folder: Path) -> Iterator[str]:
    def stop(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror}).")

    for where, folders, files in os.walk(folder, onerror=stop):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES:
                yield str(Path(where) / name)
