"""What differs between operating systems, in one place: Linux is what is tested, macOS and Windows are experimental."""

import os
import sys
from pathlib import Path
from typing import IO

WINDOWS = sys.platform == "win32"


def lock(file: IO[bytes]) -> bool:
    """Lock an open file without waiting; False where another process has it. The lock goes when the file is closed or
    the process ends, however it ends."""
    try:
        if WINDOWS:
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            # A record lock: unlike flock's, it is not inherited by reader processes, which may outlive a killed
            # process by some seconds.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sync(path: Path) -> None:
    """Bring a file, or a folder's list of names, to the disk."""
    if WINDOWS and path.is_dir():
        return  # folders cannot be opened there, and their names are journalled
    handle = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_running(process: int) -> bool:
    """Whether a process of this number exists."""
    if WINDOWS:  # where os.kill ends the process, whatever the signal
        import ctypes

        handle = ctypes.windll.kernel32.OpenProcess(0x1000, False, process)  # type: ignore[attr-defined,unused-ignore]
        ctypes.windll.kernel32.CloseHandle(handle)  # type: ignore[attr-defined,unused-ignore]
        return bool(handle)
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return True
