"""Flickr8k and Flickr30k as they are published: a list of captions (Flickr8k.token.txt), lists of the splits
(Flickr_8k.trainImages.txt and so on), and a folder of pictures."""

import csv
import re
from pathlib import Path

from vitreous.data.base import Source
from vitreous.data.captioned import with_captions
from vitreous.data.files import read_regular
from vitreous.data.folder import FileSource
from vitreous.data.names import ALL, split_of
from vitreous.data.skipped import Skipped, listed
from vitreous.data.targets import NoTargets
from vitreous.data.walk import pictures_under
from vitreous.errors import UserError

MAX_BYTES = 256 * 2**20  # of a list
LINE = re.compile(r"(.+?)#\d+\t(.*)")  # 1000268201_693b08cb0e.jpg#0<tab>A child ...
LIST = re.compile(r"(?:.*[._])?(train|dev|val|test)images\.txt", re.IGNORECASE)


def open_flickr(folder: Path) -> dict[str, Source]:
    """The splits; nothing where there is no list of captions in the folder."""
    lists = sorted([*folder.glob("*.token.txt"), *folder.glob("*.token"), *folder.glob("captions.txt")])
    if not lists:
        return {}
    captions = _captions(lists[0])
    skipped = Skipped(str(folder))
    paths = {Path(path).name: path for path in pictures_under(folder, skipped)}
    splits = _splits(folder) or {ALL: list(captions)}
    found: dict[str, Source] = {}
    for split, names in splits.items():
        there = [name for name in names if name in paths]
        if not there:
            part = "" if split == ALL else f" of its {split} part"
            lost = (
                f"none of the pictures{part} exists, such as {names[0]!r}" if names else f"no pictures{part} are named"
            )
            raise UserError(f"{folder}: {lost}.")
        missing = [name for name in names if name not in paths]
        notes = (f"{folder}: missing pictures, skipped: {len(missing):,} ({listed(missing)})",)
        name = folder.name if split == ALL else f"{folder.name} {split}"
        source = FileSource(name, [paths[one] for one in there], NoTargets(len(there)), (), notes if missing else ())
        found[split] = with_captions(source, [captions.get(one, []) for one in there])
    return found


def _text(path: Path) -> str:
    try:
        return read_regular(path, MAX_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}).") from None


def _captions(path: Path) -> dict[str, list[str]]:
    """By picture, in the order of the list."""
    lines = _text(path).splitlines()
    found: dict[str, list[str]] = {}
    if lines and lines[0].replace(" ", "").lower() in ("image,caption", "image_name,caption"):  # as on Kaggle
        pairs = [row for row in csv.reader(lines[1:]) if len(row) >= 2]
        for name, *rest in pairs:
            found.setdefault(name, []).append(",".join(rest).strip())
        return found
    for number, line in enumerate(lines, start=1):
        match = LINE.fullmatch(line)
        if match is None and line.strip():
            raise UserError(f"{path}, line {number}: expected a name, a number and a caption (a.jpg#0<tab>A dog).")
        if match is not None and match[2].strip():
            found.setdefault(match[1], []).append(match[2].strip())
    return found


def _splits(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.txt")):
        match = LIST.fullmatch(path.name)
        split = split_of(match[1]) if match else None
        if split is not None:
            found[split] = [line.strip() for line in _text(path).splitlines() if line.strip()]
    return found
