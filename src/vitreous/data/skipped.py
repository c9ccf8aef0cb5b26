"""Skipped: what lies in a folder or an archive and is not read, counted by kind so that a note can say so."""

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath

from vitreous.data.images import HEIC_NEEDS, HEIC_SUFFIXES, SUFFIXES

SYSTEM = ("__MACOSX", "@eaDir", "lost+found")  # what archivers, storage devices and file systems leave behind
OWN = ("classes.json", "labels.json")  # what is read beside the pictures
NAMED = 5  # of a kind, in a note


class Skipped:
    def __init__(self, where: str) -> None:
        self.where = where
        self.hidden: Counter[str] = Counter()
        self.suffixes: Counter[str] = Counter()
        self.empty: list[str] = []  # class folders
        self.beside: list[str] = []  # folders beside those of the splits
        self.special: list[str] = []  # neither files nor folders
        self.linked: list[str] = []  # folders behind links, which may lead anywhere, also in a circle
        self.loose = 0  # pictures beside the class folders

    def is_hidden(self, name: str) -> bool:
        """Whether a file or folder of this name is none of the user's."""
        if not (name in SYSTEM or (name.startswith(".") and name != "..")):
            return False
        self.hidden["._*" if name.startswith("._") else name] += 1  # a shadow beside every file, on some disks
        return True

    def is_picture(self, name: str) -> bool:
        """Whether a file of this name is read."""
        suffix = PurePath(name).suffix.lower()
        if suffix not in SUFFIXES and name not in OWN:
            self.suffixes[suffix or "no suffix"] += 1
        return suffix in SUFFIXES

    def notes(self) -> tuple[str, ...]:
        return tuple(f"{self.where}: {words}" for words in self.words())

    def words(self) -> list[str]:
        """For each kind."""
        suffixes = [f"{num:,} {suffix}{_missing(suffix)}" for suffix, num in self.suffixes.most_common()]
        hidden = [f"{name} ({num:,})" if num > 1 else name for name, num in self.hidden.most_common()]
        kinds = (
            (suffixes, "files that are not read"),
            (hidden, "hidden files and folders skipped"),
            (self.empty, "class folders without pictures skipped"),
            (self.beside, "folders that belong to no split skipped"),
            (self.special, "pipes, sockets and devices skipped"),
            (self.linked, "linked folders skipped"),
            ([f"{self.loose:,}"] if self.loose else [], "pictures outside the class folders skipped"),
        )
        return [f"{what}: {listed(found)}" for found, what in kinds if found]


def listed(names: Sequence[str], num: int = NAMED) -> str:
    """'a, b, c and 2 more'"""
    more = f" and {len(names) - num:,} more" if len(names) > num else ""
    return ", ".join(names[:num]) + more


def _missing(suffix: str) -> str:
    return f" ({HEIC_NEEDS})" if suffix in HEIC_SUFFIXES else ""
