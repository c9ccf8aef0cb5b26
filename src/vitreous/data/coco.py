"""COCO: pictures, objects and classes in one JSON file per split (Lin et al. 2014).

Boxes are x, y, width and height; outlines are polygons or runs of pixels, and are kept. Pictures that a file names and
gives no object are pictures without objects; those that lie beside and are not named were never labelled, and are left
out, as is a picture with an annotation that cannot be read.
"""

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

from vitreous.data.base import BadFiles, Source
from vitreous.data.detected import UNKNOWN, Classes, stated, with_boxes
from vitreous.data.files import is_regular, open_regular, read_regular
from vitreous.data.names import ALL, merged_trainval, split_of
from vitreous.data.objects import Annotated
from vitreous.data.outlines import bounds
from vitreous.data.pairs import IMAGES
from vitreous.data.skipped import Skipped, listed
from vitreous.data.walk import entries, pictures_under, subfolders
from vitreous.errors import UserError, first_line, shown

MAX_BYTES = 4 * 2**30  # of a file
PEEK_BYTES = 2**16
PROBED = 5  # pictures, about, to look for when searching for their folder
KEYS = ("images", "annotations", "categories")
OTHERS = ("captions", "person_keypoints", "stuff", "panoptic", "image_info")  # what COCO has beside its instances
MAPS = "panoptic"  # a folder of pictures that are no photos, with the same names


@dataclass
class CocoFile:
    path: Path
    images: list[dict[str, Any]]
    annotations: list[dict[str, Any]]
    categories: list[dict[str, Any]]


def open_coco(folder: Path, most_bad: int | None = None) -> dict[str, Source]:
    """The splits of a folder with such files; none where there are none. `most_bad`: so many annotations
    may be broken."""
    return _opened(folder.name, _by_split(folder), folder, most_bad)


def open_coco_file(path: Path, most_bad: int | None = None) -> dict[str, Source]:
    """One file, named by itself."""
    file = _read(path)
    if file is None:
        raise UserError(f"{path}: not a COCO file with boxes, which has lists called {', '.join(KEYS)}.")
    return _opened(path.stem, {ALL: file}, path.parent, most_bad)


def _opened(name: str, files: Mapping[str, CocoFile], root: Path, most_bad: int | None) -> dict[str, Source]:
    folders = {split: _folder(file, root) for split, file in files.items()}
    splits: dict[str, Annotated] = {}
    classes: dict[str, Classes] = {}
    groups = _groups(files.values())
    for split, file in files.items():
        known = {number: called for number, called in _categories(file).items() if called not in groups}
        numbers = {called: number for number, called in reversed(known.items())}
        names = tuple(dict.fromkeys(known.values()))
        classes[split] = Classes(names, tuple(numbers[called] for called in names))
        places = {number: names.index(called) for number, called in known.items()}
        splits[split] = _annotated(file, folders[split], places, most_bad)
        note = f"{file.path}: read as pictures with boxes (COCO)"
        note += f"; no class of its own: {listed(groups)}, a group of others that no object has" if groups else ""
        splits[split].notes.insert(0, note)
    _note_unlabelled(splits, folders, files)
    return with_boxes(name, splits, classes)


# ---- Which files


def _by_split(folder: Path) -> dict[str, CocoFile]:
    """By the names of files, or of the folders they lie in; a lone file is not split."""
    found: dict[str, list[CocoFile]] = {}
    others: list[Path] = []
    for path in _candidates(folder):
        file = _read(path)
        if file is not None:
            found.setdefault(_split_of(path, folder) or ALL, []).append(file)
        elif _split_of(path, folder) and not _head(path).startswith(("{", "[")):
            others.append(path)
    if found and others:
        raise UserError(f"{others[0]}: is not JSON, though COCO files lie beside it. Repair it, or remove it.")
    for split, files in found.items():
        if len(files) > 1:
            both = " and ".join(str(file.path.relative_to(folder)) for file in files[:2])
            raise UserError(f"{folder}: two COCO files of {split}: {both}. Keep one, or name the one you mean.")
    if ALL in found and len(found) > 1:
        path = found[ALL][0].path
        raise UserError(f"{path}: cannot tell which split this COCO file is of; have train, val or test in its name.")
    known = {split: one for split, (one,) in found.items()}
    return {ALL: next(iter(known.values()))} if len(known) == 1 else merged_trainval(known)


