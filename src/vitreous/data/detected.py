"""Pictures with boxes, as files: what a reader of a format found becomes sources.

Boxes refer to a size that the annotations name. Where a picture has another one now, the boxes are scaled with it;
where it was annotated as it is stored, and is to be turned, they are turned with it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitreous.data.base import Source
from vitreous.data.folder import FileSource
from vitreous.data.images import BadPicture, Shape, read_shape
from vitreous.data.names import ALL
from vitreous.data.objects import FAR_PX, Annotated, Numbers, checked
from vitreous.data.outlines import WrittenOutlines
from vitreous.data.skipped import listed
from vitreous.data.targets import Boxes
from vitreous.data.threads import in_threads

# What boxes refer to, in place of a picture's size:
RELATIVE = (1, 1)  # they are shares of its sides
UNKNOWN = (0, 0)  # its size as it is
MOST_PX = 2**31  # of a side


def stated(height: float, width: float) -> tuple[int, int]:
    """The size that annotations state; the picture's own where they state none that a picture could have."""
    return (int(height), int(width)) if 1 <= height < MOST_PX and 1 <= width < MOST_PX else UNKNOWN


class Classes(NamedTuple):
    names: tuple[str, ...]
    numbers: tuple[int, ...] | None = None  # that the data set has for them


def with_boxes(name: str, splits: Mapping[str, Annotated], classes: Mapping[str, Classes]) -> dict[str, Source]:
    """`classes`: of every split."""
    found: dict[str, Source] = {}
    empty = [f"{name}: no pictures in {split}" for split, annotated in splits.items() if not annotated]
    for split, annotated in splits.items():
        if not annotated:
            continue
        called = name if split == ALL else f"{name} {split}"
        targets, notes = _targets(called, annotated, classes[split].numbers)
        notes = (*annotated.notes, *empty, *notes)
        found[split] = FileSource(called, annotated.pictures, targets, classes[split].names, notes)
    return found


def _targets(name: str, annotated: Annotated, category_ids: Sequence[int] | None) -> tuple[Boxes, tuple[str, ...]]:
    shapes = list(in_threads(len(annotated), lambda at: read_shape(Path(annotated.pictures[at])), "sizes of pictures"))
    given, sizes, turns, notes = _sizes(name, annotated, shapes)
    owner = np.array(annotated.owner, dtype=np.int64)
    boxes = np.array(annotated.boxes, dtype=np.float64).reshape(-1, 4).clip(-FAR_PX, FAR_PX)
    upright = _upright(boxes, given[owner], sizes[owner], turns[owner])
    objects = checked(owner, upright, annotated.classes, annotated.crowd, sizes)
    outlines = WrittenOutlines(annotated.outlines, given[owner], turns[owner]) if any(annotated.outlines) else None
    return Boxes(objects, sizes, outlines, ids=annotated.ids, category_ids=category_ids), notes


class _Sizes(NamedTuple):
    given: Numbers  # (N, 2): that boxes refer to
    actual: Numbers  # (N, 2): of the upright picture
    turns: Numbers  # (N,): how boxes have to be turned, as `Shape.orientation`
    notes: tuple[str, ...]


def _sizes(name: str, annotated: Annotated, shapes: Sequence[Shape | BadPicture]) -> _Sizes:
    given = np.array(annotated.sizes, dtype=np.int64).reshape(-1, 2)
    actual, turns = given.clip(min=1), np.ones(len(given), dtype=np.int64)
    resized: list[str] = []
    turned: list[str] = []
    for at, shape in enumerate(shapes):
        if isinstance(shape, BadPicture):  # whoever reads it will say so
            continue
        actual[at] = upright = shape.height, shape.width
        told = tuple(given[at].tolist())
        if told == UNKNOWN:
            given[at] = upright
        elif told not in (RELATIVE, upright):
            picture = Path(annotated.pictures[at]).name
            if shape.orientation >= 5 and told == upright[::-1]:
                turns[at] = shape.orientation
                turned.append(picture)
            else:
                resized.append(f"{picture} {shape.width} x {shape.height}, not {told[1]} x {told[0]}")
    notes = []
    if resized:
        what = "pictures whose size is not what their annotations say, their boxes scaled"
        notes.append(f"{name}: {what}: {len(resized):,} ({listed(resized, 3)})")
    if turned:
        what = "pictures annotated before they were turned upright, their boxes turned too"
        notes.append(f"{name}: {what}: {len(turned):,} ({listed(turned, 3)})")
    return _Sizes(given.clip(min=1), actual, turns, tuple(notes))


def _upright(boxes: NDArray[np.float64], given: Numbers, sizes: Numbers, turns: Numbers) -> NDArray[np.float64]:
    """Boxes (T, 4) of pictures annotated at the size `given` (T, 2) -> of upright ones of `sizes`."""
    points = boxes.reshape(-1, 2, 2).copy()
    swapped = turns >= 5
    points[swapped] = points[swapped][..., ::-1]
    across = np.where(swapped[:, None], given, given[:, ::-1])[:, None]  # (T, 1, 2): width and height
    flip = np.stack([np.isin(turns, (6, 7)), np.isin(turns, (7, 8))], axis=1)[:, None]
    points = np.where(flip, across - points, points) * (sizes[:, None, ::-1] / across)
    # A flip exchanges corners, which are as they were given otherwise: swapped ones are to be noticed.
    first, last = (np.where(flip[:, 0], points[:, 1 - at], points[:, at]) for at in (0, 1))
    return np.concatenate([first, last], axis=1)
