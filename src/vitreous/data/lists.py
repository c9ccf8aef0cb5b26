"""Splits by lists: train.txt, val.txt and test.txt, with the name of a picture in every line."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from vitreous.data.files import read_regular
from vitreous.data.names import merged_trainval, split_of
from vitreous.data.skipped import Skipped, listed
from vitreous.data.walk import subfolders
from vitreous.errors import UserError

FOLDERS = (".", "splits", "lists", "annotations", "imagesets/segmentation")  # where the lists lie
MAX_BYTES = 64 * 2**20  # of a list

Split = tuple[list[int], list[str]]  # the places of its pictures, and notes


def listed_splits(root: Path, names: Sequence[str], folders: Sequence[str] = FOLDERS) -> dict[str, Split]:
    """The splits that lists in the folder `root` name. `names`: of all pictures, with folders and without suffixes."""
    places: dict[str, int] = {}
    for place, name in enumerate(names):
        places[name.rpartition("/")[2]] = places[name] = place
    return {split: _listed(path, places) for split, path in _lists(root, folders).items()}


def _lists(root: Path, folders: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for where in folders:
        folder = _inside(root, where)
        for path in sorted(folder.glob("*.txt")) if folder else ():
            split = split_of(path.stem) if path.stem.isalpha() else None
            if split is not None:
                found.setdefault(split, path)
    return merged_trainval(found)


def _inside(root: Path, where: str) -> Path | None:
    """The folder of this name, in whatever case it is written."""
    folder = root
    for name in Path(where).parts:
        named = {path.name.lower(): path for path in subfolders(folder, Skipped(""))}
        if name not in named:
            return None
        folder = named[name]
    return folder


def _listed(path: Path, places: Mapping[str, int]) -> Split:
    names = _names(path)
    found = [_place(name, places) for name in names]
    known = [place for place in found if place is not None]
    if not known:
        example = f"; its first line is {names[0]!r}" if names else ""
        raise UserError(f"{path}: names no picture of this data set{example}.")
    unknown = [name for name, place in zip(names, found, strict=True) if place is None]
    note = f"{path}: names without a labelled picture, skipped: {len(unknown):,} ({listed(unknown)})"
    return known, [note] if unknown else []


def _names(path: Path) -> list[str]:
    """The first word of every line: what follows is the mask, or something else."""
    try:
        text = read_regular(path, MAX_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as a list of names ({error}).") from None
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return [words[0] for words in lines if words]


def _place(name: str, places: Mapping[str, int]) -> int | None:
    """Pictures are named with their folder or without, with their suffix or without."""
    for known in (name, Path(name).with_suffix("").as_posix(), Path(name).name, Path(name).stem):
        if known in places:
            return places[known]
    return None
