"""Where pictures are: on disk, or at a URL that fsspec supports (s3://, gs://, https://, memory:// ...).

Something wrong with one picture is a BadPicture: it does not exist, or may not be read. A failing network is tried a
few times. If a store still cannot be reached, that ends the work: rows that said so would look like results. On the web
some server is always gone for good, so there it is one more bad picture, Unreached.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

from vitreous.data.files import open_regular
from vitreous.data.images import MAX_BYTES, BadPicture
from vitreous.data.skipped import Skipped
from vitreous.data.walk import entries
from vitreous.errors import UserError, first_line

PAUSES_S = (0.5, 2.0, 8.0)  # before a network is tried again
READ_AHEAD = 2**23  # bytes of a shard to fetch at a time
SHARDS = (".tar", ".parquet")
NETWORKS = ("aiohttp", "requests", "urllib3", "botocore", "aiobotocore", "gcsfs", "google", "azure")

T = TypeVar("T")


class UnreachableError(UserError):
    """A store or server cannot be reached, after all pauses."""

    def __init__(self, url: str, error: BaseException) -> None:
        self.reason = first_line(error)
        super().__init__(f"{url}: cannot be read now ({self.reason}); the same command continues where it stopped")


class Unreached(BadPicture):
    """A picture on a web server that does not answer."""


class Found(NamedTuple):
    """A file: a picture, or a shard of them."""

    name: str  # as given, or the folder as given plus the rest of the path
    size: int | None  # in bytes, if the listing gives it

    @property
    def suffix(self) -> str:
        return os.path.splitext(self.name)[1].lower()  # noqa: PTH122 - a URL is not a path


def is_url(name: str) -> bool:
    return "://" in name


# ---- listing


def is_folder(name: str, root: Path) -> bool:
    if not is_url(name):
        return (root / name).is_dir()
    return bool(_asked(name, lambda files, path: files.isdir(path)))


def files_under(folder: str, root: Path, skipped: Skipped) -> Iterator[Found]:
    """Pictures and shards at any depth: those of a folder before those of its sub-folders, each sorted by name."""
    waiting = [folder.rstrip("/") or "/"]
    listing = _remote_listing if is_url(folder) else _local_listing
    while waiting:
        name = waiting.pop()
        deeper: list[str] = []
        for entry in listing(name, root, skipped):
            if isinstance(entry, str):
                deeper.append(entry)
            elif entry.suffix in SHARDS or skipped.is_picture(entry.name):
                yield entry
        waiting += reversed(deeper)


def _local_listing(folder: str, root: Path, skipped: Skipped) -> Iterator[Found | str]:
    """Files, and the names of folders. Links to folders are not followed: they may lead anywhere, even in a circle."""
    for entry in entries(root / folder):
        name = str(Path(folder, entry.name))
        if skipped.is_hidden(entry.name):
            continue
        if entry.is_dir():
            if entry.is_symlink():
                skipped.linked.append(name)
            else:
                yield name
        elif entry.is_file():
            yield Found(name, entry.stat().st_size)
        elif entry.is_symlink():  # a broken link is an unreadable picture
            yield Found(name, None)
        else:
            skipped.special.append(name)


def _remote_listing(folder: str, root: Path, skipped: Skipped) -> Iterator[Found | str]:
    found = _asked(folder, lambda files, path: files.ls(path, detail=True))
    for entry in sorted(found, key=lambda entry: str(entry["name"])):
        last = str(entry["name"]).rstrip("/").rsplit("/", 1)[-1]
        name = f"{folder}/{last}"
        if skipped.is_hidden(last):
            continue
        if entry["type"] == "directory":
            yield name
        else:
            yield Found(name, entry.get("size"))


def size_of(name: str, root: Path) -> int | None:
    """In bytes; None if unknown. Raises BadPicture."""
    if is_url(name):
        size = _asked_of_one(name, lambda files, path: files.size(path))
        return None if size is None else int(size)
    try:
        return (root / name).stat().st_size
    except OSError as error:
        raise BadPicture(error.strerror or str(error)) from None


# ---- reading


def picture_at(name: str, root: Path) -> bytes | Path:
    """What `read_picture` takes; raises BadPicture."""
    if not is_url(name):
        return root / name

    def fetched(files: Any, path: str) -> bytes:
        if not name.startswith("http"):
            return cast(bytes, files.cat_file(path))
        # As a stream, since what strangers send may have no end. With a size, so that fsspec does not ask for it first.
        with files.open(path, "rb", block_size=0, size=1) as file:
            return b"".join(_pieces(file, MAX_BYTES + 1))

    try:
        data = _asked_of_one(name, fetched)
    except UnreachableError as error:
        if not name.startswith("http"):
            raise
        raise Unreached(f"no answer ({error.reason})") from None
    if len(data) > MAX_BYTES:
        raise BadPicture(f"more than the {MAX_BYTES:,} bytes allowed")
    return data


def _pieces(file: BinaryIO, most: int) -> Iterator[bytes]:
    while most > 0 and (piece := file.read(most)):
        most -= len(piece)
        yield piece


def open_shard(name: str, root: Path) -> BinaryIO:
    """A seekable file; raises BadPicture."""
    if is_url(name):
        return cast(
            BinaryIO,
            _asked_of_one(name, lambda files, path: files.open(path, "rb", block_size=READ_AHEAD)),
        )
    try:
        return open_regular(root / name)
    except OSError as error:
        raise BadPicture(error.strerror or str(error)) from None


# ---- fsspec


def _asked(url: str, question: Callable[[Any, str], T]) -> T:
    """A file system's answer about a URL; a UserError if there is none."""
    try:
        return _asked_of_one(url, question)
    except BadPicture as error:
        raise UserError(f"{url}: {error}") from None


def _asked_of_one(url: str, question: Callable[[Any, str], T]) -> T:
    """The same; a BadPicture if the fault is with this file alone."""
    files, path = filesystem(url)
    for pause_s in (*PAUSES_S, None):
        try:
            return question(files, path)
        except (FileNotFoundError, NotADirectoryError):
            raise BadPicture("No such file or directory") from None
        except (PermissionError, IsADirectoryError) as error:
            raise BadPicture(error.strerror or "Permission denied") from None
        except Exception as error:
            if refusal := _refusal(error):
                raise BadPicture(refusal) from None
            if not (isinstance(error, OSError) or is_network(error)):
                raise
            if pause_s is None:
                raise UnreachableError(url, error) from None
            time.sleep(pause_s)
    raise AssertionError("there is no pause after the last try")


def is_network(error: BaseException) -> bool:
    """Whether the error may be temporary, rather than damage of the file."""
    return isinstance(error, ConnectionError | TimeoutError) or type(error).__module__.split(".")[0] in NETWORKS


def _refusal(error: Exception) -> str | None:
    """The server's message about this request, if asking again is useless."""
    status = getattr(error, "status", None)
    if isinstance(status, int) and 400 <= status < 500 and status not in (408, 429):
        return f"the server says {status} {getattr(error, 'message', '')}".rstrip()
    return None


def filesystem(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    import fsspec

    try:
        return cast(tuple[Any, str], fsspec.core.url_to_fs(url))
    except ImportError as error:
        raise UserError(f"{url}: {first_line(error)}") from None
    except ValueError as error:  # an unknown protocol
        raise UserError(f"{url}: {first_line(error)}") from None
