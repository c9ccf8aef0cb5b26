"""What `vitreous predict --out` writes of pictures whose pixels were classified. Knows no torch.

NAME.mask.png       numbers of classes, shown in a palette
NAME.overlay.png    the picture under the colours of its classes
NAME.polygons.json  every region of every class, exact to the pixel
shares.csv          the share of every picture that each class has
classes.json        number, name and colour of every class
"""

import csv
from pathlib import Path
from typing import Any

from PIL import Image

from vitreous.prediction.painted import as_png
from vitreous.prediction.pictures import AnyPicture, pixels
from vitreous.prediction.pixel_outcomes import PixelOutcome
from vitreous.prediction.reading import Reading
from vitreous.prediction.written import Written
from vitreous.storage import atomic


class MaskFiles(Written):
    def __init__(self, folder: Path, reading: Reading, least: float | None = None) -> None:
        super().__init__(folder, reading, least)
        self.rows: list[list[str | float]] = []

    def add(self, picture: AnyPicture, outcome: Any) -> None:
        assert isinstance(outcome, PixelOutcome)
        given, name = self.names(picture)
        overlay = as_png(Image.fromarray(outcome.overlay(pixels(picture))))
        atomic.write_bytes(outcome.mask_png(), self.folder / f"{name}.mask.png")
        atomic.write_bytes(overlay, self.folder / f"{name}.overlay.png")
        atomic.write_json({"picture": given, **outcome.polygons()}, self.folder / f"{name}.polygons.json")
        shares = dict(outcome.shares)
        self.rows.append([given, name, *(round(shares.get(one, 0.0), 6) for one in self.classes)])

    def finish(self) -> None:
        with (self.folder / "shares.csv").open("w", newline="", encoding="utf-8", errors="replace") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(["picture", "name", *self.classes])
            writer.writerows(self.rows)
        self.write_classes()
