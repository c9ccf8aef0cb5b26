"""Progress of long work: a bar on a terminal, plain lines elsewhere."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO, TypeVar
from unicodedata import combining, east_asian_width

T = TypeVar("T")

PLAIN_EVERY_S = 10.0  # between plain lines where there is no terminal

_is_quiet = False  # within `quietly`


@contextmanager
def quietly(is_wanted: bool = True) -> Iterator[None]:
    """Drops progress: bars, and lines on standard output. Warnings and errors remain."""
    global _is_quiet  # noqa: PLW0603 - bars are made far below the caller who wants none
    if not is_wanted:
        yield
        return
    before, _is_quiet = _is_quiet, True
    try:
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            yield
    finally:
        _is_quiet = before


def is_quiet() -> bool:
    return _is_quiet


@contextmanager
def lasting_output() -> Iterator[None]:
    """Work goes on when its output cannot be written (a full disk): that output is dropped, and the program ends with
    an error once its work is done."""
    out, errors = _Lasting(sys.stdout), _Lasting(sys.stderr)
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            yield
        finally:
            with suppress(BrokenPipeError):
                out.flush()
    if out.failed is not None:
        print(f"vitreous: standard output could not be written ({out.failed.strerror})", file=errors)
        sys.exit(1)


class _Lasting:
    """A standard stream whose disk may be full."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.failed: OSError | None = None

    def write(self, text: str) -> int:
        return self._tried(lambda: self.stream.write(text), len(text))

    def flush(self) -> None:
        self._tried(self.stream.flush, None)

    def _tried(self, work: Callable[[], T], otherwise: T) -> T:
        try:
            return work()
        except BrokenPipeError:  # nobody reads any more, so the work may end
            raise
        except OSError as error:
            self.failed = error
            # Otherwise the interpreter would fail again at exit, on what the stream still holds.
            with suppress(OSError), Path(os.devnull).open("w", encoding="utf-8") as nowhere:
                os.dup2(nowhere.fileno(), self.stream.fileno())
            return otherwise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def printable(text: str) -> str:
    """Names of files and classes come from anywhere: a terminal should show them, not obey them."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def display_width(text: str) -> int:
    """How many columns of a terminal a text takes: two for each Chinese or Japanese character."""
    return sum((east_asian_width(letter) in "WF") + 1 for letter in text if not combining(letter))


def padded(text: str, width: int) -> str:
    return text + " " * (width - display_width(text))


def duration(seconds: float) -> str:
    """3725 -> '1:02:05'."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def note(*lines: str) -> None:
    """Notes for the user, on standard error: a program may read the output."""
    for line in lines:
        print(f"note: {line}", file=sys.stderr, flush=True)


class Bar:
    """Progress of work of known length: share done, rate, time left, and facts that the work adds."""

    def __init__(self, what: str, total: int, done: int = 0, unit: str = "", silent: bool = False) -> None:
        self.what, self.total, self.unit, self.silent = what, total, unit, silent or _is_quiet
        self.first = self.done = done  # work of an earlier run says nothing about this one's rate
        self.started = self.printed = time.monotonic()
        self.facts = ""
        self._rich: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and not self.silent:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[facts]}"))
            self._rich = Progress(*columns, console=Console(stderr=True))
            self._task = self._rich.add_task(self.what, total=self.total, completed=self.done, facts="")
            self._rich.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rich is not None:
            self._rich.stop()
        elif self.printed > self.started and kind is None:  # only work that was long enough to print at all
            self._print_line()

    @property
    def elapsed_s(self) -> float:
        return max(time.monotonic() - self.started, 1e-9)

    def update(self, done: int, **facts: str) -> None:
        """Show how much is done, and the facts in the order given."""
        self.done = done
        if facts:
            self.facts = "  ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())
        if self._rich is not None:
            self._rich.update(self._task, completed=done, total=self.total, facts=self._summary())
        elif not self.silent and time.monotonic() - self.printed >= PLAIN_EVERY_S:
            self._print_line()

    def _summary(self) -> str:
        rate = (self.done - self.first) / self.elapsed_s
        left = f"{duration((self.total - self.done) / rate)} left" if rate > 0 else "starting"
        digits = 0 if rate >= 100 else 1
        share = f"{self.done:,}/{self.total:,}{self.unit and ' ' + self.unit}"
        return "  ".join(part for part in (share, f"{rate:,.{digits}f}/s", left, self.facts) if part)

    def _print_line(self) -> None:
        self.printed = time.monotonic()
        print(f"{self.what}: {self._summary()}", file=sys.stderr, flush=True)


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Iterate and show progress."""
    if total is None:
        items = list(items)
        total = len(items)
    with Bar(what, total) as bar:
        for number, item in enumerate(items, start=1):
            yield item
            bar.update(number)


def table(rows: Sequence[tuple[str, ...]], header: tuple[str, ...]) -> str:
    """Left-aligned columns, for terminals and logs alike."""
    widths = [max(display_width(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [header, tuple("-" * width for width in widths), *rows]
    return "\n".join(
        "  ".join(padded(cell, width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
