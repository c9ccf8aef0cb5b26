"""What lies in a folder, or in an archive as in one, by name. Knows no torch."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from vitreous.data.skipped import Skipped
from vitreous.errors import UserError


def entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """By name."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror}).") from None


def subfolders(folder: Path, skipped: Skipped) -> list[Path]:
    return [folder / entry.name for entry in entries(folder) if not skipped.is_hidden(entry.name) and entry.is_dir()]


def pictures_under(folder: Path, skipped: Skipped) -> Iterator[str]:
    """At any depth: those of a folder before those of its sub-folders, all by name."""
    waiting = [str(folder)]
    while waiting:
        deeper: list[str] = []
        for entry in entries(waiting.pop()):
            if skipped.is_hidden(entry.name):
                continue
            if entry.is_dir():
                (skipped.linked if entry.is_symlink() else deeper).append(entry.path)
            elif entry.is_file() or entry.is_symlink():  # a link that leads nowhere is an unreadable picture
                if skipped.is_picture(entry.name):
                    yield entry.path
            else:
                skipped.special.append(entry.path)
        waiting += reversed(deeper)


class Tree(Protocol):
    """Folders and files that have names, wherever they are kept."""

    def subfolders(self, folder: Path) -> list[Path]: ...

    def pictures_under(self, folder: Path, skipped: Skipped) -> Iterator[str]: ...

    def stored(self, file: str) -> bytes | Path: ...


class Disk:
    def subfolders(self, folder: Path) -> list[Path]:
        return subfolders(folder, Skipped(""))

    def pictures_under(self, folder: Path, skipped: Skipped) -> Iterator[str]:
        return pictures_under(folder, skipped)

    def stored(self, file: str) -> Path:
        return Path(file)


DISK = Disk()
