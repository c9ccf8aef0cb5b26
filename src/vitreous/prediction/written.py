"""Written: a folder that `vitreous predict --out` fills, picture by picture. Knows no torch."""

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from vitreous.display.palette import palette
from vitreous.errors import UserError
from vitreous.prediction.pictures import AnyPicture
from vitreous.prediction.reading import Reading


class Written(ABC):
    """What outcomes of one kind of task leave in a folder."""

    def __init__(self, folder: Path, reading: Reading, least: float | None = None) -> None:
        """`least`: the lowest score that is reported; None: as the model's card says."""
        self.folder, self.classes, self.least = folder, reading.classes, least
        self.taken: set[str] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder}: cannot be written ({error.strerror})") from None

    @abstractmethod
    def add(self, picture: AnyPicture, outcome: Any) -> None: ...

    @abstractmethod
    def finish(self) -> None:
        """What is about all pictures."""

    def write_classes(self) -> None:
        """classes.json: number, name and colour of each."""
        listed = [
            {"number": number, "name": name, "colour": colour}
            for number, (name, colour) in enumerate(zip(self.classes, palette(len(self.classes)), strict=True))
        ]
        (self.folder / "classes.json").write_text(json.dumps(listed, indent=2), encoding="utf-8")

    def names(self, picture: AnyPicture) -> tuple[str, str]:
        """What a picture was given as, and how its files are called: as the picture, with a number where another folder
        has one of the same name."""
        given = str(picture) if isinstance(picture, str | Path) else "picture"
        stem = Path(given).stem
        name, number = stem, 1
        while name in self.taken:
            number += 1
            name = f"{stem}-{number}"
        self.taken.add(name)
        return given, name
