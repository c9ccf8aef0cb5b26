"""Which files `vitreous predict --out` writes, by kind of task. Knows no torch."""

from pathlib import Path

from vitreous.data.kinds import TaskKind
from vitreous.errors import UserError
from vitreous.prediction.box_files import BoxFiles
from vitreous.prediction.instance_files import InstanceFiles
from vitreous.prediction.mask_files import MaskFiles
from vitreous.prediction.reading import Reading
from vitreous.prediction.records import Wanted, least_score
from vitreous.prediction.written import Written

FILES: dict[TaskKind, type[Written]] = {"segment": MaskFiles, "detect": BoxFiles, "instances": InstanceFiles}


def files(folder: Path, reading: Reading, wanted: Wanted) -> Written:
    if reading.kind not in FILES:
        raise UserError(
            "--out writes masks and boxes, and this model finds neither; --format csv writes a table of its predictions"
        )
    writes = FILES[reading.kind]
    return writes(folder, reading, least_score(reading, wanted) if issubclass(writes, BoxFiles) else None)
