"""Opening files that somebody else named: regular ones only, and none larger than it may be.

A pipe called x.png would never end, /dev/zero never stop. What is refused is an OSError whose `strerror` says why.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from vitreous import platforms

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_regular(path: Path) -> None:
    """Raises OSError unless the path leads to a regular file. A link to one counts as one."""
    _check(path.stat().st_mode, path)


def is_regular(path: Path) -> bool:
    try:
        check_regular(path)
    except (OSError, ValueError):  # not there, not allowed, no possible name
        return False
    return True


def open_regular(path: Path) -> BinaryIO:
    check_regular(path)  # before it is opened: some devices act on that
    descriptor = os.open(path, platforms.READING)
    try:
        _check(os.fstat(descriptor).st_mode, path)  # it may have been exchanged in between
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, max_bytes: int) -> bytes:
    """All of a file, where that is not more than `max_bytes`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise OSError(errno.EFBIG, f"{size:,} bytes, more than the {max_bytes:,} allowed", str(path))
        return file.read(size)  # what grows meanwhile, or has no size (as in /proc), is not followed


def _check(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"{kind}, not a regular file", str(path))
