"""The pictures of an index, read again by their names: files, members of tar files, rows of parquet files."""

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from vitreous.bulk.parts import FilesPart, ParquetPart, Stored, TarPart
from vitreous.bulk.places import open_shard
from vitreous.data.images import BadPicture, Picture
from vitreous.data.names import column
from vitreous.data.parquet import IMAGES
from vitreous.errors import UserError

ROW = re.compile(r"(?P<file>.+\.parquet):row (?P<row>\d+)", re.DOTALL)
MEMBER = re.compile(r"(?P<file>.+?\.tar):.+", re.DOTALL)


def original(name: str) -> Picture | BadPicture:
    """The picture; a BadPicture if it is gone or has moved."""
    try:
        found = next((one for one in _stored(name) if one.name == name), None)
        return BadPicture("it is no longer there") if found is None else found.read(Path())
    except (BadPicture, UserError, OSError) as error:
        return BadPicture(str(error))


def _stored(name: str) -> Iterator[Stored]:
    if row := ROW.fullmatch(name):
        with open_shard(row["file"], Path()) as file:
            images = column(pq.read_schema(file).names, None, IMAGES, "image", row["file"])
        return ParquetPart(row["file"], None, images, int(row["row"]), 1).stored(Path())
    if member := MEMBER.fullmatch(name):
        return TarPart(member["file"], None).stored(Path())
    return FilesPart((name,), (None,)).stored(Path())
