"""Pascal VOC: an XML file per picture (Everingham et al. 2010).

Corners are pixels counted from 1, the last one included: xmin 1 and xmax 3 are three pixels wide. Where a set has a
corner at 0 its pixels are counted from there, and the last one is taken as a border. What is marked as difficult is
neither learned nor counted, as in the challenge itself. A picture without a file was never labelled, and is left out;
so is one whose file cannot be read.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from vitreous.data.base import BadFiles, Source
from vitreous.data.detected import UNKNOWN, Classes, stated, with_boxes
from vitreous.data.files import open_regular, read_regular
from vitreous.data.folder import split_folder
from vitreous.data.lists import listed_splits
from vitreous.data.names import ALL, merged_trainval
from vitreous.data.objects import Annotated
from vitreous.data.pairs import IMAGES
from vitreous.data.skipped import Skipped, listed
from vitreous.data.walk import entries, pictures_under, subfolders
from vitreous.errors import UserError, first_line

MAX_BYTES = 16 * 2**20  # of a file
PEEK_BYTES = 2**12
LISTS = ("imagesets/main", ".")
CORNERS = ("xmin", "ymin", "xmax", "ymax")


@dataclass
class VocFile:
    """What an XML file says."""

    size: tuple[int, int]
    objects: list[dict[str, str]] = field(default_factory=list)  # with their name, difficult and corners
    boxes: list[tuple[float, float, float, float]] = field(default_factory=list)  # as they are written


def open_voc(folder: Path, most_bad: int | None = None) -> dict[str, Source]:
    """The splits of a folder that is laid out so; none where it is not. `most_bad`: so many XML files may be broken."""
    found = voc_folders(folder)
    if not found:
        return {}
    pairs = {split: _paired(*both) for split, both in found.items()}
    read = {split: _readable(part, str(folder), most_bad) for split, part in pairs.items()}
    every = [one for files in read.values() for one in files]
    names = tuple(sorted({one["name"] for file in every for one in file.objects}))
    first = 0 if any(0 in box[:2] for file in every for box in file.boxes) else 1
    splits = {split: _annotated(pairs[split], files, names, first) for split, files in read.items()}
    if list(splits) == [ALL]:
        splits = _by_lists(found[ALL][0].parent, splits[ALL])
    how = "corners counted from 0" if first == 0 else "corners counted from 1, as VOC does"
    for annotated in splits.values():
        annotated.notes.insert(0, f"{folder}: read as pictures with boxes (Pascal VOC; {how})")
    return with_boxes(folder.name, splits, dict.fromkeys(splits, Classes(names)))


# ---- Folders


def voc_folders(folder: Path) -> dict[str, tuple[Path, Path]]:
    """By split: where the pictures lie, and where the XML files."""
    inside = {path.name.lower(): path for path in subfolders(folder, Skipped(""))}
    if "annotations" in inside and any(_xml_under(inside["annotations"])):
        pictures = next((inside[name] for name in IMAGES if name in inside), None)
        if pictures is None:
            raise UserError(
                f"{inside['annotations']}: has XML files, but there are no pictures in JPEGImages beside it."
            )
        return {ALL: (pictures, inside["annotations"])}
    splits = {split: path for path in inside.values() if (split := split_folder(path)) is not None and _has_xml(path)}
    if splits:
        return merged_trainval({split: (path, path) for split, path in splits.items()})
    if _has_xml(folder):
        return {ALL: (folder, folder)}
    years = [path for name, path in inside.items() if name.startswith("voc")]
    known = [found for path in years if (found := voc_folders(path))]
    if len(known) > 1:
        raise UserError(f"{folder}: holds {' and '.join(path.name for path in years)}. Name one of them.")
    return known[0] if known else {}


def _has_xml(folder: Path) -> bool:
    return any(entry.name.lower().endswith(".xml") and entry.is_file() for entry in entries(folder))


def _xml_under(folder: Path) -> Iterator[Path]:
    """At any depth."""
    every = (path for path in folder.rglob("*") if path.suffix.lower() == ".xml" and path.is_file())
    return (path for path in every if not path.name.startswith("."))


@dataclass
class _Paired:
    pairs: list[tuple[str, str, str]]  # the name of a picture, where it lies, and its file
    notes: list[str]


def _paired(pictures: Path, annotations: Path) -> _Paired:
    """By their paths, or by their names where one of them lies in sub-folders and the other does not."""
    files = {_below(annotations, path): path for path in sorted(_xml_under(annotations))}
    names = {path: _below(pictures, Path(path)) for path in pictures_under(pictures, Skipped(""))}
    by_name = {name.rpartition("/")[2]: name for name in sorted(files.keys() - names.values())}
    pairs, bare = [], []
    for path, name in names.items():
        known = name if name in files else by_name.get(Path(path).stem, name)
        if known in files:
            pairs.append((name, path, str(files.pop(known))))
        else:
            bare.append(Path(path).name)
    notes = []
    if not pairs and any(_is_of_cvat(path) for path in files.values()):
        raise UserError(f"{annotations}: an XML file of CVAT's own, which is not read. Export it as COCO, YOLO or VOC.")
    if not pairs:
        raise UserError(f"{annotations}: no XML file has the name of a picture in {pictures}.")
    if bare:
        notes.append(f"{pictures}: unlabelled pictures left out: {len(bare):,} ({listed(sorted(bare), 3)})")
    if files:
        listing = listed([path.name for path in files.values()], 3)
        notes.append(f"{annotations}: XML files without a picture, skipped: {len(files):,} ({listing})")
    return _Paired(pairs, notes)


def _below(folder: Path, path: Path) -> str:
    return path.relative_to(folder).with_suffix("").as_posix()


def _is_of_cvat(path: Path) -> bool:
    with open_regular(path) as file:
        return b"<annotations>" in file.read(PEEK_BYTES)


def _by_lists(root: Path, every: Annotated) -> dict[str, Annotated]:
    """The splits that lists in ImageSets/Main name, where there are any; else all as one."""
    lists = listed_splits(root, [str(name) for name in every.ids], LISTS)
    if not lists:
        return {ALL: every}
    found = {split: every.chosen(places) for split, (places, _) in lists.items()}
    for split, (_, notes) in lists.items():
        found[split].notes += notes
    return found


# ---- Files


def _annotated(part: _Paired, files: Sequence[VocFile], names: Sequence[str], first: int) -> Annotated:
    numbers = {name: number for number, name in enumerate(names)}
    found = Annotated(notes=list(part.notes))
    for (name, picture, _), file in zip(part.pairs, files, strict=True):
        found.pictures.append(picture)
        found.ids.append(name)
        found.sizes.append(file.size)
        for one, (x0, y0, x1, y1) in zip(file.objects, file.boxes, strict=True):
            is_hard = one.get("difficult", "0").strip() == "1"
            found.add(len(found) - 1, (x0 - first, y0 - first, x1, y1), numbers[one["name"]], crowd=is_hard)
    return found


def _readable(part: _Paired, where: str, most_bad: int | None) -> list[VocFile]:
    """What the files say; a picture whose file is broken leaves the part."""
    bad = BadFiles(where, len(part.pairs), most_bad, "XML files cannot be used, their pictures left out")
    found: list[VocFile] = []
    pairs: list[tuple[str, str, str]] = []
    for name, picture, xml in part.pairs:
        try:
            found.append(_read(Path(xml)))
            pairs.append((name, picture, xml))
        except UserError as error:
            bad.add(xml, str(error).removeprefix(f"{xml}: ").removesuffix("."))
    if not found:
        raise UserError(bad.summary())
    bad.check()
    if bad:
        part.notes.append(bad.summary().removesuffix("."))
    part.pairs = pairs
    return found


def _read(path: Path) -> VocFile:
    size, objects = _parsed(path)
    try:
        found = VocFile(stated(float(size.get("height", "0")), float(size.get("width", "0"))), objects)
    except ValueError:
        found = VocFile(UNKNOWN, objects)
    for number, one in enumerate(objects, 1):
        if not one.get("name"):
            raise UserError(f"{path}: object {number} has no name.")
        found.boxes.append(_corners(one, f"{path}: object {number} ({one['name']})"))
    return found


def _corners(one: Mapping[str, str], where: str) -> tuple[float, float, float, float]:
    missing = [name for name in CORNERS if name not in one]
    if missing:
        raise UserError(f"{where}: its bndbox has no {missing[0]}.")
    try:
        x0, y0, x1, y1 = (float(one[name]) for name in CORNERS)
    except ValueError:
        raise UserError(
            f"{where}: its bndbox is {', '.join(one[name] for name in CORNERS)}, not four numbers."
        ) from None
    if not all(map(math.isfinite, (x0, y0, x1, y1))):
        raise UserError(f"{where}: its bndbox is {x0}, {y0}, {x1}, {y1}, not four numbers.")
    return x0, y0, x1, y1


def _parsed(path: Path) -> tuple[dict[str, str], list[dict[str, str]]]:
    """The size, and the objects: of what stands right in them, or in their bndbox, all texts by name."""
    size: dict[str, str] = {}
    objects: list[dict[str, str]] = []
    above: list[str] = []
    texts: list[str] = []

    def start(name: str, _: dict[str, str]) -> None:
        above.append(name)
        texts.clear()
        if above[1:] == ["object"]:
            objects.append({})

    def end(name: str) -> None:
        text = "".join(texts).strip()
        match above[1:]:
            case ["size", _]:
                size[name] = text
            case ["object", "name" | "difficult"] | ["object", "bndbox", _]:
                objects[-1].setdefault(name, text)
        above.pop()
        texts.clear()

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = texts.append
    parser.StartDoctypeDeclHandler = _refuse_doctype
    try:
        parser.Parse(read_regular(path, MAX_BYTES), True)
    except (OSError, expat.ExpatError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as XML ({first_line(error)}).") from None
    return size, objects


def _refuse_doctype(*_: object) -> None:
    # What it declares may grow to any size, or name other files: no annotation needs it.
    raise ValueError("it declares a document type, which is not read")
