"""Signals that ask a command to end: from a scheduler, a terminal, a scheduler's warning (Slurm's --signal=USR1@60).

The process of a command hears them from its first line to its last (`Process`, in `__main__`). They end it at once,
except while it trains: then the step is finished and saved (training/stopping).
"""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

GRACE_S = 8.0  # that a command which is to end at once may take, then it is ended wherever it is
AGAIN_S = 0.2
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name))


class Stopped(SystemExit):
    """Raised wherever the main thread is, so that half-written files are removed. `kept` is what of the work is saved;
    whoever knows says it, while this passes."""

    def __init__(self, number: int) -> None:
        self.number, self.kept = number, ""
        self.exit_code = 128 + number  # as shells report a process ended by a signal
        super().__init__(self.exit_code)

    def __str__(self) -> str:
        return f"{named(self.number)}: stopped" + (f"; {self.kept}" if self.kept else "")


def named(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


class Hearing:
    """Inside, the signals raise Stopped; afterwards they do what they did before."""

    def __init__(self) -> None:
        self.received = 0  # the signal's number
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():  # where signals cannot be caught
            return self
        for number in ENDING:
            self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)
        # A library that was broken off may say so in its own way, or drop what was raised.
        if self.received and not isinstance(error, SystemExit) and not hasattr(error, "exit_code"):
            raise Stopped(self.received) from error

    def _end(self, error: BaseException | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        if not _is_leaving() and not _is_deleting(frame):  # schedulers and torchrun may both send the same
            raise Stopped(number)


def _is_leaving() -> bool:
    """Whether a signal is already ending the program."""
    error = sys.exception()
    while error is not None and getattr(error, "exit_code", 0) <= 128:
        error = error.__context__
    return error is not None


def _is_deleting(frame: FrameType | None) -> bool:
    """Whether an object is being deleted: Python prints what is raised there, and drops it."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


class Process(Hearing):
    """Of a process that is one command, to the very end. A signal that comes when the command is over only ends the
    process sooner, with the exit code that it has anyway."""

    def __enter__(self) -> Self:
        return self

    def hear(self) -> None:
        """To be called inside: what is raised from here on is said at the end."""
        super().__enter__()
        # Called after all other functions of atexit, since it comes first. Then Python gives up handlers of its own.
        atexit.register(self._ignore)
        if hasattr(os, "register_at_fork"):
            heard, written = os.pipe()
            os.set_blocking(written, False)
            signal.set_wakeup_fd(written, warn_on_full_buffer=False)
            os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
            threading.Thread(target=self._watch, args=(heard,), daemon=True).start()

    def _end(self, error: BaseException | None) -> None:
        if isinstance(error, Stopped):  # outside of cli.main, which would have said so
            print(f"vitreous: {error}", file=sys.stderr, flush=True)
        code = _exit_code(error)
        for number in self._before:
            signal.signal(number, lambda *_: os._exit(code))

    def _watch(self, heard: int) -> None:
        """Sends a signal again, since what was raised may have been dropped. In the end nothing is raised: Python calls
        handlers between two of its own instructions, and a library may wait for long inside one."""
        while True:
            number = os.read(heard, 1)[0]
            given_up = time.monotonic() + GRACE_S
            while number in ENDING and _ends_at_once(number):
                time.sleep(AGAIN_S)
                if time.monotonic() > given_up and _ends_at_once(number):
                    print(f"vitreous: {Stopped(number)}", file=sys.stderr, flush=True)
                    os._exit(Stopped(number).exit_code)
                if _ends_at_once(number):  # or a run has begun to note it, or the command is over
                    signal.pthread_kill(threading.main_thread().ident or 0, number)

    def _ignore(self) -> None:
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)


def _ends_at_once(number: int) -> bool:
    return getattr(signal.getsignal(number), "__func__", None) is Hearing._hear


def _exit_code(error: BaseException | None) -> int:
    code = error.code if isinstance(error, SystemExit) else error
    return code if isinstance(code, int) else int(code is not None)


class _Later(Hearing):
    """Notes a signal."""

    def __exit__(self, *error: object) -> None:
        self._end(None)
        if self.received:
            signal.raise_signal(self.received)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.received = number


@contextmanager
def unheard() -> Iterator[None]:
    """Processes started inside never hear the signals; the one that starts them hears them afterwards, and ends them.
    Windows has no masks."""
    with _Later():
        if not hasattr(signal, "pthread_sigmask"):
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
