"""Files and folders that are written whole or not at all, and removing what a killed process leaves.

What is being written is beside its place as `.NAME.vitreous-tmp-PID`; what it replaces is `.NAME.vitreous-old` until
then; what is being removed is `.NAME.vitreous-gone-PID`. Nothing else has such names, so these may be removed: by the
only process that writes into the folder (`sweep`), or by the next writer of the same NAME.
"""

import glob
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitreous import platforms
from vitreous.errors import UserError, first_line
from vitreous.platforms import sync

_OURS = re.compile(r"\.(?P<name>.+)\.vitreous-(?:old|(?:tmp|gone)-(?P<process>\d+))")


def temporary(path: Path, process: int | None = None) -> Path:
    """`process`: the id of another process, if several write one folder together."""
    return path.with_name(f".{path.name}.vitreous-tmp-{os.getpid() if process is None else process}")


def old(path: Path) -> Path:
    return path.with_name(f".{path.name}.vitreous-old")


# ---- writing


@contextmanager
def placed(path: Path) -> Iterator[Path]:
    """Write a file, or a new folder, at the path that this yields. It is renamed into place if all went well; after an
    error it is removed, and what was in place is still there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = temporary(path)
    clear(path)
    try:
        yield new
        sync(new)
        new.replace(path)
        sync(path.parent)
    finally:
        remove(new)


def write_bytes(content: bytes, path: Path) -> None:
    try:
        with placed(path) as new:
            new.write_bytes(content)
    except OSError as error:
        raise not_written(path, error, len(content)) from None


def write_json(document: Any, path: Path) -> None:
    write_bytes((json.dumps(document, indent=2) + "\n").encode(), path)


def read_json(path: Path) -> Any:
    """A UserError if the file does not exist, or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError) as error:  # also for bytes that are not UTF-8
        raise UserError(f"{path}: damaged, or not JSON ({error})") from None


# The system's messages, which libraries pass on within their own.
_FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large")


def not_written(path: Path, error: Exception, num_bytes: int, advice: str | None = None) -> UserError:
    """The error for a file or folder of this many bytes; if the disk is full, it says how much space is needed."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
    if full := _FULL.search(reason):
        there = next(folder for folder in path.absolute().parents if folder.is_dir())
        reason = f"{full[0]}: {num_bytes:,} bytes needed, {shutil.disk_usage(there).free:,} free"
    return UserError(f"{path}: cannot be written ({reason}); {advice or 'free some space or choose another place'}")


# ---- removing


def remove(path: Path) -> None:
    """Delete a file or a folder of ours. A folder disappears at once: a half-removed one must not look intact."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    if _OURS.fullmatch(path.name) is None:
        gone = path.with_name(f".{path.name}.vitreous-gone-{os.getpid()}")
        remove(gone)  # left by a process with the same id
        path = path.rename(gone)
    shutil.rmtree(path)


def clear(path: Path) -> None:
    """Delete what processes left that were killed while they wrote or removed `path`, before writing it again."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.vitreous-*"):
        match = _OURS.fullmatch(left.name)
        if match is None or match["process"] is None:
            continue
        process = int(match["process"])
        if process == os.getpid() or not platforms.is_running(process):
            remove(left)


def sweep(folder: Path) -> None:
    """Delete everything that killed writers left in a folder. Only for its only writer."""
    for left in list(folder.iterdir()):
        match = _OURS.fullmatch(left.name)
        if match is None:
            continue
        path = folder / match["name"]
        if match["process"] is None and not path.exists():
            left.rename(path)
        else:
            remove(left)


def strangers(folder: Path) -> list[str]:
    """What is in a folder, apart from locks and from what `sweep` deletes."""
    return sorted(
        entry.name
        for entry in folder.iterdir()
        if not _OURS.fullmatch(entry.name)
        and not (entry.name.endswith("lock") and entry.is_file() and not entry.stat().st_size)
    )
