"""What `vitreous predict --out` writes of pictures whose pixels were classified. Knows no torch.

NAME.mask.png       numbers of classes, shown in a palette
NAME.overlay.png    the picture under the colours of its classes
NAME.polygons.json  every region of every class, exact to the pixel
shares.csv          the share of every picture that each class has
classes.json        number, name and colour of every class
"""

import csv
import json
from pathlib import Path

from PIL import Image

from vitreous.display.palette import palette
from vitreous.errors import UserError
from vitreous.prediction.outcome import Outcome
from vitreous.prediction.painted import as_png
from vitreous.prediction.pictures import AnyPicture, pixels
from vitreous.prediction.pixel_outcomes import PixelOutcome
from vitreous.prediction.reading import Reading
from vitreous.storage import atomic


class MaskFiles:
    def __init__(self, folder: Path, reading: Reading) -> None:
        if reading.kind != "segment":
            raise UserError("--out writes masks, and this model does not classify pixels; --format csv writes a table")
        self.folder, self.classes = folder, reading.classes
        self.taken: set[str] = set()
        self.rows: list[list[str | float]] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder}: cannot be written ({error.strerror})") from None

    def add(self, picture: AnyPicture, outcome: Outcome) -> None:
        assert isinstance(outcome, PixelOutcome)
        given = str(picture) if isinstance(picture, str | Path) else "picture"
        name = self._name(Path(given).stem)
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
        colours = palette(len(self.classes))
        listed = [
            {"number": number, "name": name, "colour": colour}
            for number, (name, colour) in enumerate(zip(self.classes, colours, strict=True))
        ]
        (self.folder / "classes.json").write_text(json.dumps(listed, indent=2), encoding="utf-8")

    def _name(self, stem: str) -> str:
        """As the picture's; with a number where another folder has one of the same name."""
        name, number = stem, 1
        while name in self.taken:
            number += 1
            name = f"{stem}-{number}"
        self.taken.add(name)
        return name
