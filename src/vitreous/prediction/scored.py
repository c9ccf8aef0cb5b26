"""Objects as a data set knows them and as a model found them, in the columns that average precision is computed of."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vitreous.data.objects import Objects
from vitreous.data.runs import Runs
from vitreous.data.targets import Boxes, Instances
from vitreous.prediction.box_outcomes import FoundIn
from vitreous.tasks.box_precision import Found, Truth


class Known(NamedTuple):
    """The objects of one picture."""

    objects: Objects
    shapes: tuple[Runs, ...] | None = None  # where the data set has them, and they were asked for


def known_objects(targets: Boxes, index: int) -> Known:
    """Raises BadPicture."""
    objects = targets.of(index)
    if not isinstance(targets, Instances):
        return Known(objects)
    height, width = targets.sizes[index].tolist()
    return Known(objects, tuple(Runs.of(shape, (height, width)) for shape in targets.shapes(index)))


def truth_of(pictures: Sequence[Known], with_shapes: bool) -> Truth:
    counts = [len(one.objects) for one in pictures]
    classes, boxes, crowd = (
        np.concatenate([getattr(one.objects, name) for one in pictures]) for name in ("classes", "boxes", "crowd")
    )
    masks = [shape.as_coco() for one in pictures for shape in one.shapes or ()] if with_shapes else None
    return Truth(np.repeat(np.arange(len(counts)), counts), classes, boxes.astype(np.float64), crowd, masks)


def found_of(pictures: Sequence[FoundIn], with_shapes: bool) -> Found:
    counts = [len(one.boxes) for one in pictures]
    boxes, classes, scores = (
        np.concatenate(columns)
        for columns in zip(*((one.boxes, one.surest.classes, one.surest.scores) for one in pictures), strict=True)
    )
    masks = [shape.as_coco() for one in pictures for shape in one.shapes or ()] if with_shapes else None
    owner = np.repeat(np.arange(len(counts)), counts)
    return Found(owner, classes, boxes.astype(np.float64), scores.astype(np.float64), masks)