def _candidates(folder: Path) -> Iterator[Path]:
    inside = subfolders(folder, Skipped(""))
    places = [folder, *(path for path in inside if path.name.lower() == "annotations" or _split_in(path.name))]
    for place in places:
        for entry in entries(place):
            is_other = entry.name.startswith((".", *OTHERS))
            if entry.name.lower().endswith(".json") and not is_other and entry.is_file():
                yield place / entry.name


def _split_of(path: Path, root: Path) -> str | None:
    """By the name of a file, or of the folder it lies in."""
    return _split_in(path.stem) or (_split_in(path.parent.name) if path.parent != root else None)


def _split_in(name: str) -> str | None:
    """instances_train2017 -> train"""
    words = re.findall(r"[A-Za-z]+", name)
    return next((split for word in words if (split := split_of(word)) is not None), None)


def _read(path: Path) -> CocoFile | None:
    """None where it is some other JSON file."""
    head = _head(path)
    if not (head.startswith("{") and re.search(r'"(images|annotations|categories)"\s*:', head)):
        return None
    try:
        document = json.loads(read_regular(path, MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as JSON ({first_line(error)}).") from None
    images, annotations, categories = (_records(document.get(key)) for key in KEYS)
    if images is None or annotations is None:
        return None
    has_objects = any("bbox" in one or "segmentation" in one for one in annotations)
    if not (has_objects or (not annotations and categories is not None)):
        return None
    if categories is None:
        raise UserError(f"{path}: has no list called categories: name the classes there.")
    return CocoFile(path, images, annotations, categories)


def _head(path: Path) -> str:
    """How a file begins, as JSON would read it."""
    try:
        with open_regular(path) as file:
            start = file.read(PEEK_BYTES)
    except OSError as error:
        raise UserError(f"{path}: cannot be read as JSON ({first_line(error)}).") from None
    return start.decode(json.detect_encoding(start), "replace").lstrip()


def _records(part: object) -> list[dict[str, Any]] | None:
    """What stands in a list and is no record has nothing of what is looked for."""
    return [one if isinstance(one, dict) else {} for one in part] if isinstance(part, list) else None


# ---- What they hold


def _categories(file: CocoFile) -> dict[int, str]:
    """The name of every class by its number, in their order."""
    known: dict[int, str] = {}
    for one in file.categories:
        match one:
            case {"id": int(number), "name": str(name)} if name.strip():
                if known.setdefault(number, name) != name:
                    both = f"{known[number]!r} and {name!r}"
                    raise UserError(f"{file.path}: two categories have the number {shown(number)}: {both}.")
            case _:
                raise UserError(f"{file.path}: a category without a number and a name: {shown(one)}.")
    if not known:
        raise UserError(f"{file.path}: has no categories: name the classes there.")
    return dict(sorted(known.items()))


def _groups(files: Collection[CocoFile]) -> list[str]:
    """Categories that no object has, and that others are below: services add one to every set that they export."""
    above: set[str] = set()
    used: set[str] = set()
    unused: set[str] = set()
    for file in files:
        numbers = {one["category_id"] for one in file.annotations if isinstance(one.get("category_id"), int)}
        for number, called in _categories(file).items():
            (used if number in numbers else unused).add(called)
        groups = ((one["name"], one.get("supercategory")) for one in file.categories)
        above |= {group for called, group in groups if isinstance(group, str) and group != called}
    return sorted(above & unused - used) if used else []


def _annotated(file: CocoFile, folder: Path, numbers: Mapping[int, int], most_bad: int | None) -> Annotated:
    """`folder`: where the pictures lie; `numbers`: the place of a class by its number in the file."""
    found = Annotated()
    places: dict[Any, int] = {}
    for one in file.images:
        match one:
            case {"id": int() | str() as number, "file_name": str(name)} if number not in places:
                places[number] = len(found)
                found.pictures.append(_picture(folder, name))
                found.ids.append(number)
                found.sizes.append(_size(one))
            case _:
                raise UserError(f"{file.path}: an image without a file_name and an id of its own: {shown(one)}.")
    bad = BadFiles(
        str(file.path), len(file.annotations), most_bad, "annotations cannot be used, their pictures left out"
    )
    wrong: set[int] = set()
    for number, one in enumerate(file.annotations):
        try:
            _add(found, one, places, numbers)
        except _WrongError as error:
            image = one.get("image_id")
            wrong |= {places[image]} if isinstance(image, int | str) and image in places else set()
            called = shown(one["id"]) if "id" in one else f"number {number}"
            bad.add(f"annotation {called}", str(error))
    if bad and (len(bad) == len(file.annotations) or len(wrong) == len(found)):
        raise UserError(bad.summary())
    bad.check()
    if not bad:
        return found
    found.notes.append(bad.summary().removesuffix("."))
    return found.chosen([place for place in range(len(found)) if place not in wrong])


def _picture(folder: Path, name: str) -> str:
    """Its path; beside the others where it was in some other folder when it was annotated, or on a Windows machine."""
    path = folder / name
    elsewhere = (folder / name.replace("\\", "/"), folder / PureWindowsPath(name).name)
    return str(next((one for one in (path, *elsewhere) if is_regular(one)), path))


class _WrongError(Exception):
    """What is wrong with an annotation."""


def _add(found: Annotated, one: Mapping[str, Any], places: Mapping[int | str, int], numbers: Mapping[int, int]) -> None:
    image, category, outline = one.get("image_id"), one.get("category_id"), one.get("segmentation") or None
    if not isinstance(image, int | str) or image not in places:
        raise _WrongError(f"there is no image {shown(image)}")
    if not isinstance(category, int) or category not in numbers:
        raise _WrongError(f"there is no category {shown(category)}")
    text = json.dumps(outline) if outline else ""
    found.add(places[image], _box(one, outline), numbers[category], crowd=bool(one.get("iscrowd")), outline=text)


def _size(image: Mapping[str, Any]) -> tuple[int, int]:
    """What the boxes refer to; where it is not told, the picture itself, which is still to be looked at."""
    match image:
        case {"height": int() | float() as height, "width": int() | float() as width}:
            return stated(height, width)
    return UNKNOWN


def _box(annotation: Mapping[str, Any], outline: Any) -> tuple[float, ...]:
    """x0 y0 x1 y1"""
    match annotation.get("bbox"):
        case [int() | float() as x, int() | float() as y, int() | float() as width, int() | float() as height]:
            try:
                corners = float(x), float(y), float(x) + float(width), float(y) + float(height)
            except OverflowError:
                corners = (math.inf,) * 4
            if not all(map(math.isfinite, corners)):
                raise _WrongError("its bbox has a number that is no number, or too large")
            return corners
        case None if outline is not None:
            try:
                found = bounds(outline)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise _WrongError(f"its segmentation cannot be read ({first_line(error)})") from None
            return found or (0.0, 0.0, 0.0, 0.0)
        case other:
            raise _WrongError(f"its bbox is {shown(other)}, not x, y, width and height")


# ---- Where the pictures lie


def _folder(file: CocoFile, root: Path) -> Path:
    """The folder of the pictures, found by some of the names from all over the file."""
    some = file.images[:: max(1, len(file.images) // PROBED)]
    names = [one["file_name"] for one in some if isinstance(one.get("file_name"), str)]
    split = _split_of(file.path, root)
    inside = [path for path in subfolders(root, Skipped("")) if not path.name.startswith(MAPS)]
    alike = [path for path in inside if split is not None and _split_in(path.name) == split]
    within = [path for path in inside if path.name.lower() in IMAGES]
    deeper = [path for one in within for path in subfolders(one, Skipped("")) if _split_in(path.name) in (split, None)]
    deeper.sort(key=lambda path: _split_in(path.name) is None)
    candidates = [file.path.parent, *alike, *(path / "images" for path in alike), *deeper, *within, root]
    candidates += [*(path for path in inside if _split_in(path.name) is None), root.parent]
    for folder in candidates:
        if any(is_regular(Path(_picture(folder, name))) for name in names):
            return folder
    if not names:
        return file.path.parent
    looked = listed([str(path) for path in dict.fromkeys(candidates) if path.is_dir()], 4)
    raise UserError(f"{file.path}: its pictures ({names[0]}, ...) are in none of {looked}.")


def _note_unlabelled(
    splits: Mapping[str, Annotated], folders: Mapping[str, Path], files: Mapping[str, CocoFile]
) -> None:
    """Pictures that lie beside, and that no file names."""
    known = {_picture(folders[split], one["file_name"]) for split, file in files.items() for one in file.images}
    for folder in dict.fromkeys(folders.values()):
        lying = list(pictures_under(folder, Skipped("")))
        beside = [path for path in lying if path not in known]
        if 0 < len(beside) < len(lying):  # none, where a file names pictures by their whole paths
            names = listed([Path(path).name for path in beside], 3)
            split = next(split for split, one in folders.items() if one == folder)
            splits[split].notes.append(f"{folder}: unlabelled pictures left out: {len(beside):,} ({names})")
