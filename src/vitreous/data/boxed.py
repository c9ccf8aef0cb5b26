"""Opens whatever holds pictures with boxes: a folder or a file, in any of the formats that are read."""

from collections.abc import Mapping
from pathlib import Path

from vitreous.data.base import Source
from vitreous.data.coco import open_coco, open_coco_file
from vitreous.data.foreign_boxes import refuse_foreign
from vitreous.data.labelme import labelme_files, open_labelme
from vitreous.data.names import Layout
from vitreous.data.pairs import find_pairs
from vitreous.data.targets import Boxes, Instances
from vitreous.data.voc import open_voc, voc_folders
from vitreous.data.yolo import open_yolo, open_yolo_file
from vitreous.errors import UserError


def open_boxed(folder: Path, layout: Layout) -> tuple[dict[str, Source], tuple[str, ...]]:
    """The splits of a folder; none where it has no boxes. Pascal VOC and LabelMe's sets may have masks too: these are
    read as long as nothing else is said, and a note tells."""
    most_bad = layout.max_unreadable
    found = open_yolo(folder, most_bad) or open_coco(folder, most_bad)
    if not found and (voc_folders(folder) or labelme_files(folder)):
        masks = find_pairs(folder) if layout.targets is None else None
        if masks is not None and masks.splits:
            return {}, (f"{folder}: also has boxes; --data.layout.targets boxes reads them",)
        found = open_voc(folder, most_bad) or open_labelme(folder, most_bad)
    if not found and layout.targets == "boxes":
        refuse_foreign(folder)
        kinds = "neither COCO JSON, a data.yaml with its labels, XML files nor LabelMe's JSON"
        raise UserError(f"{folder}: no boxes in it: {kinds}.")
    return found, ()


def open_boxed_file(path: Path, layout: Layout) -> dict[str, Source]:
    open_one = open_coco_file if path.suffix.lower() == ".json" else open_yolo_file
    return open_one(path, layout.max_unreadable)


def read_shapes(found: Mapping[str, Source], where: str) -> None:
    """Sources of objects: from now on with their exact shapes."""
    known, total = 0, 0
    for source in found.values():
        targets = source.targets
        if not isinstance(targets, Boxes):
            raise UserError(f"{where}: its pictures have no objects, so there are no shapes.")
        used = targets.objects.chosen(targets.objects.are_used)
        known += 0 if targets.outlines is None else int(targets.outlines.are_known(used.outline).sum())
        total += len(used)
        source.targets = Instances.from_boxes(targets)
    if not known:
        raise UserError(f"{where}: its objects have no outlines; read their boxes with --data.layout.targets boxes")
    if known < total:
        note = f"{where}: objects without an outline, whose box is used as their shape: {total - known:,} of {total:,}"
        for source in found.values():
            source.notes += (note,)
