"""The planner: inputs in, parts out, one at a time, whatever the engine.

A plan is a function of the inputs: the same files by name and size give the same lines.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow.parquet as pq

from vitreous.bulk.parts import BrokenPart, FilesPart, ParquetPart, Part, TarPart, pictures_of
from vitreous.bulk.places import SHARDS, Found, files_under, filesystem, is_folder, is_url, open_shard, size_of
from vitreous.data.images import SUFFIXES, BadPicture
from vitreous.data.names import column
from vitreous.data.parquet import IMAGES
from vitreous.data.skipped import Skipped
from vitreous.errors import UserError, first_line
from vitreous.terminal import note

LISTS = (".txt", ".list")
TABLES = (".csv", ".tsv")


def plan(words: Sequence[str], per_part: int, root: Path, lines: BinaryIO | None = None) -> Iterator[Part]:
    """Parts of about `per_part` pictures, in the order of the inputs.

    `words`: pictures, folders, tar and parquet files, lists of any of these (.txt, one per line), and `-` for such a
    list in `lines`; each a URL, or a path on disk, relative to `root`.
    """
    loose: list[Found] = []
    for found in _found(words, root, lines):
        shard = {".tar": _of_tar, ".parquet": _of_parquet}.get(found.suffix)
        if shard is None:
            loose.append(found)
        if loose and (shard is not None or len(loose) == per_part):
            yield FilesPart(tuple(one.name for one in loose), tuple(one.size for one in loose))
            loose = []
        if shard is not None:
            try:
                yield from shard(found, per_part, root)
            except BadPicture as error:
                yield BrokenPart(found.name, str(error))
    if loose:
        yield FilesPart(tuple(one.name for one in loose), tuple(one.size for one in loose))


def grown(before: Sequence[Part], now: Iterable[Part], per_part: int) -> list[Part]:
    """An earlier plan, updated to what the inputs contain now.

    A part keeps its number, so that its rows stay valid. If one of its files is gone or has changed, the part is
    emptied, and what is left of it is appended after the others.
    """
    loose: dict[str, int | None] = {}
    shards: dict[Part, None] = {}
    for part in now:
        if isinstance(part, FilesPart):
            loose.update(zip(part.names, part.sizes, strict=True))
        else:
            shards[part] = None
    kept = [part if _still(part, loose, shards) else FilesPart((), ()) for part in before]
    for part in kept:
        if isinstance(part, FilesPart):
            for name in part.names:
                loose.pop(name, None)  # it may be named twice
        else:
            shards.pop(part, None)
    names, sizes = tuple(loose), tuple(loose.values())
    cuts = [slice(start, start + per_part) for start in range(0, len(names), per_part)]
    return [*kept, *shards, *(FilesPart(names[cut], sizes[cut]) for cut in cuts)]


def _still(part: Part, loose: Mapping[str, int | None], shards: Mapping[Part, None]) -> bool:
    if not isinstance(part, FilesPart):
        return part in shards
    return all(name in loose and loose[name] == size for name, size in zip(part.names, part.sizes, strict=True))


def _found(words: Iterable[str], root: Path, lines: BinaryIO | None) -> Iterator[Found]:
    for word in words:
        found = Found(word, None)
        if word == "-":
            yield from _listed(lines or (), root)
        elif found.suffix in LISTS:
            with _opened_list(word, root) as file:
                yield from _listed(file, root)
        elif is_url(word) and "*" in word:
            yield from _matching(word)
        elif found.suffix not in SUFFIXES and is_folder(word, root):
            skipped = Skipped(word)
            yield from files_under(word, root, skipped)
            note(*skipped.notes())
        elif found.suffix in TABLES:
            raise UserError(f"{word}: a table; list the paths of its pictures, one per line, in a .txt")
        elif found.suffix in (*SUFFIXES, *SHARDS) or is_url(word) or (root / word).exists():
            yield _sized(word, root)
        else:  # a picture that is missing gets a row that says so; a folder has none
            raise UserError(f"{word}: no such file or folder")


def _listed(lines: Iterable[bytes], root: Path) -> Iterator[Found]:
    names = (line.decode(errors="surrogateescape").strip("\r\n") for line in lines)
    yield from (_sized(name, root) for name in names if name.strip())


def _sized(name: str, root: Path) -> Found:
    """On disk, the size is cheap to get, and shows that a file was replaced."""
    try:
        return Found(name, None if is_url(name) else size_of(name, root))
    except BadPicture:
        return Found(name, None)  # its row will say so


def _opened_list(word: str, root: Path) -> BinaryIO:
    try:
        return open_shard(word, root)
    except BadPicture as error:
        raise UserError(f"{word}: {error}") from None


def _matching(pattern: str) -> Iterator[Found]:
    files, path = filesystem(pattern)
    names = sorted(files.unstrip_protocol(name) for name in files.glob(path))
    if not names:
        raise UserError(f"{pattern}: matches no files")
    yield from (Found(name, None) for name in names)


def _of_tar(found: Found, per_part: int, root: Path) -> Iterator[Part]:
    """On disk, headers are quick to read, and show where to cut. A remote shard is one part: to be cut, it would have
    to be downloaded."""
    size = found.size if found.size is not None else size_of(found.name, root)
    if is_url(found.name):
        yield TarPart(found.name, size)
        return
    start, num = 0, 0
    try:
        with open_shard(found.name, root) as file:
            for member in pictures_of(file, Skipped(found.name)):
                if num == per_part:
                    yield TarPart(found.name, size, start, num)
                    num = 0
                start = start if num else member.offset
                num += 1
    except BadPicture:
        raise
    except Exception:  # the worker reads it again and reports what is wrong
        pass
    yield TarPart(found.name, size, start)


def _of_parquet(found: Found, per_part: int, root: Path) -> Iterator[Part]:
    """Cut between row groups, if they are small enough: to read a row, its whole group must be read."""
    size = found.size if found.size is not None else size_of(found.name, root)
    with open_shard(found.name, root) as file:
        try:
            footer = pq.ParquetFile(file)
        except Exception as error:  # pyarrow may raise anything for a damaged file
            raise BadPicture(f"cannot be read as parquet ({first_line(error)})") from None
        name = column(footer.schema_arrow.names, None, IMAGES, "image", found.name)
        groups = [footer.metadata.row_group(group).num_rows for group in range(footer.num_row_groups)]
    start, num = 0, 0
    for rows in groups:
        if num and num + rows > per_part:
            yield ParquetPart(found.name, size, name, start, num)
            start, num = start + num, 0
        num += rows
        while num > per_part:
            yield ParquetPart(found.name, size, name, start, per_part)
            start, num = start + per_part, num - per_part
    if num:
        yield ParquetPart(found.name, size, name, start, num)
