"""Objects in parquet files of the Hugging Face layout: a column `objects` with lists of boxes and classes per picture.

A picture without objects has empty lists. Where the whole cell is null, the picture was never labelled: it is left out,
as is one with a box or a class that cannot be read.
"""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vitreous.data.base import BadFiles, Source, Subset
from vitreous.data.detected import MOST_PX
from vitreous.data.images import BadPicture, read_shape
from vitreous.data.names import Layout
from vitreous.data.objects import Annotated, checked
from vitreous.data.outlines import WrittenOutlines
from vitreous.data.targets import Boxes
from vitreous.data.threads import in_threads
from vitreous.errors import UserError, shown

COLUMN = "objects"
COLUMNS = (COLUMN, "image_id", "height", "width")  # that are read
BOXES = ("bbox", "boxes", "bboxes", "box")
CLASSES = ("category", "categories", "category_id", "label", "labels", "class", "classes", "class_id")
OUTSIDE_PX = 2.0  # by which a box that is read in the wrong way leaves its picture

Format = Literal["xyxy", "xywh"]


class Known(NamedTuple):
    """Of one split."""

    targets: Boxes  # of all rows
    classes: tuple[str, ...]
    labelled: NDArray[np.int64]  # the rows that are, and can be read
    notes: tuple[str, ...]

    def labelled_of(self, source: Source) -> Source:
        """Of a source with all rows, those that were labelled."""
        if len(self.labelled) == len(source):
            return source
        found = Subset(source, self.labelled, source.name)
        found.notes = self.notes
        return found


def reads_objects(schema: pa.Schema, labels: Collection[str], layout: Layout, where: str) -> bool:
    """Whether there are any, and nothing else is asked for, or there: `labels` are columns of these."""
    has_objects = COLUMN in schema.names and bool(pa.types.is_nested(schema.field(COLUMN).type))
    if layout.targets == "boxes" and not has_objects:
        raise UserError(f"{where}: no column {COLUMN!r} with boxes.")
    others = layout.label_column or layout.mask_column or labels
    return has_objects and (layout.targets == "boxes" or (layout.targets is None and not others))


def read_objects(
    columns: Mapping[str, Sequence[Any]],
    schema: pa.Schema,
    stored: Callable[[int], bytes | Path],
    where: str,
    most_bad: int | None,
) -> Known:
    """`columns`: those of COLUMNS that there are; `stored`: the picture of a row, which may raise BadPicture;
    `most_bad`: so many rows may be broken."""
    rows = [_columns(cell, where) for cell in columns[COLUMN]]
    sizes = _sizes(columns, stored)
    box_name, class_name = (
        _present(rows, usual, what, where) for usual, what in ((BOXES, "boxes"), (CLASSES, "classes"))
    )
    names = _listed_in(schema, b"classes", str) or _names_inside(schema, class_name)
    bad = BadFiles(where, len(rows), most_bad, "rows cannot be used, their pictures left out")
    found, marks, labelled = _gathered(rows, (box_name, class_name), names, bad)
    if bad and not len(labelled):
        raise UserError(bad.summary())
    bad.check()
    classes, numbers = _numbered(marks, names)
    boxes = np.array(found.boxes, dtype=np.float64).reshape(-1, 4)
    owner = np.array(found.owner, dtype=np.int64)
    written, how = _format(boxes, sizes[owner], schema)
    if written == "xywh":
        boxes = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    objects = checked(owner, boxes, numbers, found.crowd, sizes)
    turns = np.ones(len(owner), dtype=np.int64)
    outlines = WrittenOutlines(found.outlines, sizes[owner], turns) if any(found.outlines) else None
    notes = [f"{where}: read as pictures with boxes (the column {COLUMN}; {how})"]
    if unlabelled := len(rows) - len(labelled) - len(bad):
        notes.append(f"{where}: unlabelled pictures left out: {unlabelled:,} ({COLUMN} is null)")
    if bad:
        notes.append(bad.summary().removesuffix("."))
    category_ids = _listed_in(schema, b"coco_category_ids", int)
    numbers_of = category_ids if category_ids is not None and len(category_ids) == len(classes) else None
    targets = Boxes(objects, sizes, outlines, ids=columns.get("image_id"), category_ids=numbers_of)
    return Known(targets, classes, labelled, tuple(notes))


def _sizes(columns: Mapping[str, Sequence[Any]], stored: Callable[[int], bytes | Path]) -> NDArray[np.int64]:
    """(N, 2): heights and widths, as the file tells them; else by the pictures' headers."""
    if "height" in columns and "width" in columns:
        told = np.array([columns["height"], columns["width"]], dtype=np.float64).T
        if ((told >= 1) & (told < MOST_PX)).all():
            return told.astype(np.int64)
    num = len(columns[COLUMN])
    shapes = in_threads(num, lambda index: read_shape(stored(index)), "sizes of pictures")
    found = [(1, 1) if isinstance(shape, BadPicture) else shape[:2] for shape in shapes]
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def _columns(cell: Any, where: str) -> dict[str, Sequence[Any]] | None:
    """A record of lists; also of a list of records."""
    if cell is None:
        return None
    if isinstance(cell, list):
        if not all(isinstance(one, dict) for one in cell):
            raise UserError(f"{where}: column {COLUMN!r} holds {shown(cell)}: expected records of a box and a class.")
        return {name: [one[name] for one in cell] for name in (cell[0] if cell else ())}
    return {name: values for name, values in cell.items() if isinstance(values, list)}


