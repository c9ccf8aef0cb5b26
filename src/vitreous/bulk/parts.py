"""Parts: pictures that are stored together and read one after another. A plan is a list of parts; each becomes one file
of rows.

A part is a line of JSON with the sizes of its files, and all that a worker needs to know: with the plan, nobody has to
list the folders again.
"""

import json
import posixpath
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow.parquet as pq

from vitreous.bulk.places import UnreachableError, is_network, is_url, open_shard, picture_at
from vitreous.data.images import MAX_BYTES, BadPicture, Picture, read_picture
from vitreous.data.parquet import stored_in
from vitreous.data.skipped import Skipped
from vitreous.data.tar_members import Headers
from vitreous.errors import first_line

ROWS = 32  # of a parquet file in memory at a time


class Stored(NamedTuple):
    """A picture that is not decoded yet: its bytes, or the name of its file; or why there is none."""

    name: str
    content: bytes | str | BadPicture

    def read(self, root: Path) -> Picture | BadPicture:
        """Fetches and decodes the picture; many threads may call this."""
        try:
            if isinstance(self.content, BadPicture):
                return self.content
            return read_picture(picture_at(self.content, root) if isinstance(self.content, str) else self.content)
        except BadPicture as error:
            return error


@dataclass(frozen=True)
class FilesPart:
    """Pictures in separate files."""

    names: tuple[str, ...]
    sizes: tuple[int | None, ...]  # in bytes, if a listing gives them

    def stored(self, root: Path) -> Iterator[Stored]:
        return (Stored(name, name) for name in self.names)


@dataclass(frozen=True)
class TarPart:
    """Consecutive pictures of a tar file."""

    file: str
    size: int | None
    offset: int = 0  # of the header of the first
    count: int | None = None  # None: up to the end

    def stored(self, root: Path) -> Iterator[Stored]:
        """If the archive itself cannot be read, that is one row with the name of the archive."""
        num = 0
        try:
            with open_shard(self.file, root) as file:
                file.seek(self.offset)
                for member in pictures_of(file, Skipped(self.file)):
                    yield Stored(f"{self.file}:{member.name}", _content(file, member))
                    num += 1
                    if num == self.count:
                        return
        except BadPicture as error:
            yield Stored(self.file, error)
        except (OSError, tarfile.TarError) as error:
            yield Stored(self.file, _damage(self.file, error, "cannot be read further as an uncompressed tar file"))


def pictures_of(file: BinaryIO, skipped: Skipped) -> Iterator[tarfile.TarInfo]:
    """The headers of pictures, from the present position in the file."""
    with tarfile.open(fileobj=cast(BinaryIO, Headers(file)), mode="r:") as tar:
        for member in tar:
            tar.members = []  # type: ignore[attr-defined]  # tarfile would keep all of them for a second pass
            if member.isdir() or any(map(skipped.is_hidden, PurePosixPath(member.name).parts)):
                continue
            if not member.isreg():
                skipped.special.append(member.name)
            elif skipped.is_picture(member.name):
                yield member


def _content(file: BinaryIO, member: tarfile.TarInfo) -> bytes | BadPicture:
    if member.size > MAX_BYTES:
        return BadPicture(f"{member.size:,} bytes, more than the {MAX_BYTES:,} allowed")
    file.seek(member.offset_data)
    data = file.read(member.size)
    return data if len(data) == member.size else BadPicture("the tar file ends before this member does")


@dataclass(frozen=True)
class ParquetPart:
    """Consecutive rows of a parquet file."""

    file: str
    size: int | None
    column: str
    first: int
    count: int

    def stored(self, root: Path) -> Iterator[Stored]:
        """Rows that cannot be read become as many rows with an error."""
        try:
            shard = open_shard(self.file, root)
        except BadPicture as error:
            yield from self._named([error] * self.count, self.first)
            return
        with shard:
            yield from self._named(self._contents(shard), self.first)

    def _contents(self, shard: BinaryIO) -> Iterator[bytes | str | BadPicture]:
        """A damaged row group costs only its own rows."""
        try:
            file = pq.ParquetFile(shard)
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        except Exception as error:  # pyarrow may raise anything for a damaged file
            yield from [_damage(self.file, error, "damaged")] * self.count
            return
        start = 0
        for group, rows in enumerate(sizes):
            first, end = max(self.first - start, 0), min(self.first + self.count - start, rows)
            num = 0
            try:
                for cell in islice(_cells(file, group, self.column), first, end) if first < end else ():
                    yield self._content(cell)
                    num += 1
            except Exception as error:
                yield from [_damage(self.file, error, f"row group {group} is damaged")] * (end - first - num)
            start += rows

    def _named(self, contents: Iterable[bytes | str | BadPicture], first: int) -> Iterator[Stored]:
        return (Stored(f"{self.file}:row {row}", content) for row, content in enumerate(contents, first))

    def _content(self, cell: Any) -> bytes | str | BadPicture:
        try:
            found = stored_in(cell, Path())
            return found if isinstance(found, bytes) else _beside(self.file, found)
        except BadPicture as error:
            return error


def _cells(file: pq.ParquetFile, group: int, column: str) -> Iterator[Any]:
    for batch in file.iter_batches(ROWS, row_groups=[group], columns=[column], use_threads=False):
        yield from (cell.as_py() for cell in batch.column(0))


@dataclass(frozen=True)
class BrokenPart:
    """A shard that could not be opened: one row, which says why."""

    file: str
    reason: str

    def stored(self, root: Path) -> Iterator[Stored]:
        yield Stored(self.file, BadPicture(self.reason))


Part = FilesPart | TarPart | ParquetPart | BrokenPart
KINDS: dict[str, Any] = {"files": FilesPart, "tar": TarPart, "parquet": ParquetPart, "broken": BrokenPart}
NAMES = {kind: name for name, kind in KINDS.items()}


def to_line(part: Part) -> str:
    return json.dumps({"kind": NAMES[type(part)], **asdict(part)}, separators=(",", ":"))


def from_line(line: str | bytes) -> Part:
    """The part from a line that we wrote ourselves."""
    fields = json.loads(line)
    kind = KINDS[fields.pop("kind")]
    made = kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})
    return cast(Part, made)


def _damage(file: str, error: Exception, words: str) -> BadPicture:
    if is_url(file) and is_network(error):
        raise UnreachableError(file, error) from None
    return BadPicture(f"{words} ({getattr(error, 'strerror', None) or first_line(error)})")


def _beside(file: str, path: Path) -> str:
    """A picture that a table names, relative to the table's folder."""
    if not is_url(file):
        return str(Path(file).parent / path)
    if path.is_absolute() or ".." in path.parts:
        raise BadPicture("its path leads out of the folder")
    return posixpath.join(file.rsplit("/", 1)[0], path.as_posix())
