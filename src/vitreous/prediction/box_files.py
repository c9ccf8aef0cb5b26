"""What `vitreous predict --out` writes of pictures whose objects were found. Knows no torch.

NAME.boxes.png      the picture with its boxes
boxes.csv           a row per object
coco.json           all of them as COCO has them, with scores: data, once it lies in the folder of the pictures
labels/NAME.txt     those of each picture as YOLO has them, with scores
classes.json        number, name and colour of every class
"""

import csv
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from vitreous.data.box_files import BoxedPicture, coco_document, yolo_lines
from vitreous.prediction.box_outcomes import BoxOutcome, FoundObject
from vitreous.prediction.painted import as_png
from vitreous.prediction.pictures import AnyPicture, pixels
from vitreous.prediction.reading import Reading
from vitreous.prediction.written import Written
from vitreous.storage import atomic


class BoxFiles(Written):
    table: ClassVar[str] = "boxes.csv"
    columns: ClassVar[tuple[str, ...]] = ("picture", "name", "label", "score", "x0", "y0", "x1", "y1")

    def __init__(self, folder: Path, reading: Reading, least: float | None = None) -> None:
        super().__init__(folder, reading, least)
        self.pictures: list[BoxedPicture] = []
        self.rows: list[list[str | float]] = []
        (folder / "labels").mkdir(exist_ok=True)

    def add(self, picture: AnyPicture, outcome: Any) -> None:
        assert isinstance(outcome, BoxOutcome)
        given, name = self.names(picture)
        drawn = as_png(Image.fromarray(outcome.drawn(pixels(picture), self.least)))
        self.write_pictures(name, drawn, outcome)
        objects = outcome.objects(self.least)
        self.rows += [[given, name, *self.row(one)] for one in objects]
        num = len(objects)  # the surest come first
        boxed = BoxedPicture(
            *(given, outcome.size, outcome.boxes[:num], outcome.labels[:num], outcome.scores[:num]),
            shapes=[one.shape for one in objects if one.shape is not None] or None,
        )
        self.pictures.append(boxed)
        atomic.write_bytes(yolo_lines(boxed).encode(), self.folder / "labels" / f"{name}.txt")

    def write_pictures(self, name: str, drawn: bytes, outcome: BoxOutcome) -> None:
        """What there is of each picture alone; `drawn`: with its objects."""
        atomic.write_bytes(drawn, self.folder / f"{name}.boxes.png")

    def row(self, one: FoundObject) -> list[str | float]:
        """Of a table with all objects, after the names of the picture."""
        return [one.label, round(one.score, 6), *(round(side, 2) for side in one.box)]

    def finish(self) -> None:
        with (self.folder / self.table).open("w", newline="", encoding="utf-8", errors="replace") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(self.rows)
        names = in_their_folder([one.name for one in self.pictures])
        pictures = [replace(one, name=name) for one, name in zip(self.pictures, names, strict=True)]
        self.write_coco(coco_document(pictures, self.classes))
        self.write_classes()

    def write_coco(self, document: dict[str, Any]) -> None:
        atomic.write_json(document, self.folder / "coco.json")


def in_their_folder(paths: Sequence[str]) -> list[str]:
    """Their names in the innermost folder that holds all of them: the same from wherever they were named."""
    whole = [path.parent.resolve() / path.name for path in map(Path, paths)]
    try:
        folder = os.path.commonpath([path.parent for path in whole]) if whole else ""
    except ValueError:  # on several drives
        return [path.as_posix() for path in whole]
    return [path.relative_to(folder).as_posix() for path in whole]
