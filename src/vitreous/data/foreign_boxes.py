"""Annotations in formats of tools that are not read: recognised, so that a message can say what to do instead."""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from vitreous.data.files import open_regular
from vitreous.data.folder import split_folder
from vitreous.data.pairs import IMAGES
from vitreous.data.skipped import Skipped
from vitreous.data.walk import entries, subfolders
from vitreous.errors import UserError

PEEK_BYTES = 2**15
PEEKED = 3  # files of a folder
OTHERS = ("labels", "annotations", "ann", "img", "json")  # folders that are no classes
# By the end of a file's name, and by what such files have near their beginning.
KINDS = (
    ("VGG Image Annotator", ".json", rb'"shape_attributes"'),
    ("CreateML", ".json", rb'"coordinates"\s*:\s*\{'),
    ("Label Studio", ".json", rb'"(rectangle|polygon|brush|ellipse)labels"'),
    ("Supervisely", ".json", rb'"classTitle"'),
    ("Datumaro", ".json", rb'"dm_format_version"|"label_categories"'),
    ("TensorFlow", ".csv", rb"^[^\n]*\bxmin\b[^\n]*\bymin\b"),
)


def refuse_foreign(folder: Path) -> None:
    """An error if boxes lie here in such a format; nothing if this may be a set of class folders."""
    inside = subfolders(folder, Skipped(""))
    known = [path for path in inside if split_folder(path) is not None or path.name.lower() in (*IMAGES, *OTHERS)]
    if len(inside) - len(known) > 1:
        return
    for path in (file for place in (folder, *known) for file in _some(place)):
        start = _start(path)
        for tool, suffix, pattern in KINDS:
            if path.name.lower().endswith(suffix) and re.search(pattern, start):
                what = f"boxes in the format of {tool}, which is not read"
                raise UserError(f"{path}: {what}. Export them as COCO, YOLO or Pascal VOC.")


def _some(folder: Path) -> Iterator[Path]:
    names = (entry.name for entry in entries(folder) if entry.name.lower().endswith((".json", ".csv")))
    return (folder / name for name in islice(names, PEEKED))


def _start(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(PEEK_BYTES)
    except OSError:
        return b""
