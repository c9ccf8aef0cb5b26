"""Tar shards, WebDataset style, read in place: nothing is ever extracted.

A member's class is its folder (`train/<class>/name.jpg`, `<class>/name.jpg`), or stands in a member of the same name
that ends in `.cls` (`name.jpg`, `name.cls`). The headers are read once; a picture is then one read at its offset.
"""

import errno
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import numpy as np

from vitreous.batch import UNLABELLED
from vitreous.data.base import PathList, Source
from vitreous.data.files import open_regular
from vitreous.data.images import MAX_BYTES, BadPicture, Picture, read_picture
from vitreous.data.names import ALL, Layout, grouped_by_split, matched, numbered, split_of
from vitreous.data.skipped import Skipped
from vitreous.errors import UserError

MAX_LABEL_BYTES = 2**16  # of a .cls member
MAX_HEADER_BYTES = 2**20  # with long names and other additions


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
        self.targets, self.classes, self.notes = numbered(marks, shards[0].parent, str(shards[0]))

    def read(self, index: int) -> Picture:
        offset, size = self._spans[index].tolist()
        if size > MAX_BYTES:
            raise BadPicture(f"{size:,} bytes, more than the {MAX_BYTES:,} allowed")
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
    with open_regular(path) as file:
        file.seek(offset)
        return file.read(size)


class _Headers:
    """A file of which tarfile reads headers alone: one that says it is large is not believed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.seek, self.tell = file, file.seek, file.tell

    def read(self, size: int) -> bytes:
        if size > MAX_HEADER_BYTES:
            raise OSError(errno.EFBIG, f"a header of {size:,} bytes")
        return self._file.read(size)


def open_tar(path: Path, layout: Layout) -> dict[str, Source]:
    """The splits of a tar file or of a folder of them: by the files' names, else by the members' first folder."""
    found = grouped_by_split([path] if path.is_file() else path.glob("*.tar"))
    base = path.stem if path.is_file() else path.name
    sources: dict[str, Source] = {}
    for split, shards in found.items():
        skipped = Skipped(str(shards[0]) if len(shards) == 1 else str(path))
        for inner, index in _indexed(shards, layout, skipped).items():
            name = split if split != ALL else inner
            # A shard of train whose members all lie in train/, or a lone shard of one split, is taken whole.
            if name in sources:
                raise UserError(f"{shards[0]}: holds both {inner}/ and other members, though its name says {split}.")
            sources[name] = TarSource(base if name == ALL else f"{base} {name}", shards, index)
            sources[name].notes += skipped.notes()
    if list(found) == [ALL] and len(sources) == 1:
        return {ALL: next(iter(sources.values()))}
    return sources


def _indexed(shards: Sequence[Path], layout: Layout, skipped: Skipped) -> dict[str, _Index]:
    """The pictures in some shards, by the split that their first folder names."""
    found: dict[str, _Index] = {}
    pattern = layout.label_pattern
    for number, shard in enumerate(shards):
        pictures, labels = _members(shard, skipped)
        for member, offset, size in pictures:
            *folders, name = PurePosixPath(member).parts
            split = split_of(folders[0]) if folders and folders[0].isalpha() else None
            inside = folders[1:] if split else folders
            index = found.setdefault(("train" if split == "trainval" else split) or ALL, _Index())
            index.shards.append(number)
            index.members.append(member)
            index.spans.append((offset, size))
            index.marks.append("/".join([*inside, name]) if pattern else _mark(shard, member, inside, labels, layout))
    if pattern:
        for index in found.values():
            index.marks = matched(pattern, index.marks, shards[0])
    if not found:
        raise UserError("; ".join([f"{shards[0]}: no pictures in it", *skipped.words()]) + ".")
    return found


def _mark(shard: Path, member: str, folders: Sequence[str], labels: Mapping[str, str], layout: Layout) -> str:
    """The class of a member: as its .cls says, or else its folder."""
    key = _key(PurePosixPath(member))
    mark = labels.get(key, folders[0] if folders else "" if layout.need_labels else UNLABELLED)
    if not mark:
        raise UserError(f"{shard}:{member}: no class: neither a folder nor a member {key}.cls says it.")
    return mark


def _key(path: PurePosixPath) -> str:
    """What a picture and its .cls have in common."""
    return str(path.parent / path.name.split(".", 1)[0])


def _members(shard: Path, skipped: Skipped) -> tuple[list[tuple[str, int, int]], dict[str, str]]:
    """(name, offset, size) of each picture in a shard, and the text of its .cls members by name."""
    pictures: list[tuple[str, int, int]] = []
    labels: dict[str, str] = {}
    try:
        with open_regular(shard) as file, tarfile.open(fileobj=cast(BinaryIO, _Headers(file)), mode="r:") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # they would be kept, all of them, for a second pass
                path = PurePosixPath(member.name)
                if member.isdir() or any(map(skipped.is_hidden, path.parts)):
                    continue
                if not member.isreg():
                    skipped.special.append(member.name)
                elif path.suffix == ".cls":
                    if member.size > MAX_LABEL_BYTES:
                        raise UserError(f"{shard}:{member.name}: {member.size:,} bytes are no label.")
                    labels[_key(path)] = _read_at(shard, member.offset_data, member.size).decode().strip()
                elif skipped.is_picture(member.name):
                    pictures.append((member.name, member.offset_data, member.size))
    except (OSError, tarfile.TarError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{shard}: cannot be read as an uncompressed tar file ({reason}).") from None
    return pictures, labels
