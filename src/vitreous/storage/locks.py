"""Locks for what only one process at a time may work on. A second process can tell which one holds a lock."""

from pathlib import Path
from typing import IO

from vitreous import platforms
from vitreous.errors import UserError


def take(path: Path) -> IO[bytes] | None:
    """The lock, ours until it is closed; None: another process holds it.

    Locks belong to processes: within one process, a lock may be granted again, and is released as soon as any of its
    files is closed.
    """
    try:
        file = path.open("ab")
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); choose another place") from None
    if platforms.lock(file):
        return file
    file.close()
    return None


def holder(path: Path) -> str:
    """Who holds a lock that was just refused, in words, as far as the system tells. Not for the process that has it."""
    try:
        with path.open("rb") as file:
            process = platforms.lock_holder(file)
    except OSError:
        process = None
    if process is None:
        return "another process"
    command = platforms.command_line(process)
    return f"process {process}" + (f" ({command[:160]})" if command else "")
