"""YOLO: a text file per picture with a line per object, and a data.yaml that names classes and folders.

A line is a class and a box (its middle, width and height), or a class and the corners of a polygon, all as shares of
the picture's sides. A picture without a file has no objects: that is how such sets say so. One whose file cannot be
read is left out. Of poses the boxes are read, and their points are not.
"""

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from vitreous.data.base import BadFiles, Source
from vitreous.data.detected import RELATIVE, Classes, with_boxes
from vitreous.data.files import is_regular, read_regular
from vitreous.data.lists import listed_splits
from vitreous.data.names import ALL, class_table, merged_trainval, split_of
from vitreous.data.objects import Annotated
from vitreous.data.outlines import bounds
from vitreous.data.pairs import named_folders
from vitreous.data.plain_yaml import read_plain_yaml
from vitreous.data.skipped import Skipped, listed
from vitreous.data.walk import entries, pictures_under, subfolders
from vitreous.errors import UserError, first_line, shown

SPLITS = ("train", "val", "test")
NAMES = ("classes.txt", "obj.names", "names.txt")  # one class per line
MAX_BYTES = 64 * 2**20  # of any of these files
PROBED = 5  # label files that are looked at, to tell what they are
FAR = 2.0  # a share of a side beyond which numbers must be pixels
_NAMES_CLASSES = re.compile(rb"^names\s*:", re.MULTILINE)
_NAMES_PICTURES = re.compile(rb"^(train|val)\s*:", re.MULTILINE)

Pairs = list[tuple[str, Path]]  # pictures, and their text files, which need not be there


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
    note = f"{path}: read as pictures with boxes (YOLO)"
    kind = Kind(len(classes), has_points=bool(document.get("kpt_shape")))
    for split in SPLITS:
        named = document.get(split) or (document.get("valid") if split == "val" else None)
        places = [_resolved(one, document.get("path"), path) for one in _several(named or [])]
        if split != "train" and places and not any(places):  # services write all three lines, whatever there is
            note += f"; {split} is {shown(named)}, which is not there"
        elif places:
            pictures = [picture for place in _all_there(places, named, path, split) for picture in _pictures(place)]
            found[split] = _read(_with_labels(pictures), kind, str(path), most_bad)
    if not found:
        raise UserError(f"{path}: names neither train, val nor test pictures.")
    told = document.get("nc")
    if told is not None and told != str(len(classes)):
        note += f"; nc is {told}, but names lists {len(classes)}, which is what counts"
    return _opened(path.parent.name, found, classes, note + ("; of poses their boxes alone" if kind.has_points else ""))


def _opened(name: str, found: Mapping[str, Annotated], classes: Sequence[str], note: str) -> dict[str, Source]:
    names = tuple(dict.fromkeys(classes))
    if len(names) < len(classes):
        note += "; classes of the same name are one"
    for annotated in found.values():
        annotated.notes.insert(0, note)
        annotated.classes = [names.index(classes[number]) for number in annotated.classes]
    return with_boxes(name, found, dict.fromkeys(found, Classes(names)))


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


def _resolved(named: str, base: Any, path: Path) -> Path | None:
    """A folder or a list, from where the file lies. Exports name it from a folder below: what is beside the file comes
    first, since a set of the same names may lie above."""
    roots = [path.parent / str(base), path.parent] if base else [path.parent]
    below = named.removeprefix("./")
    while below.startswith("../"):
        below = below.removeprefix("../")
    named_so = (root / one for root in roots for one in dict.fromkeys((below, named)))
    return next((one for one in named_so if os.path.exists(one)), None)  # noqa: PTH110  # of any name, however long


def _all_there(places: Sequence[Path | None], named: Any, path: Path, split: str) -> Iterator[Path]:
    for place, one in zip(places, _several(named), strict=True):
        if place is None:
            raise UserError(f"{path}: {split} is {one!r}, which is not there. Correct the path, or remove the line.")
        yield place


def _pictures(place: Path) -> list[str]:
    """In a folder, or in a list with a path per line."""
    if place.is_dir():
        return list(pictures_under(place, Skipped(str(place))))
    try:
        lines = read_regular(place, MAX_BYTES).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{place}: cannot be read as a list of pictures ({first_line(error)}).") from None
    return [_listed_picture(place.parent, line.strip()) for line in lines if line.strip()]


def _listed_picture(root: Path, line: str) -> str:
    """Lists may name pictures from some folder above, or from one of another machine."""
    parts = Path(line).parts
    paths = (root.joinpath(*parts[at:]) for at in range(len(parts)))
    return str(next((path for path in paths if is_regular(path)), root / line))


# ---- Without one


def _by_folders(folder: Path, most_bad: int | None) -> dict[str, Source]:
    """images and labels, with splits in them or above them."""
    named = {split: both for split, both in named_folders(folder).items() if _is_of_texts(both[1].rglob("*.txt"))}
    pairs = {split: _across(*both) for split, both in named.items()}
    classes, note = _listed_names([folder, *(both[1] for both in named.values())])
    return _named(folder, {split: found for split, found in pairs.items() if found}, classes, note, most_bad)


def _across(pictures: Path, labels: Path) -> Pairs:
    paths = pictures_under(pictures, Skipped(""))
    return [(path, (labels / Path(path).relative_to(pictures)).with_suffix(".txt")) for path in paths]


