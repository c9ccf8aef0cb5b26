"""What `vitreous predict --out` writes of pictures whose objects were found with their shapes. Knows no torch.

NAME.objects.png    numbers of objects, from 1 on, the surest first; 0 where there is none
NAME.overlay.png    the picture under the colours of its objects
NAME.polygons.json  the pieces of every object, exact to the pixel
objects.csv         a row per object
panoptic/NAME.png   the number of the one segment that each pixel belongs to, as COCO has it: R + 256 G + 256^2 B
panoptic.json       the segments of these maps, with scores, as COCO has them
coco.json           all of them as COCO has them, with scores, and shapes as runs of pixels
labels/NAME.txt     those of each picture as YOLO has them: a polygon per line
classes.json        number, name and colour of every class
"""

from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from vitreous.prediction.box_files import BoxFiles
from vitreous.prediction.box_outcomes import BoxOutcome, FoundObject
from vitreous.prediction.instance_outcomes import InstanceOutcome
from vitreous.prediction.painted import as_png
from vitreous.prediction.reading import Reading
from vitreous.storage import atomic


class InstanceFiles(BoxFiles):
    table: ClassVar[str] = "objects.csv"
    columns: ClassVar[tuple[str, ...]] = (*BoxFiles.columns, "area")

    def __init__(self, folder: Path, reading: Reading, least: float | None = None) -> None:
        super().__init__(folder, reading, least)
        self.maps: list[dict[str, Any]] = []
        (folder / "panoptic").mkdir(exist_ok=True)

    def write_pictures(self, name: str, drawn: bytes, outcome: BoxOutcome) -> None:
        assert isinstance(outcome, InstanceOutcome)
        atomic.write_bytes(outcome.mask_png(self.least), self.folder / f"{name}.objects.png")
        atomic.write_bytes(drawn, self.folder / f"{name}.overlay.png")
        atomic.write_json(outcome.polygons(self.least), self.folder / f"{name}.polygons.json")
        found = outcome.panoptic(self.least)
        atomic.write_bytes(as_png(Image.fromarray(found.rgb())), self.folder / "panoptic" / f"{name}.png")
        self.maps.append({"file_name": f"{name}.png", "segments_info": found.as_coco()})

    def row(self, one: FoundObject) -> list[str | float]:
        assert one.shape is not None
        return [*super().row(one), one.shape.area]

    def write_coco(self, document: dict[str, Any]) -> None:
        super().write_coco(document)
        maps = [{"image_id": image["id"], **one} for image, one in zip(document["images"], self.maps, strict=True)]
        categories = [{**one, "isthing": 1} for one in document["categories"]]
        atomic.write_json({**document, "categories": categories, "annotations": maps}, self.folder / "panoptic.json")
