"""What is in tar files, by their headers, which are read once; a member is then one read at its offset. Nothing is ever
extracted."""

import errno
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, cast

import numpy as np

from vitreous.data.base import PathList
from vitreous.data.files import open_regular
from vitreous.data.images import MAX_BYTES, BadPicture
from vitreous.data.skipped import Skipped
from vitreous.errors import UserError

MAX_LABEL_BYTES = 2**16  # of a .cls member
MAX_HEADER_BYTES = 2**20  # with long names and other additions


class Member(NamedTuple):
    name: str
    offset: int
    size: int  # in bytes


@dataclass(frozen=True)
class Shard:
    """What the headers of one file tell."""

    path: Path
    pictures: list[Member]
    labels: dict[str, str]  # the text of .cls members, by what they have in common with their picture
    texts: dict[str, Member]  # .txt and .json members, by the same; .txt where there are both


class Members:
    """Some members of several files, in one line; an empty name stands for none."""

    def __init__(self, shards: Sequence[Path], places: Sequence[tuple[int, Member]]) -> None:
        self._paths = list(shards)
        self._shards = np.array([shard for shard, _ in places], dtype=np.int32)
        self._names = PathList([member.name for _, member in places])
        self._spans = np.array([(member.offset, member.size) for _, member in places], dtype=np.int64)  # (N, 2)

    def __len__(self) -> int:
        return len(self._spans)

    def name(self, index: int) -> str:
        return self._names[index]

    def read(self, index: int) -> bytes:
        """Raises BadPicture."""
        return read_member(self._paths[self._shards[index]], *self._spans[index].tolist())

    def where(self, index: int) -> str:
        return f"{self._paths[self._shards[index]]}:{self._names[index]}"

    def size(self, index: int) -> int:
        return int(self._spans[index, 1])


def read_member(path: Path, offset: int, size: int) -> bytes:
    """Raises BadPicture."""
    if size > MAX_BYTES:
        raise BadPicture(f"{size:,} bytes, more than the {MAX_BYTES:,} allowed")
    try:
        data = _read_at(path, offset, size)
    except OSError as error:
        raise BadPicture(error.strerror or str(error)) from None
    if len(data) < size:
        raise BadPicture("the tar file ends before this member does")
    return data


def _read_at(path: Path, offset: int, size: int) -> bytes:
    # Opened for each picture: no file position is shared between threads or processes, and shards may be many.
    with open_regular(path) as file:
        file.seek(offset)
        return file.read(size)


class Headers:
    """A file of which tarfile reads headers alone: one that says it is large is not believed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.seek, self.tell = file, file.seek, file.tell

    def read(self, size: int) -> bytes:
        if size > MAX_HEADER_BYTES:
            raise OSError(errno.EFBIG, f"a header of {size:,} bytes")
        return self._file.read(size)


def key_of(path: PurePosixPath) -> str:
    """What a picture and its .cls have in common."""
    return str(path.parent / path.name.split(".", 1)[0])


def open_shard(shard: Path, skipped: Skipped) -> Shard:
    """Reads all headers."""
    pictures: list[Member] = []
    labels: dict[str, str] = {}
    texts: dict[str, Member] = {}
    try:
        with open_regular(shard) as file, tarfile.open(fileobj=cast(BinaryIO, Headers(file)), mode="r:") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # they would be kept, all of them, for a second pass
                path = PurePosixPath(member.name)
                if member.isdir() or any(map(skipped.is_hidden, path.parts)):
                    continue
                if not member.isreg():
                    skipped.special.append(member.name)
                elif path.suffix == ".cls":
                    if member.size > MAX_LABEL_BYTES:
                        raise UserError(f"{shard}:{member.name}: {member.size:,} bytes are too many for a label.")
                    labels[key_of(path)] = _read_at(shard, member.offset_data, member.size).decode().strip()
                elif path.suffix in (".txt", ".json"):
                    found = Member(member.name, member.offset_data, member.size)
                    texts[key_of(path)] = found if path.suffix == ".txt" else texts.get(key_of(path), found)
                    skipped.is_picture(member.name)  # unless somebody reads it as a caption
                elif skipped.is_picture(member.name):
                    pictures.append(Member(member.name, member.offset_data, member.size))
    except (OSError, tarfile.TarError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{shard}: cannot be read as an uncompressed tar file ({reason}).") from None
    return Shard(shard, pictures, labels, texts)