def _present(rows: Sequence[Mapping[str, Any] | None], usual: Sequence[str], what: str, where: str) -> str:
    names = {name for row in rows if row for name in row}
    for name in usual:
        if name in names:
            return name
    if not names:
        return usual[0]  # not one picture has an object
    raise UserError(f"{where}: column {COLUMN!r} has no {what} ({', '.join(usual)}) among {', '.join(sorted(names))}.")


def _gathered(
    rows: Sequence[Mapping[str, Any] | None],
    columns: tuple[str, str],
    classes: Sequence[str] | None,
    bad: BadFiles,
) -> tuple[Annotated, list[Any], NDArray[np.int64]]:
    """All objects, what their classes are called, and the rows that were labelled. `columns`: of boxes and of classes;
    `classes`: where the file names them."""
    found, marks, labelled = Annotated(), [], []
    for at, row in enumerate(rows):
        if row is None:
            continue
        boxes, names = (row.get(name) or [] for name in columns)
        crowd, outlines = row.get("iscrowd") or [0] * len(boxes), row.get("segmentation") or [None] * len(boxes)
        if wrong := _what_is_wrong(boxes, names, len(crowd) == len(outlines) == len(boxes), classes):
            bad.add(f"row {at}", wrong)
            continue
        labelled.append(at)
        for box, name, is_crowd, outline in zip(boxes, names, crowd, outlines, strict=True):
            found.add(at, box, 0, crowd=bool(is_crowd), outline=_as_text(outline))
            marks.append(name)
    return found, marks, np.array(labelled, dtype=np.int64)


def _what_is_wrong(boxes: Sequence[Any], names: Sequence[Any], fit: bool, classes: Sequence[str] | None) -> str:
    """With the objects of a row."""
    if len(boxes) != len(names) or not fit:
        return f"{len(boxes)} boxes, but {len(names)} classes" if fit else "lists of different lengths"
    for box, name in zip(boxes, names, strict=True):
        if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)) or name is None:
            return f"the box {shown(box)} of {shown(name)} is not four numbers and a class"
        if classes is not None and isinstance(name, int) and not 0 <= name < len(classes):
            return f"class {name}, but only {len(classes)} class names in the file's metadata"
    return ""


def _is_number(side: Any) -> bool:
    return isinstance(side, int | float) and math.isfinite(side)


def _as_text(outline: Any) -> str:
    return "" if not outline else outline if isinstance(outline, str) else json.dumps(outline)


def _numbered(marks: Sequence[Any], names: Sequence[str] | None) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The names of the classes, and the number of each object's. `names`: where the file has them."""
    if names is not None and all(isinstance(mark, int) for mark in marks):
        return tuple(names), np.array(marks, dtype=np.int64)
    unique, inverse = np.unique(np.array(marks) if marks else np.array([], dtype=np.int64), return_inverse=True)
    return tuple(map(str, unique)) or ("object",), inverse.astype(np.int64).reshape(-1)


def _listed_in(schema: pa.Schema, key: bytes, kind: type) -> list[Any] | None:
    """A list in the file's own metadata."""
    try:
        values = json.loads((schema.metadata or {}).get(key, b"null"))
    except ValueError:
        return None
    return values if isinstance(values, list) and values and all(isinstance(one, kind) for one in values) else None


def _names_inside(schema: pa.Schema, class_name: str) -> list[str] | None:
    """The names of classes in the hub's metadata, wherever they stand below the column."""
    try:
        about = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"][COLUMN]
    except (ValueError, KeyError, TypeError):
        return None
    return _names_below(_field(about, class_name))


def _field(about: Any, name: str) -> Any:
    while isinstance(about, dict) and name not in about and "feature" in about:
        about = about["feature"]
    about = about[0] if isinstance(about, list) and about else about
    return about.get(name) if isinstance(about, dict) else None


def _names_below(about: Any) -> list[str] | None:
    while isinstance(about, dict | list) and about:
        about = about[0] if isinstance(about, list) else about
        if isinstance(about, dict) and isinstance(about.get("names"), list):
            return [str(name) for name in about["names"]]
        about = about.get("feature") if isinstance(about, dict) else about
    return None


def _format(boxes: NDArray[np.float64], sizes: NDArray[np.int64], schema: pa.Schema) -> tuple[Format, str]:
    """How boxes are written, and how that is known: the file says so, or only one way makes sense. Where both do, as
    in COCO, which the hub's own documentation follows."""
    said = (schema.metadata or {}).get(b"bbox_format", b"").decode(errors="replace").lower()
    for name in ("xyxy", "xywh"):
        if name in said:
            return name, f"boxes are {name}, as the file says"
    edge = sizes[:, ::-1] + OUTSIDE_PX
    fits_xyxy = bool((boxes[:, 2:] >= boxes[:, :2]).all())
    fits_xywh = bool((boxes[:, :2] + boxes[:, 2:] <= edge).all())
    if fits_xyxy and not fits_xywh:
        return "xyxy", "boxes are read as xyxy: as xywh they would extend beyond their pictures"
    return "xywh", "boxes are read as xywh"
