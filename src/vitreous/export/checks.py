"""The pictures that an export is checked on: the user's own, before any others."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from vitreous import settings
from vitreous.data.base import Source, with_classes
from vitreous.data.images import BadPicture, Picture, read_picture
from vitreous.data.kinds import TaskKind
from vitreous.data.names import Layout
from vitreous.data.sources import DataSettings, open_sources
from vitreous.data.targets import Boxes, ClassLabels
from vitreous.errors import UserError
from vitreous.prediction.pictures import picture_files
from vitreous.prediction.scored import Known, known_objects
from vitreous.storage import atomic
from vitreous.weights import version1
from vitreous.weights.trained import Trained

T = TypeVar("T")

NUM_PICTURES = 200
SHAPES: frozenset[TaskKind] = frozenset({"instances"})  # kinds of tasks that are held against shapes of objects


@dataclass(frozen=True)
class Checks:
    pictures: list[Picture]
    labels: list[int] | None  # where they are known
    origin: str  # in words
    objects: list[Known] | None = None  # of the pictures, where they are known


def check_pictures(trained: Trained, where: str | None = None, num: int = NUM_PICTURES) -> Checks:
    """From `where` (a folder of pictures, or any data); else from the test part of the run; else made ones."""
    if num < 1:
        raise UserError(f"{num} pictures to check with: give at least one")
    if where is None:
        recipe = Path(trained.where) / "recipe.json"
        source = _test_part(recipe) if recipe.is_file() else None
        return _made(num) if source is None else _from_source(source, trained, num, source.name)
    folder = Path(where).expanduser()
    if folder.is_dir() and not _has_boxes(trained, folder):
        paths = _spread(picture_files(folder), num)
        if paths:
            return _from_files(paths, trained, where)
    parts = open_sources(where, _layout(trained))
    source = next((parts[name] for name in ("test", "val", "all", "train") if name in parts), None)
    if source is None:
        raise UserError(f"{where}: no pictures to check with")
    return _from_source(source, trained, num, where)


def _has_boxes(trained: Trained, folder: Path) -> bool:
    """Whether it is more to a detector than a folder of pictures."""
    if trained.card.task is None or trained.card.task.task_kind not in ("detect", "instances"):
        return False
    try:
        return any(isinstance(source.targets, Boxes) for source in open_sources(str(folder), _layout(trained)).values())
    except UserError:  # pictures alone
        return False


def _layout(trained: Trained) -> Layout:
    """What is read of data that has several things to read."""
    kind: TaskKind | None = None if trained.card.task is None else trained.card.task.task_kind
    return Layout(targets="instances") if kind in SHAPES else Layout()


def _spread(items: Sequence[T], num: int) -> list[T]:
    """Some of them, evenly over all: whatever is sorted by class stays balanced."""
    step = max(len(items) / num, 1)
    return [items[int(place * step)] for place in range(min(num, len(items)))]


def _from_files(paths: Sequence[Path], trained: Trained, where: str) -> Checks:
    """Labelled where every picture lies in a folder called like a class."""
    pictures, names = [], []
    for path in paths:
        try:
            pictures.append(read_picture(path))
            names.append(path.parent.name)
        except BadPicture:
            continue
    if not pictures:
        raise UserError(f"{where}: no readable pictures to check with")
    known = {name: place for place, name in enumerate(trained.card.classes)}
    labels = [known[name] for name in names] if set(names) <= set(known) else None
    return Checks(pictures, labels, where)


def _test_part(recipe: Path) -> Source | None:
    document = atomic.read_json(recipe)
    if not isinstance(document, dict) or "data" not in document:
        raise UserError(f"{recipe}: names no data; name the pictures with --check")
    return settings.from_json(DataSettings, version1.recipe(document)["data"], where=str(recipe)).build().test


def _from_source(source: Source, trained: Trained, num: int, origin: str) -> Checks:
    has_classes = set(source.classes) == set(trained.card.classes)
    if has_classes and isinstance(source.targets, ClassLabels | Boxes):
        source = with_classes(source, trained.card.classes)
    boxes = source.targets if has_classes and isinstance(source.targets, Boxes) else None
    pictures, places, objects = [], [], []
    for place in _spread(range(len(source)), num):
        try:
            picture, known = source.read(place), None if boxes is None else known_objects(boxes, place)
        except BadPicture:
            continue
        pictures.append(picture)
        places.append(place)
        objects += [] if known is None else [known]
    if not pictures:
        raise UserError(f"{origin}: no readable pictures to check with")
    is_labelled = has_classes and isinstance(source.targets, ClassLabels)
    labels = [int(source.labels[place]) for place in places] if is_labelled else None
    return Checks(pictures, labels, origin, None if boxes is None else objects)


def _made(num: int) -> Checks:
    """Coarse noise of many sizes: says whether a file computes the same, and nothing of what it is worth."""
    generator = np.random.default_rng(0)
    pictures = []
    for _ in range(min(num, 32)):
        height, width = generator.integers(16, 400, 2)
        coarse = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        rows, columns = (np.arange(side) * 8 // side for side in (height, width))
        pictures.append(coarse[rows][:, columns])
    return Checks(pictures, None, "generated pictures (no --check, and the model names no test part): not your own")
