"""Locks: what one process at a time may work on."""

import fcntl
from pathlib import Path
from typing import IO


def take(path: Path) -> IO[bytes] | None:
    """The lock, ours until it is closed; None: another process has it.

    A record lock, which the kernel drops when the process ends, however it ends. Unlike flock's, it is not inherited by
    loader workers, which may outlive a killed process by some seconds. It knows processes only: within one process it
    is granted again, and given back as soon as any of its files is closed.
    """
    lock = path.open("ab")
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock
