"""YOLO: a text file per picture with a line per object, and a data.yaml that names classes and folders.

A line is a class and a box (its middle, width and height), or a class and the corners of a polygon, all as shares of
the picture's sides. A picture without a file has no objects: that is how such sets say so. One whose file cannot be
read is left out.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from vitreous.data.base import BadFiles, Source
from vitreous.data.detected import RELATIVE, Classes, with_boxes
from vitreous.data.files import is_regular, read_regular
from vitreous.data.names import ALL, class_table, merged_trainval
from vitreous.data.objects import Annotated
from vitreous.data.outlines import bounds
from vitreous.data.pairs import named_folders
from vitreous.data.plain_yaml import read_plain_yaml
from vitreous.data.skipped import Skipped, listed
from vitreous.data.walk import entries, pictures_under
from vitreous.errors import UserError, first_line, shown

SPLITS = ("train", "val", "test")
NAMES = ("classes.txt", "obj.names", "names.txt")  # one class per line
MAX_BYTES = 64 * 2**20  # of any of these files
PROBED = 5  # label files that are looked at, to tell what they are
FAR = 2.0  # a share of a side beyond which numbers must be pixels
_NAMES_CLASSES = re.compile(rb"^names\s*:", re.MULTILINE)
_NAMES_PICTURES = re.compile(rb"^(train|val)\s*:", re.MULTILINE)


def open_yolo(folder: Path, most_bad: int | None = None) -> dict[str, Source]:
    """The splits of a folder that is laid out so; none where it is not. `most_bad`: so many label files may be
    broken."""
    for entry in entries(folder):
        if entry.name.lower().endswith((".yaml", ".yml")) and entry.is_file() and _names_boxes(folder / entry.name):
            return open_yolo_file(folder / entry.name, most_bad)
    return _by_folders(folder, most_bad) or _beside(folder, most_bad)


def open_yolo_file(path: Path, most_bad: int | None = None) -> dict[str, Source]:
    """As a data.yaml says."""
    document = _document(path)
    classes = _names(document, path)
    found: dict[str, Annotated] = {}
    for split in SPLITS:
        named = document.get(split) or (document.get("valid") if split == "val" else None)
        if named:
            places = [_resolved(one, document.get("path"), path, split) for one in _several(named)]
            pictures = [picture for place in places for picture in _pictures(place)]
            found[split] = _read(pictures, len(classes), str(path), most_bad)
    if not found:
        raise UserError(f"{path}: names neither train, val nor test pictures.")
    note = f"{path}: read as pictures with boxes (YOLO)"
    told = document.get("nc")
    if told is not None and told != str(len(classes)):
        note += f"; nc is {told}, but names lists {len(classes)}, which is what counts"
    return _opened(path.parent.name, found, classes, note)


def _opened(name: str, found: Mapping[str, Annotated], classes: Sequence[str], note: str) -> dict[str, Source]:
    for annotated in found.values():
        annotated.notes.insert(0, note)
    return with_boxes(name, found, dict.fromkeys(found, Classes(tuple(classes))))


# ---- data.yaml


def _names_boxes(path: Path) -> bool:
    """Whether it may be one: any other YAML file is none of ours."""
    try:
        text = read_regular(path, MAX_BYTES)
    except OSError:
        return False
    return bool(_NAMES_CLASSES.search(text) and _NAMES_PICTURES.search(text))


def _document(path: Path) -> dict[str, Any]:
    try:
        return read_plain_yaml(_text(path))
    except ValueError as error:
        raise UserError(f"{path}: cannot be read as YAML ({first_line(error)}).") from None


def _names(document: Mapping[str, Any], path: Path) -> list[str]:
    match document.get("names"):
        case list(names) if names:
            return names
        case dict(names) if names:
            if sorted(names) != sorted(str(number) for number in range(len(names))):
                raise UserError(f"{path}: names are to be numbered from 0 to {len(names) - 1}, each once.")
            return [names[str(number)] for number in range(len(names))]
        case other:
            raise UserError(f"{path}: names is {shown(other)}: list the classes there, as in names: [cat, dog].")


def _several(named: Any) -> list[str]:
    return [named] if isinstance(named, str) else [str(one) for one in named]


def _resolved(named: str, base: Any, path: Path, split: str) -> Path:
    """A folder or a list, from where the file lies. Exports may name it from a folder below."""
    roots = [path.parent / str(base), path.parent] if base else [path.parent]
    below = named.removeprefix("./")
    while below.startswith("../"):
        below = below.removeprefix("../")
    for root in roots:
        for one in dict.fromkeys((named, below)):
            if (root / one).exists():
                return root / one
    raise UserError(f"{path}: {split} is {named!r}, which is not there. Correct the path, or remove the line.")


def _pictures(place: Path) -> list[str]:
    """In a folder, or in a list with a path per line."""
    if place.is_dir():
        return list(pictures_under(place, Skipped(str(place))))
    try:
        lines = read_regular(place, MAX_BYTES).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{place}: cannot be read as a list of pictures ({first_line(error)}).") from None
    return [str(place.parent / line.strip().removeprefix("./")) for line in lines if line.strip()]


# ---- Without one


def _by_folders(folder: Path, most_bad: int | None) -> dict[str, Source]:
    """images and labels, with splits in them or above them."""
    named = {split: both for split, both in named_folders(folder).items() if _is_of_texts(both[1])}
    pictures = {split: list(pictures_under(both[0], Skipped(""))) for split, both in named.items()}
    pictures = {split: found for split, found in pictures.items() if found}
    if not pictures:
        return {}
    classes, note = _listed_names([folder, *(both[1] for both in named.values())])
    found = {split: _read(paths, len(classes) or None, str(folder), most_bad) for split, paths in pictures.items()}
    return _named(folder, found, classes, note)


def _beside(folder: Path, most_bad: int | None) -> dict[str, Source]:
    """Pictures and texts in one folder, with the names of the classes."""
    if not any(is_regular(folder / name) for name in NAMES):
        return {}
    classes, note = _listed_names([folder])
    pictures = [path for path in pictures_under(folder, Skipped("")) if is_regular(Path(path).with_suffix(".txt"))]
    if not pictures:
        return {}
    return _named(folder, {ALL: _read(pictures, len(classes), str(folder), most_bad)}, classes, note)


def _named(folder: Path, found: dict[str, Annotated], classes: Sequence[str], note: str) -> dict[str, Source]:
    if not classes:
        most = max((max(annotated.classes, default=0) for annotated in found.values()), default=0)
        classes = [str(number) for number in range(most + 1)]
    return _opened(
        folder.name, merged_trainval(found), classes, f"{folder}: read as pictures with boxes (YOLO; {note})"
    )


def _is_of_texts(folder: Path) -> bool:
    """Whether a folder called labels has texts that are boxes, by the first few that are not empty."""
    texts = (path for path in sorted(folder.rglob("*.txt")) if path.name not in NAMES and is_regular(path))
    first = islice((line for path in texts if (line := _first_line(path))), PROBED)
    return any(len(words) >= 5 and all(map(_is_number, words)) for words in first)


def _first_line(path: Path) -> list[str]:
    """The words of it; none where the file is empty, or cannot be read."""
    try:
        return next(iter(_words(path)), [])
    except UserError:
        return []


def _listed_names(folders: Iterable[Path]) -> tuple[list[str], str]:
    """The names of the classes, and where they are from; none where nothing says them."""
    for folder in folders:
        for name in NAMES:
            if is_regular(folder / name):
                lines = _text(folder / name).splitlines()
                return [line.strip() for line in lines if line.strip()], f"classes from {name}"
        if table := class_table(folder):
            return [name for _, name in table], "classes from classes.json"
    return [], "classes by number, since no data.yaml or classes.txt names them"


# ---- Labels


def _read(pictures: Sequence[str], num_classes: int | None, where: str, most_bad: int | None) -> Annotated:
    found = Annotated()
    without: list[str] = []
    bad = BadFiles(where, len(pictures), most_bad, "label files cannot be used, their pictures left out")
    files = [_label_file(Path(picture)) for picture in pictures]
    for picture, path in zip(pictures, files, strict=True):
        try:
            lines = _lines(path, num_classes) if is_regular(path) else None
        except (UserError, ValueError) as error:
            bad.add(str(path), str(error).removeprefix(f"{path}: ").removesuffix("."))
            continue
        if lines is None:
            without.append(Path(picture).name)
        found.pictures.append(picture)
        found.ids.append(len(found))
        found.sizes.append(RELATIVE)
        for line in lines or ():
            found.add(len(found) - 1, line.box, line.number, outline=line.outline)
    if len(without) == len(pictures) > 0:
        raise UserError(f"{where}: not one of its pictures has labels; {files[0]} is not there.")
    if len(bad) == len(pictures) > 0:
        raise UserError(bad.summary())
    bad.check()
    if bad:
        found.notes.append(bad.summary().removesuffix("."))
    if without:
        what = "pictures without a label file, taken as without objects"
        found.notes.append(f"{where}: {what}: {len(without):,} ({listed(without, 3)})")
    if alone := _without_picture(files):
        found.notes.append(f"{where}: label files without a picture, skipped: {len(alone):,} ({listed(alone, 3)})")
    return found


def _without_picture(files: Sequence[Path]) -> list[str]:
    """Texts in the same folders of labels that belong to no picture."""
    known = set(files)
    folders = [folder for folder in dict.fromkeys(file.parent for file in files) if folder.is_dir()]
    labels = [folder for folder in folders if any(part.lower() == "labels" for part in folder.parts)]
    texts = [folder / entry.name for folder in labels for entry in entries(folder)]
    return [path.name for path in texts if path.suffix == ".txt" and path.name not in NAMES and path not in known]


def _label_file(picture: Path) -> Path:
    """In `labels` where the picture is in `images`, else beside it."""
    parts = list(picture.parts)
    for at in range(len(parts) - 2, -1, -1):
        if parts[at].lower() == "images":
            parts[at] = "LABELS" if parts[at].isupper() else "labels"
            break
    return Path(*parts).with_suffix(".txt")


class _Line(NamedTuple):
    number: int  # of its class
    box: tuple[float, ...]
    outline: str = ""


def _lines(path: Path, num_classes: int | None) -> list[_Line]:
    """Raises ValueError or UserError, which say what is wrong."""
    found = []
    for number, words in enumerate(_words(path), 1):
        try:
            found.append(_line(words, num_classes))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return found


def _line(words: Sequence[str], num_classes: int | None) -> _Line:
    if not all(_is_number(word) for word in words):
        raise ValueError(f"{shown(' '.join(words))} is not a class and numbers")
    number, *values = (float(word) for word in words)
    if number != int(number) or number < 0 or (num_classes is not None and number >= num_classes):
        classes = "classes are numbered from 0" if num_classes is None else f"there are {num_classes} classes, from 0"
        raise ValueError(f"class {words[0]}, but {classes}")
    if any(abs(value) > FAR for value in values):
        raise ValueError(f"{max(values):g} is no share of a side: boxes go from 0 to 1 here, not in pixels")
    if len(values) in (4, 5):  # predictions have a score at the end
        x, y, width, height = values[:4]
        return _Line(int(number), (x - width / 2, y - height / 2, x + width / 2, y + height / 2))
    if len(values) >= 6 and len(values) % 2 == 0:
        box = bounds([values])
        assert box is not None
        return _Line(int(number), box, json.dumps([values]))
    raise ValueError(f"{len(words)} numbers: a class with a box has 5 (with a score 6), with a polygon 7 or more")


def _words(path: Path) -> list[list[str]]:
    """Of every line that is not empty."""
    return [words for line in _text(path).splitlines() if (words := line.split())]


def _text(path: Path) -> str:
    try:
        return read_regular(path, MAX_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as text ({first_line(error)}).") from None


def _is_number(word: str) -> bool:
    try:
        return abs(float(word)) < float("inf")  # false for nan too
    except ValueError:
        return False
