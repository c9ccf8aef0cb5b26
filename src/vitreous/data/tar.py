"""Tar shards, WebDataset style, read in place: nothing is ever extracted.

A member's class is its folder (`train/<class>/name.jpg`, `<class>/name.jpg`), or stands in a member of the same name
that ends in `.cls` (`name.jpg`, `name.cls`). The headers are read once; a picture is then one read at its offset.
"""

import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np

from vitreous.data.base import PathList, Source
from vitreous.data.images import SUFFIXES, BadPicture, Picture, read_picture
from vitreous.data.names import ALL, UNLABELLED, grouped_by_split, numbered, split_of
from vitreous.errors import UserError


@dataclass
class _Index:
    """The pictures of one split, as found in the headers."""

    shards: list[int] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)  # offset and size in bytes
    marks: list[str] = field(default_factory=list)


class TarSource(Source):
    """Pictures in tar files."""

    def __init__(self, name: str, shards: Sequence[Path], index: _Index) -> None:
        self.name, self._paths = name, list(shards)
        self._shards = np.array(index.shards, dtype=np.int32)
        self._members = PathList(index.members)
        self._spans = np.array(index.spans, dtype=np.int64)  # (N, 2)
        numeric = all(mark.isdecimal() for mark in index.marks)
        marks: list[str] | list[int] = [int(mark) for mark in index.marks] if numeric else index.marks
        self.labels, self.classes = numbered(marks, shards[0].parent)

    def read(self, index: int) -> Picture:
        offset, size = self._spans[index].tolist()
        try:
            data = _read_at(self._paths[self._shards[index]], offset, size)
        except OSError as error:
            raise BadPicture(error.strerror or str(error)) from None
        if len(data) < size:
            raise BadPicture("the tar file ends before this member does")
        return read_picture(data)

    def where(self, index: int) -> str:
        return f"{self._paths[self._shards[index]]}:{self._members[index]}"

    def size(self, index: int) -> int:
        return int(self._spans[index, 1])


def _read_at(path: Path, offset: int, size: int) -> bytes:
    # Opened for each picture: no file position is shared between threads or processes, and shards may be many.
    file = os.open(path, os.O_RDONLY)
    try:
        return os.pread(file, size, offset)
    finally:
        os.close(file)


def open_tar(path: Path, need_labels: bool = True) -> dict[str, Source]:
    """The splits of a tar file or of a folder of them: by the files' names, else by the members' first folder."""
    found = grouped_by_split([path] if path.is_file() else path.glob("*.tar"))
    base = path.stem if path.is_file() else path.name
    sources: dict[str, Source] = {}
    for split, shards in found.items():
        for inner, index in _indexed(shards, need_labels).items():
            name = split if split != ALL else inner
            # A shard of train whose members all lie in train/, or a lone shard of one split, is taken whole.
            if name in sources:
                raise UserError(f"{shards[0]}: holds both {inner}/ and other members, though its name says {split}.")
            sources[name] = TarSource(base if name == ALL else f"{base} {name}", shards, index)
    if list(found) == [ALL] and len(sources) == 1:
        return {ALL: next(iter(sources.values()))}
    return sources


def _indexed(shards: Sequence[Path], need_labels: bool) -> dict[str, _Index]:
    """The pictures in some shards, by the split that their first folder names."""
    found: dict[str, _Index] = {}
    for number, shard in enumerate(shards):
        pictures, labels = _members(shard)
        for member, offset, size in pictures:
            *folders, name = PurePosixPath(member).parts
            key = str(PurePosixPath(*folders, name.split(".", 1)[0]))
            split = split_of(folders[0]) if folders and folders[0].isalpha() else None
            inside = folders[1:] if split else folders
            mark = labels.get(key, inside[0] if inside else "" if need_labels else UNLABELLED)
            if not mark:
                raise UserError(f"{shard}:{member}: no class: neither a folder nor a member {key}.cls says it.")
            index = found.setdefault(("train" if split == "trainval" else split) or ALL, _Index())
            index.shards.append(number)
            index.members.append(member)
            index.spans.append((offset, size))
            index.marks.append(mark)
    if not found:
        raise UserError(f"{shards[0]}: no pictures inside.")
    return found


def _members(shard: Path) -> tuple[list[tuple[str, int, int]], dict[str, str]]:
    """(name, offset, size) of each picture in a shard, and the text of its .cls members by name."""
    pictures: list[tuple[str, int, int]] = []
    labels: dict[str, str] = {}
    try:
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                if not member.isreg() or path.name.startswith("."):
                    continue
                if path.suffix == ".cls":
                    text = _read_at(shard, member.offset_data, member.size).decode().strip()
                    labels[str(path.parent / path.name.split(".", 1)[0])] = text
                elif path.suffix.lower() in SUFFIXES:
                    pictures.append((member.name, member.offset_data, member.size))
                tar.members = []  # type: ignore[attr-defined]  # they would be kept, all of them, for a second pass
    except (OSError, tarfile.TarError, UnicodeDecodeError) as error:
        raise UserError(f"{shard}: cannot be read as an uncompressed tar file ({error}).") from None
    return pictures, labels
