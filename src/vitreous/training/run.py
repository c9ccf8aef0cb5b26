"""The run directory: everything a run leaves behind, and what it needs to resume.

run.json           that this is a run
recipe.json        what was asked for
pictures.json      which pictures it learns from, see data/fingerprint.py
environment.json   versions, hardware, commit, command; one entry per start
metrics.jsonl      one JSON object per line
checkpoints/       step-00000123/ ..., see checkpoint.py
model/             the result, see weights/own.py
results.json       its numbers, written when the run has finished
tensorboard/       if TensorBoard is installed
"""

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from vitreous.errors import UserError
from vitreous.signals import Stopped
from vitreous.storage import atomic, locks
from vitreous.training.checkpoint import Checkpoint, Checkpoints
from vitreous.training.environment import environment

RUN = "run.json"
FORMAT = "vitreous run 1"
BEFORE_FORMATS = {"recipe.json", "environment.json"}  # the files of runs from before there was a run.json
BEGUN = {RUN, "recipe.json", "environment.json", "pictures.json", "tokenizer.json", "checkpoints"}  # before any step

_held: set[Path] = set()  # directories that this process trains into


class RunDirectory:
    """Anyone may read; to write, enter it (`with RunDirectory(path) as run`), which one process at a time can do."""

    def __init__(self, path: Path | str, *, owner: bool = True, tensorboard: bool = True) -> None:
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self.metrics = self.path / "metrics.jsonl"
        self._owner = owner  # False: a rank other than the first, which enters too and writes nothing
        self._tensorboard = tensorboard
        self._is_new = False
        self._lock: IO[bytes] | None = None
        self._log: IO[str] | None = None
        self._writer: Any = None
        self._first_step: int | None = None  # the first step of this process that TensorBoard shows
        self._opened = time.monotonic()
        self._earlier_s = 0.0

    # ---- entering and leaving

    def __enter__(self) -> Self:
        self._opened = time.monotonic()
        try:
            if self._owner:
                self._take_possession()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            if isinstance(error, OSError):
                raise UserError(f"{self.path}: cannot be a run directory ({error.strerror})") from None
            raise
        return self

    def _take_possession(self) -> None:
        self._is_new = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        self.check_ours()
        self._take_lock()
        if not (self.path / RUN).exists():
            atomic.write_json({"format": FORMAT}, self.path / RUN)
        self.checkpoints.folder.mkdir(exist_ok=True)
        for folder in (self.path, self.checkpoints.folder):
            atomic.sweep(folder)

    def check_ours(self) -> None:
        """Refuses a folder that somebody else filled: nothing is written into it or removed from it."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path}: a file, where a run directory has to be; choose another --out")
        names = atomic.strangers(self.path) if self.path.is_dir() else []
        if RUN in names:
            self._about()
        elif names and not BEFORE_FORMATS.issubset(names):
            raise UserError(f"{self.path}: not a run, but a folder with {names[0]!r} in it; choose another --out")

    def _about(self) -> dict[str, Any]:
        """run.json, or what it would contain."""
        path = self.path / RUN
        about = atomic.read_json(path) if path.exists() else {"format": FORMAT}
        if not isinstance(about, dict) or not str(about.get("format")).startswith("vitreous run "):
            raise UserError(f"{path}: not written by vitreous; choose another --out")
        if about["format"] != FORMAT:
            raise UserError(
                f"{path}: its format is {about['format']!r}, and this version reads {FORMAT!r}; install a later one"
            )
        return about

    def _take_lock(self) -> None:
        path, is_ours = self.path / "lock", self.path.resolve() in _held
        self._lock = None if is_ours else locks.take(path)
        if self._lock is None:
            who = "this process" if is_ours else locks.holder(path)
            raise UserError(f"{self.path}: in use by {who}; wait for it to end, or give another directory")
        _held.add(self.path.resolve())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Stopped):
            error.kept = _kept(self.checkpoints, self.path)
        with contextlib.suppress(OSError):  # a full disk: log() has reported it, or nothing is missing
            if self._writer:
                self._writer.close()
        with contextlib.suppress(OSError):
            if self._log:
                self._log.close()
        self._writer = self._log = None
        if self._is_new and isinstance(error, UserError):
            self._remove_if_only_begun()
        if self._lock:
            _held.discard(self.path.resolve())
            self._lock.close()
            self._lock = None

    def _remove_if_only_begun(self) -> None:
        """A training that was refused leaves no folder behind."""
        with contextlib.suppress(OSError):
            if BEGUN.issuperset(atomic.strangers(self.path)) and not self.checkpoints.paths():
                atomic.remove(self.path)

    # ---- metrics

    def log(self, row: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl. It has a "step"; log everything of a step before saving its checkpoint."""
        line = json.dumps({name: _finite(value) for name, value in row.items()}, allow_nan=False) + "\n"
        try:
            if self._log is None:
                self._log = self.metrics.open("a", encoding="utf-8")
            self._log.write(line)
            self._log.flush()
        except OSError as error:
            raise self._full(error, len(line)) from None
        try:
            self._show(row)
        except OSError as error:  # the numbers are in the log, so training continues without TensorBoard
            print(f"{self.path}: nothing more is written for TensorBoard ({error.strerror})", file=sys.stderr)
            self._writer = False

    def _full(self, error: OSError, num_bytes: int) -> UserError:
        advice = "free some space, and the same command resumes from the last checkpoint"
        return atomic.not_written(self.metrics, error, num_bytes, advice)

    def _show(self, row: Mapping[str, Any]) -> None:
        if self._writer is None and self._tensorboard:
            self._writer = _summary_writer(self.path / "tensorboard", self._first_step) or False
        if self._writer:
            for name, value in row.items():
                if name != "step" and isinstance(value, int | float):
                    self._writer.add_scalar(name, value, row["step"])

    def rows(self) -> list[dict[str, Any]]:
        """Every complete line of metrics.jsonl."""
        return [row for _, row in self._lines()]

    def truncate_log(self, step: int) -> None:
        """Drop what was logged after `step`, and a line cut off by a kill: the log of a run that resumes there."""
        if not self._owner:
            return
        kept = b"".join(line for line, row in self._lines() if row["step"] <= step)
        if self.metrics.exists() and self.metrics.stat().st_size != len(kept):
            if self._log:
                self._log.close()
                self._log = None
            atomic.write_bytes(kept, self.metrics)
        self._first_step = step + 1

    def _lines(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        if not self.metrics.exists():
            return
        for line in self.metrics.read_bytes().splitlines(keepends=True):
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if line.endswith(b"\n") and isinstance(row, dict) and isinstance(row.get("step"), int):
                yield line, row

    # ---- checkpoints

    def keep_log(self) -> None:
        """Sync the log to disk, so that it never ends before a checkpoint."""
        self._check_there()
        try:
            if self._log:
                os.fsync(self._log.fileno())
        except OSError as error:
            raise self._full(error, 0) from None

    def _check_there(self) -> None:
        """Refuses to recreate a folder that was moved, removed or unmounted: it could be on another disk, and would
        lack the rest of the run."""
        if self._lock is None:
            return
        try:
            is_there = os.path.samestat((self.path / "lock").stat(), os.fstat(self._lock.fileno()))
        except OSError:
            is_there = False
        if not is_there:
            raise UserError(
                f"{self.path}: moved, removed or unmounted during the run, so nothing more is saved; if the folder "
                "still exists elsewhere, the same command with that --out resumes from its last checkpoint"
            )

    def latest_checkpoint(self) -> Checkpoint | None:
        """The newest intact one; its `notes` name those that were skipped."""
        found = self.checkpoints.latest()
        if found:
            self._earlier_s = found.elapsed_s
        return found

    # ---- the rest

    @property
    def elapsed_s(self) -> float:
        """Time spent on the run: until the checkpoint that it resumed from, and since this process entered."""
        return self._earlier_s + time.monotonic() - self._opened

    def timing(self) -> dict[str, float]:
        return {"wall_s": round(self.elapsed_s, 1)}

    def write_environment(self) -> None:
        """Add this start to environment.json."""
        path = self.path / "environment.json"
        try:
            starts = atomic.read_json(path)
        except UserError:  # the first start, or a damaged file, which nothing depends on
            starts = []
        atomic.write_json([*(starts if isinstance(starts, list) else []), environment()], path)

    def results(self) -> dict[str, Any] | None:
        """The results of a finished run; None if there are none, or not all of them: then its end is repeated."""
        path = self.path / "results.json"
        if not path.exists():
            return None
        try:
            found = atomic.read_json(path)
        except UserError:
            return None
        is_whole = isinstance(found, dict) and {"recipe", "wall_s"} <= found.keys() and type(found.get("steps")) is int
        return found if is_whole else None


@contextlib.contextmanager
def says_what_is_kept(path: Path) -> Iterator[None]:
    """If a signal stops what is inside, which belongs to the run at this path."""
    try:
        yield
    except Stopped as stop:
        stop.kept = _kept(Checkpoints(path / "checkpoints"), path)
        raise


def _kept(checkpoints: Checkpoints, path: Path) -> str:
    steps = checkpoints.paths()
    if not steps:
        return f"there is no checkpoint in {path} yet, so the same command begins the training anew"
    return f"step {max(steps):,} is saved in {path}, and the same command resumes from there"


def _finite(value: Any) -> Any:
    """JSON has no NaN or infinity; as text they stay distinct, and float() reads them."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _summary_writer(folder: Path, first_step: int | None) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    _say_it_once()
    # Hides later steps that an interrupted process wrote.
    return SummaryWriter(str(folder), purge_step=first_step)


@cache
def _say_it_once() -> None:
    """TensorBoard's thread reports a full disk to us, and we print one line; this hides its own traceback."""
    hook = threading.excepthook

    def shown(found: threading.ExceptHookArgs) -> None:
        is_theirs = type(found.thread).__module__.startswith("tensorboard.")
        if not (is_theirs and issubclass(found.exc_type, OSError)):
            hook(found)

    threading.excepthook = shown