def _beside(folder: Path, most_bad: int | None) -> dict[str, Source]:
    """Pictures and texts in the same folders, with the names of the classes, or with texts that are boxes."""
    places = [folder, *(path for path in subfolders(folder, Skipped("")) if _split_of(path.name) is not None)]
    is_named = any(is_regular(place / name) for place in places for name in NAMES)
    if not (is_named or _is_of_texts((path for place in places for path in place.glob("*.txt")), most=FAR)):
        return {}
    classes, note = _listed_names(places)
    files = [(path, Path(path).with_suffix(".txt")) for path in pictures_under(folder, Skipped(""))]
    pairs = [(path, text) for path, text in files if is_regular(text)]
    if bare := [Path(path).name for path, text in files if not is_regular(text)]:
        note += f"; pictures without a label file left out: {len(bare):,} ({listed(bare, 3)})"
    return _named(folder, _parted(folder, pairs) if pairs else {}, classes, note, most_bad)


def _parted(folder: Path, pairs: Pairs) -> dict[str, Pairs]:
    """By folders such as obj_train_data and obj_test_data, or by the lists beside an obj.data."""
    below = [Path(picture).relative_to(folder) for picture, _ in pairs]
    splits = {one.parts[0]: _split_of(one.parts[0]) if len(one.parts) > 1 else None for one in below}
    if any(splits.values()):
        if other := next((name for name, split in splits.items() if split is None), None):
            raise UserError(
                f"{folder / other}: cannot tell which split it is of; put train, val or test into its name."
            )
        found: dict[str, Pairs] = {}
        for one, pair in zip(below, pairs, strict=True):
            found.setdefault(splits[one.parts[0]] or ALL, []).append(pair)
        return found
    if not any(entry.name.endswith(".data") for entry in entries(folder)):
        return {ALL: pairs}
    lists = listed_splits(folder, [one.with_suffix("").as_posix() for one in below], ["."])
    return {split: [pairs[place] for place in places] for split, (places, _) in lists.items()} or {ALL: pairs}


def _split_of(folder: str) -> str | None:
    """train, obj_train_data -> train"""
    match = re.fullmatch(r"(?:obj_)?([A-Za-z]+?)(?:_data)?", folder)
    return None if match is None else split_of(match[1])


def _named(
    folder: Path, pairs: dict[str, Pairs], classes: Sequence[str], note: str, most_bad: int | None
) -> dict[str, Source]:
    kind = Kind(len(classes) or None)
    found = {split: _read(one, kind, str(folder), most_bad) for split, one in merged_trainval(pairs).items()}
    if not classes:
        most = max((max(annotated.classes, default=0) for annotated in found.values()), default=0)
        classes = [str(number) for number in range(most + 1)]
    return _opened(folder.name, found, classes, f"{folder}: read as pictures with boxes (YOLO; {note})")


def _is_of_texts(paths: Iterable[Path], most: float = math.inf) -> bool:
    """Whether these are boxes, by the first few that are not empty; `most`: of their numbers, but for the class."""
    texts = (path for path in sorted(paths) if path.name not in NAMES and is_regular(path))
    first = islice((line for path in texts if (line := _first_line(path))), PROBED)
    return any(
        len(words) >= 5 and all(map(_is_number, words)) and max(abs(float(word)) for word in words[1:]) <= most
        for words in first
    )


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


class Kind(NamedTuple):
    """What lines may hold."""

    num_classes: int | None = None  # None: nothing says how many there are
    has_points: bool = False  # after the boxes, which are the first numbers then


def _read(pairs: Pairs, kind: Kind, where: str, most_bad: int | None) -> Annotated:
    found = Annotated()
    without: list[str] = []
    bad = BadFiles(where, len(pairs), most_bad, "label files cannot be used, their pictures left out")
    for picture, path in pairs:
        try:
            lines = _lines(path, kind) if is_regular(path) else None
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
    if len(without) == len(pairs) > 0:
        raise UserError(f"{where}: not one of its pictures has labels; {pairs[0][1]} is not there.")
    if len(bad) == len(pairs) > 0:
        raise UserError(bad.summary())
    bad.check()
    if bad:
        found.notes.append(bad.summary().removesuffix("."))
    if without:
        what = "pictures without a label file, taken as without objects"
        found.notes.append(f"{where}: {what}: {len(without):,} ({listed(without, 3)})")
    if alone := _without_picture(pairs):
        found.notes.append(f"{where}: label files without a picture, skipped: {len(alone):,} ({listed(alone, 3)})")
    return found


def _without_picture(pairs: Pairs) -> list[str]:
    """Texts in folders of labels that belong to no picture."""
    known = {text for _, text in pairs}
    folders = dict.fromkeys(text.parent for picture, text in pairs if Path(picture).parent != text.parent)
    texts = [folder / entry.name for folder in folders if folder.is_dir() for entry in entries(folder)]
    return [path.name for path in texts if path.suffix == ".txt" and path.name not in NAMES and path not in known]


def _with_labels(pictures: Sequence[str]) -> Pairs:
    return [(picture, _label_file(Path(picture))) for picture in pictures]


def _label_file(picture: Path) -> Path:
    """In `labels` where the picture is in `images`, in whatever case, else beside it."""
    parts = list(picture.parts)
    for at in range(len(parts) - 2, -1, -1):
        if parts[at].lower() == "images":
            parts[at] = "LABELS" if parts[at].isupper() else "Labels" if parts[at][0].isupper() else "labels"
            break
    return Path(*parts).with_suffix(".txt")


class _Line(NamedTuple):
    number: int  # of its class
    box: tuple[float, ...]
    outline: str = ""


def _lines(path: Path, kind: Kind) -> list[_Line]:
    """Raises ValueError or UserError, which say what is wrong."""
    found = []
    for number, words in enumerate(_words(path), 1):
        try:
            found.append(_line(words[:5] if kind.has_points else words, kind.num_classes))
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
    far = next((value for value in values if abs(value) > FAR), None)
    if far is not None:
        raise ValueError(f"{far:g} is no share of a side: boxes go from 0 to 1 here, not in pixels")
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
