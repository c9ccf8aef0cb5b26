"""Boxes written for other programs, from plain arrays: COCO's JSON and YOLO's text files. Knows no torch.

What was read can be written again, and predictions with their scores: boxes are x0 y0 x1 y1 in px of the picture.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.images import SUFFIXES
from vitreous.data.polygons import one_ring
from vitreous.data.runs import Runs
from vitreous.errors import UserError

if TYPE_CHECKING:
    from vitreous.data.base import Source

_ODD = re.compile(r"\W+")
DIGITS = 2  # after the point, of pixels
SHARE_DIGITS = 6  # and of shares of a side


@dataclass(frozen=True)
class BoxedPicture:
    """One picture and its boxes."""

    name: str  # of its file
    size: tuple[int, int]  # height and width
    boxes: NDArray[np.floating[Any]]  # (n, 4)
    classes: NDArray[np.integer[Any]]  # (n,)
    scores: NDArray[np.floating[Any]] | None = None  # (n,): of predictions
    id: int | str | None = None  # what the data set calls it; numbered from 1 where it does not
    crowd: NDArray[np.bool_] | None = None  # (n,)
    shapes: Sequence[Runs] | None = None  # (n): the pixels of each object, where these are known


def boxed_pictures(source: "Source") -> list[BoxedPicture]:
    """What a source knows."""
    from vitreous.data.targets import Boxes  # knows torch

    targets = source.targets
    if not isinstance(targets, Boxes):
        raise UserError(f"{source.name}: its pictures have no boxes.")
    found = []
    for index in range(len(source)):
        objects, (height, width) = targets.of(index), targets.sizes[index].tolist()
        name = _file_name(source.where(index))
        number, crowd = targets.ids[index], objects.crowd
        found.append(BoxedPicture(name, (height, width), objects.boxes, objects.classes, id=number, crowd=crowd))
    return found


def _file_name(where: str) -> str:
    """Of a picture by where it lies; one that is no file of its own has a name made of that, such as
    test-parquet-row-7."""
    name = PurePosixPath(Path(where).as_posix()).name
    inside = name.rpartition(":")[2]
    return inside if PurePosixPath(inside).suffix.lower() in SUFFIXES else _ODD.sub("-", name).strip("-")


# ---- COCO


def coco_document(
    pictures: Sequence[BoxedPicture], classes: Sequence[str], category_ids: Sequence[int] | None = None
) -> dict[str, Any]:
    """images, categories and annotations, these with a score where they are predictions."""
    numbers = list(category_ids or range(1, len(classes) + 1))
    images = [
        {"id": one, "file_name": picture.name, "height": picture.size[0], "width": picture.size[1]}
        for one, picture in zip(_ids(pictures), pictures, strict=True)
    ]
    categories = [{"id": number, "name": name} for number, name in zip(numbers, classes, strict=True)]
    found = coco_results(pictures, numbers)
    crowd = [bool(flag) for picture in pictures for flag in _crowd(picture)]
    areas = [area for picture in pictures for area in _areas(picture)]
    annotations = [
        {"id": at, **one, "area": area, "iscrowd": int(is_crowd)}
        for at, (one, area, is_crowd) in enumerate(zip(found, areas, crowd, strict=True), 1)
    ]
    return {"images": images, "categories": categories, "annotations": annotations}


def coco_results(pictures: Sequence[BoxedPicture], category_ids: Sequence[int]) -> list[dict[str, Any]]:
    """One record per box: what COCO's own evaluation reads as results. Where pictures have no `id`, they are numbered
    from 1, as in `coco_document`."""
    found: list[dict[str, Any]] = []
    for number, picture in zip(_ids(pictures), pictures, strict=True):
        for at, (x0, y0, x1, y1) in enumerate(np.asarray(picture.boxes, dtype=np.float64).reshape(-1, 4).tolist()):
            record: dict[str, Any] = {
                "image_id": number,
                "category_id": int(category_ids[int(picture.classes[at])]),
                "bbox": [round(value, DIGITS) for value in (x0, y0, x1 - x0, y1 - y0)],
            }
            if picture.shapes is not None:
                record["segmentation"] = picture.shapes[at].as_coco()
            if picture.scores is not None:
                record["score"] = round(float(picture.scores[at]), SHARE_DIGITS)
            found.append(record)
    return found


def _ids(pictures: Sequence[BoxedPicture]) -> list[int | str]:
    return [at if picture.id is None else picture.id for at, picture in enumerate(pictures, 1)]


def _crowd(picture: BoxedPicture) -> NDArray[np.bool_]:
    return np.zeros(len(picture.boxes), dtype=np.bool_) if picture.crowd is None else picture.crowd


def _areas(picture: BoxedPicture) -> list[float]:
    """In px."""
    if picture.shapes is not None:
        return [shape.area for shape in picture.shapes]
    boxes = np.asarray(picture.boxes, dtype=np.float64).reshape(-1, 4)
    return [round(area, DIGITS) for area in np.prod(boxes[:, 2:] - boxes[:, :2], axis=1).tolist()]


# ---- YOLO


def yolo_lines(picture: BoxedPicture) -> str:
    """The text file of a picture: a line per object, with its polygon where its shape is known, and else its box. A box
    has its score at the end where it is a prediction; the format has no place for one after a polygon."""
    lines = [
        [str(int(number)), *(f"{one:.{SHARE_DIGITS}f}" for one in numbers)]
        for number, numbers in zip(picture.classes, _yolo_numbers(picture), strict=True)
    ]
    return "".join(" ".join(words) + "\n" for words in lines)


def _yolo_numbers(picture: BoxedPicture) -> Iterator[tuple[float, ...]]:
    """Of each object, as shares of the picture's sides."""
    height, width = picture.size
    for at, (x0, y0, x1, y1) in enumerate(np.asarray(picture.boxes, dtype=np.float64).reshape(-1, 4).tolist()):
        if picture.shapes is not None:
            yield tuple(side for x, y in one_ring(picture.shapes[at]) for side in (x / width, y / height))
            continue
        score = () if picture.scores is None else (float(picture.scores[at]),)
        yield ((x0 + x1) / 2 / width, (y0 + y1) / 2 / height, (x1 - x0) / width, (y1 - y0) / height, *score)


def yolo_files(pictures: Sequence[BoxedPicture]) -> dict[str, str]:
    """The text of every file by its name; empty for a picture without boxes."""
    found: dict[str, str] = {}
    for picture in pictures:
        name = PurePosixPath(picture.name).with_suffix(".txt").as_posix()
        if name in found:
            raise UserError(f"{picture.name}: another picture would have the text file {name} too. Rename one of them.")
        found[name] = yolo_lines(picture)
    return found


def yolo_names(classes: Sequence[str], folders: Mapping[str, str]) -> str:
    """A data.yaml: `folders` says where the pictures of every split lie."""
    lines = [f"{split}: {json.dumps(folder)}" for split, folder in folders.items()]
    lines += ["names:", *(f"  {number}: {json.dumps(name, ensure_ascii=False)}" for number, name in enumerate(classes))]
    return "\n".join(lines) + "\n"
