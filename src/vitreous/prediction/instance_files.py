"""What `vitreous predict --out` writes of pictures whose objects were found with their shapes. Knows no torch.

NAME.objects.png    numbers of objects, from 1 on, the surest first; 0 where there is none
NAME.overlay.png    the picture under the colours of its objects
NAME.polygons.json  the pieces of every object, exact to the pixel
objects.csv         a row per object
coco.json           all of them as COCO has them, with scores, and shapes as runs of pixels
labels/NAME.txt     those of each picture as YOLO has them: a polygon per line
classes.json        number, name and colour of every class
"""

from typing import ClassVar

from vitreous.prediction.box_files import BoxFiles
from vitreous.prediction.box_outcomes import BoxOutcome, FoundObject
from vitreous.prediction.instance_outcomes import InstanceOutcome
from vitreous.storage import atomic


class InstanceFiles(BoxFiles):
    table: ClassVar[str] = "objects.csv"
    columns: ClassVar[tuple[str, ...]] = (*BoxFiles.columns, "area")

    def write_pictures(self, name: str, drawn: bytes, outcome: BoxOutcome) -> None:
        assert isinstance(outcome, InstanceOutcome)
        atomic.write_bytes(outcome.mask_png(self.least), self.folder / f"{name}.objects.png")
        atomic.write_bytes(drawn, self.folder / f"{name}.overlay.png")
        atomic.write_json(outcome.polygons(self.least), self.folder / f"{name}.polygons.json")

    def row(self, one: FoundObject) -> list[str | float]:
        assert one.shape is not None
        return [*super().row(one), one.shape.area]
