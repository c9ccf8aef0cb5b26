"""LabelMe: a JSON file per picture, with the shapes that somebody drew.

Rectangles, polygons and circles are objects; points and lines have no area, and are left out. Shapes of a class with
the same group_id are one object in several pieces. A picture without a file was never labelled, and is left out; so is
one whose file cannot be read.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

from vitreous.data.base import BadFiles, Source
from vitreous.data.detected import UNKNOWN, Classes, stated, with_boxes
from vitreous.data.files import is_regular, open_regular, read_regular
from vitreous.data.folder import split_folder
from vitreous.data.names import ALL, merged_trainval
from vitreous.data.objects import Annotated
from vitreous.data.outlines import bounds
from vitreous.data.pairs import IMAGES
from vitreous.data.skipped import Skipped, listed
from vitreous.data.walk import entries, pictures_under, subfolders
from vitreous.errors import UserError, first_line, shown

MAX_BYTES = 256 * 2**20  # of a file, which may hold the picture too
PEEK_BYTES, PROBED = 2**12, 3  # of a file, and files, to tell what they are
LABELS = ("labels", "annotations", "json", "labelme")  # folders of such files beside those of the pictures
DRAWN = ("rectangle", "polygon", "circle", "mask")
CORNERS = 64  # of a circle
_SHAPES = re.compile(rb'"shapes"\s*:\s*\[')


class Drawn(NamedTuple):
    label: str
    rings: list[list[float]]  # x and y in turn
    is_exact: bool  # rather than known by its box alone


@dataclass
class LabelmeFile:
    picture: str  # as the file names it
    size: tuple[int, int]
    objects: list[Drawn] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)  # shapes without an area, by their kind


def open_labelme(folder: Path, most_bad: int | None = None) -> dict[str, Source]:
    """The splits of a folder with such files; none where there are none. `most_bad`: so many may be broken."""
    files = labelme_files(folder)
    read = {split: _readable(paths, str(folder), most_bad) for split, paths in files.items()}
    names = tuple(sorted({one.label for part, _ in read.values() for file in part.values() for one in file.objects}))
    splits = {split: _annotated(folder, part, names) for split, (part, _) in read.items()}
    for split, (_, notes) in read.items():
        splits[split].notes[:0] = [f"{folder}: read as pictures with boxes (LabelMe)", *notes]
    return with_boxes(folder.name, splits, dict.fromkeys(splits, Classes(names)))


# ---- Which files


def labelme_files(folder: Path) -> dict[str, list[Path]]:
    """In the folder, in folders of splits, or in one of labels."""
    inside = subfolders(folder, Skipped(""))
    splits = {split: files for path in inside if (split := split_folder(path)) and (files := _files(path))}
    if splits:
        return merged_trainval(splits)
    beside = [folder, *(path for path in inside if path.name.lower() in (*LABELS, *IMAGES))]
    files = next((files for path in beside if (files := _files(path))), [])
    return {ALL: files} if files else {}


def _files(folder: Path) -> list[Path]:
    """None unless one of the first few is of LabelMe."""
    files = [folder / entry.name for entry in entries(folder) if entry.name.lower().endswith(".json")]
    files = [path for path in files if is_regular(path)]
    return files if any(map(_is_ours, files[:PROBED])) else []


def _is_ours(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return bool(_SHAPES.search(file.read(PEEK_BYTES)))
    except OSError:
        return False


# ---- What they hold


def _readable(paths: Sequence[Path], where: str, most_bad: int | None) -> tuple[dict[Path, LabelmeFile], list[str]]:
    """What the files say; a picture whose file is broken is left out."""
    bad = BadFiles(where, len(paths), most_bad, "JSON files cannot be used, their pictures left out")
    found: dict[Path, LabelmeFile] = {}
    for path in paths:
        try:
            found[path] = _read(path)
        except (OSError, ValueError, RecursionError) as error:
            bad.add(str(path), first_line(error))
    if not found:
        raise UserError(bad.summary())
    bad.check()
    left_out = sum((file.left_out for file in found.values()), Counter[str]())
    kinds = ", ".join(f"{num:,} {kind}" for kind, num in left_out.most_common())
    notes = [f"{where}: shapes without an area, left out: {kinds}"] if left_out else []
    return found, notes + ([bad.summary().removesuffix(".")] if bad else [])


def _read(path: Path) -> LabelmeFile:
    """Raises ValueError, which says what is wrong."""
    document = json.loads(read_regular(path, MAX_BYTES))
    match document:
        case {"shapes": list(shapes), "imagePath": str(picture)}:
            size = document.get("imageHeight"), document.get("imageWidth")
        case _:
            raise ValueError("it has no shapes, or no imagePath")
    known = all(isinstance(side, int | float) for side in size)
    found = LabelmeFile(picture, stated(*size) if known else UNKNOWN)
    groups: dict[tuple[str, Any], Drawn] = {}
    for number, shape in enumerate(shapes, 1):
        try:
            label, kind, rings = _drawn(shape)
        except ValueError as error:
            raise ValueError(f"shape {number}: {error}") from None
        if kind not in DRAWN:
            found.left_out[kind] += 1
            continue
        group = shape.get("group_id")
        key = label, f"alone {number}" if group is None else str(group)
        one = groups.setdefault(key, Drawn(label, [], kind in ("polygon", "circle")))
        groups[key] = one._replace(rings=[*one.rings, *rings], is_exact=one.is_exact and kind in ("polygon", "circle"))
    found.objects = list(groups.values())
    return found


def _drawn(shape: Any) -> tuple[str, str, list[list[float]]]:
    """Its label, its kind, and its outline."""
    match shape:
        case {"label": str(label), "points": list(points)} if label.strip():
            kind = shape.get("shape_type") or "polygon"
        case _:
            raise ValueError(f"{shown(shape)} has no label, or no points")
    try:
        corners = [(float(x), float(y)) for x, y in points]
    except (TypeError, ValueError):
        raise ValueError(f"{label}: points are x and y, not {shown(points)}") from None
    least = {"polygon": 3}.get(kind, 2 if kind in DRAWN else 0)
    if len(corners) < least or not all(math.isfinite(side) for corner in corners for side in corner):
        raise ValueError(f"{label}: a {kind} needs {least} points, not {shown(points)}")
    if kind == "circle":
        (x, y), edge = corners[0], corners[1]
        radius, turns = math.dist((x, y), edge), [2 * math.pi * step / CORNERS for step in range(CORNERS)]
        corners = [(x + radius * math.cos(turn), y + radius * math.sin(turn)) for turn in turns]
    return label.strip(), str(kind), [[side for corner in corners for side in corner]]


def _annotated(folder: Path, files: Mapping[Path, LabelmeFile], names: Sequence[str]) -> Annotated:
    numbers = {name: number for number, name in enumerate(names)}
    lying = {Path(path).name: path for path in pictures_under(folder, Skipped(""))}
    found, alone = Annotated(), []
    for path, file in files.items():
        picture = next((one for one in _places(path, file.picture, lying) if is_regular(Path(one))), None)
        if picture is None:
            alone.append(path.name)
            continue
        found.pictures.append(picture)
        found.ids.append(len(found))
        found.sizes.append(file.size)
        for one in file.objects:
            box = bounds(one.rings)
            assert box is not None
            outline = json.dumps(one.rings) if one.is_exact else ""
            found.add(len(found) - 1, box, numbers[one.label], outline=outline)
    if alone and not found:
        raise UserError(f"{folder}: none of the pictures that its LabelMe files name is there ({listed(alone, 3)}).")
    if alone:
        found.notes.append(f"{folder}: JSON files without a picture, skipped: {len(alone):,} ({listed(alone, 3)})")
    folders = {Path(picture).parent for picture in found.pictures}
    if bare := sorted({name for name, path in lying.items() if Path(path).parent in folders} - _names(found)):
        found.notes.append(f"{folder}: unlabelled pictures left out: {len(bare):,} ({listed(bare, 3)})")
    return found


def _places(path: Path, named: str, lying: Mapping[str, str]) -> Iterator[str]:
    """Where a picture may lie: as the file says, or wherever one of its name is, since files are moved."""
    yield str(path.parent / named.replace("\\", "/"))
    name = PureWindowsPath(named).name
    yield str(path.parent / name)
    if name in lying:
        yield lying[name]


def _names(annotated: Annotated) -> set[str]:
    return {Path(picture).name for picture in annotated.pictures}
