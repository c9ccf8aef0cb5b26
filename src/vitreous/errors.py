"""The one kind of exception that means: the user can fix this.

The command line prints its message as one line, without a traceback. A message says what is wrong, where, and what to
do.
"""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """Something outside the code is wrong: a path, a file, a setting, a name."""

    exit_code = 2  # of the command that ends with it


class UnknownSettingError(UserError):
    """A dotted name that no setting has; it may be a mistyped option of the command."""

    def __init__(self, name: str, hint: str) -> None:
        super().__init__(f"--{name}: there is no such setting.{hint}")
        self.name = name


class ReaderEndedError(UserError):
    """A process that reads pictures for another has died."""

    def __init__(self) -> None:
        super().__init__(
            "a process that reads pictures was killed, perhaps because memory ran out: use fewer --training.workers, "
            "or free some memory. The same command resumes a run from its last checkpoint"
        )


class ReaderStalledError(UserError):
    """The processes that read pictures are alive, but send none."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the processes that read pictures have sent none for {seconds:g} s: a disk or a network does not respond, "
            "or they were stopped. The same command resumes a run from its last checkpoint; VITREOUS_READER_TIMEOUT_S "
            "sets how long to wait"
        )


@contextmanager
def in_plain_words() -> Iterator[None]:
    """Errors of a machine at its limits (memory, disk, files), or left by a kill, become UserErrors."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        limit = _limit(error)
        if limit is None:
            raise
        raise limit from error


_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE)  # as torch says it
# torch does not notice that its compiler was ended in the midst of a file.
_CUT_SHORT = re.compile(r"ImportError: (\S+\.so): (?:file too short|invalid ELF header)")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def _limit(error: MemoryError | RuntimeError | OSError) -> UserError | None:
    if isinstance(error, OSError):
        where = "" if error.filename is None else f"{error.filename}: "
        return UserError(f"{where}{error.strerror}") if error.errno in _FULL else None
    if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
        asked = re.search(r"allocate (\d+ bytes|[\d.]+ \w+)", str(error))
        return UserError(
            f"not enough memory{(asked and f' (for {asked[1]} more)') or ''}; training needs less with a smaller "
            "--training.batch_size, --training.memory.accumulate 2 or --training.memory.recompute true"
        )
    if cut := _CUT_SHORT.search(str(error)):
        return UserError(f"{cut[1]}: cut short when torch's compiler was ended; remove it, and give the command again")
    return ReaderEndedError() if "DataLoader worker (pid" in str(error) else None


def did_you_mean(name: str, known: list[str] | tuple[str, ...]) -> str:
    """' Did you mean ...?' for a mistyped name, or '' if no known name is similar."""
    import difflib

    if len(name) > 200:  # not a typing mistake, and slow to compare
        return ""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def did_you_mean_beside(path: Path) -> str:
    """The same for a path, among what lies in its folder."""
    try:
        return did_you_mean(path.name, [each.name for each in path.parent.iterdir()])
    except OSError:
        return ""


def shown(value: object) -> str:
    """A value for messages: as Python writes it, shortened if it is long, deep or has many parts."""
    import reprlib

    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    short.maxlong = 30
    short.maxlevel = 2
    return short.repr(value)


def first_line(error: BaseException) -> str:
    """An error's message, as one line of bounded length."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
