"""Every measurement that wants a GPU, by one command, the most wanted first (benchmarks/measurements.py).

    python benchmarks/on_gpu.py --list
    python benchmarks/on_gpu.py --seconds 560 --out measured --to home --from carried
    python benchmarks/on_gpu.py --only levers train_step --out measured
    python benchmarks/on_gpu.py --tiny --out tried

GPUs are lent by the minute. An entry begins where its expected time is left, and gets a SIGTERM where it takes half as
long again, or as the time ends: what it has written stays. The same command again skips what is done, and goes on with
what goes on where it was; what failed, or began in vain, runs again where --only names it. Entries of a group run side
by side, under NVIDIA's MPS where that is installed and works (benchmarks/mps.py). One that fails leaves the others as
they are. SIGTERM ends all of it in the same way, within 15 seconds.

--out has the results and the log of every entry, summary.json (state, seconds, commit, hardware, versions, what failed
while the rest went on, whether MPS was used), and runs/, where trainings lie. With --to, an archive of it is written
there whenever an entry ends: all that is small, and of weights what fits into two files of 15 MB. Where there is no
--out yet, --from begins with such an archive: so the same command goes on after a kill, or on another machine. Data is
looked for in the folder that VITREOUS_DATA names (tools/pieces.py takes it there in pieces). --tiny runs the same
commands on a CPU without data, in seconds or a minute each, to see that they work. Where vitreous is not installed,
PYTHONPATH=src finds it.
"""

import argparse
import hashlib
import io
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from measurements import ENTRIES, STAND_INS, Entry
from mps import Mps
from vitreous.cli import one_line_errors
from vitreous.errors import UserError, did_you_mean
from vitreous.storage import atomic
from vitreous.terminal import table
from vitreous.training.environment import environment

ROOT = Path(__file__).resolve().parents[1]
GRACE_S = 15.0  # from SIGTERM to SIGKILL: saving takes a second or two
LEAST_S = 60.0  # of what goes on where it was: in less it would only compile
LATE = 1.5  # times the expected seconds, and an entry is stopped
TINY_S = 400.0
PROBE_S = 60.0  # most of it for importing torch
NOTED = ("failed", "unequal", "without theirs", "errors")  # in results: what failed while the rest went on
TOLD = ("results.json", "environment.json", "evaluation.json", "plan.json", "metrics.jsonl")  # of a run directory
ARCHIVE, PART = "measured.tar.gz", 15_000_000  # bytes of one of its files at most
LEAVES = 29_000_000  # bytes that it has before it is compressed, at most


# ---- commands


def command_of(entry: Entry, options: argparse.Namespace) -> list[str]:
    names = STAND_INS if options.tiny else {name: name for name in STAND_INS}
    words = shlex.split(entry.command.format(out=options.out, runs=options.runs, **names))
    words += shlex.split(entry.tiny) if options.tiny else []
    match words[0]:
        case "tests":
            return [sys.executable, "-m", "pytest", *gpu_tests(words[1:]), *(["--setup-plan"] if options.tiny else [])]
        case "vitreous":
            return [sys.executable, "-m", *words, "--out", str(options.runs / entry.name)]
        case script:
            out = str(options.out / f"{entry.name}{entry.ending}")
            return [sys.executable, str(ROOT / "benchmarks" / script), *words[1:], "--out", out]


def gpu_tests(folders: Sequence[str]) -> list[str]:
    """Without pyproject.toml: its warnings are errors, and those of a lent machine's libraries are not ours."""
    files = sorted(path for folder in folders for path in (ROOT / "tests" / folder).glob("test_*.py"))
    marked = [str(path) for path in files if "mark.gpu" in path.read_text(encoding="utf-8")]
    words = ["-q", "-m", "gpu", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    return ["-c", os.devnull, "--rootdir", str(ROOT / "tests"), *words, *marked]


def environment_of(options: argparse.Namespace) -> dict[str, str]:
    found = {**os.environ, "PYTHONUNBUFFERED": "1"}
    found["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    # Kernels that were written for a GPU are tried in Triton's interpreter.
    return found | {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"} if options.tiny else found


# ---- one call


class Call:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.ends = options, time.monotonic() + options.seconds
        self.path = options.out / "summary.json"
        self.summary: dict[str, Any] = atomic.read_json(self.path) if self.path.is_file() else {}
        where = environment()
        self.where = {key: where[key] for key in ("commit", "uncommitted_changes", "gpus", "cpu", "versions")}
        self.late: list[str] = []  # there was no time for
        self.lock = threading.Lock()
        self.mps = Mps(self._succeeds)

    def run(self, entries: Sequence[Entry]) -> None:
        for _, group in groupby(entries, lambda entry: entry.group or entry.name):
            some = list(group)
            is_shared = some[0].is_shared and not self.options.tiny and any(map(self._begins, some))
            with (
                self.mps.serving() if is_shared else nullcontext() as served,
                ThreadPoolExecutor(1 if self.options.tiny else len(some)) as pool,
            ):
                list(pool.map(partial(self._measure, served=served), some))
        if self.late:
            print(f"not run, for want of time: {', '.join(self.late)}", flush=True)

    def stop(self, *_: Any) -> None:
        """What runs is asked to end, and nothing else begins."""
        self.ends = -math.inf

    def _left(self) -> float:
        return self.ends - GRACE_S - time.monotonic()

    def _settled(self, entry: Entry) -> str:
        state = self.summary.get(entry.name, {}).get("state")
        if state == "done":
            return "done before"
        if state is None or (state == "stopped" and entry.goes_on) or entry.name in (self.options.only or ()):
            return ""
        return f"{state} before; --only {entry.name} runs it again"

    def _lacks(self, entry: Entry) -> str:
        shared = Path(os.environ.get("VITREOUS_DATA", ""))
        missing = [] if self.options.tiny else [name for name in entry.data if not (shared / name).exists()]
        if missing:
            return f"not run: not in the folder that VITREOUS_DATA names: {', '.join(missing)}"
        if entry.after and entry.after not in self.summary and not self.options.only:
            return f"not run: {entry.after} comes first"
        return ""

    def _why_not(self, entry: Entry) -> str:
        return self._settled(entry) or self._lacks(entry)

    def _needs_s(self, entry: Entry) -> float:
        return min(LEAST_S, entry.seconds) if entry.goes_on or self.options.tiny else entry.seconds

    def _begins(self, entry: Entry) -> bool:
        return not self._why_not(entry) and self._left() >= self._needs_s(entry)

    def _succeeds(self, command: list[str], environment: Mapping[str, str]) -> bool:
        until = time.monotonic() + PROBE_S
        with (self.options.out / "mps.log").open("ab") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
            return ended(process, lambda: min(self._left(), until - time.monotonic())) == "done"

    def _measure(self, entry: Entry, served: Mapping[str, str] | None) -> None:
        """served: what MPS wants in the environment; None if nobody asked for it."""
        if why_not := self._why_not(entry):
            print(f"{entry.name}: {why_not}", flush=True)
            return
        if not self._begins(entry):
            self.late.append(f"{entry.name} ({self._needs_s(entry):.0f} s)")
            return
        began, log = time.monotonic(), self.options.out / f"{entry.name}.log"
        command, env = command_of(entry, self.options), {**environment_of(self.options), **(served or {})}
        limit = TINY_S if self.options.tiny else LATE * entry.seconds
        with log.open("ab") as file:
            process = subprocess.Popen(command, env=env, stdout=file, stderr=file, start_new_session=True)
            state = ended(process, lambda: min(self._left(), began + limit - time.monotonic()))
        if entry.command.startswith("vitreous"):
            take(self.options.runs / entry.name, self.options.out, entry.name)
        with self.lock:
            spent = self.summary.get(entry.name, {}).get("seconds", 0.0) + time.monotonic() - began
            found = {"state": state, "seconds": round(spent, 1), "command": shlex.join(command[1:]), **self.where}
            found["noted"] = noted = noted_in(self.options.out / f"{entry.name}.json")
            if served is not None:
                found["mps"] = "used" if served else f"not used: {self.mps.why_not}"
            self.summary[entry.name] = found
            atomic.write_json(self.summary, self.path)
            if self.options.to is not None:
                send(self.options.out, self.options.to)
        told = f"{len(noted)} failed, the first: {noted[0][:200]}" if noted else last_line(log)
        print(f"{entry.name}: {state} after {spent:.0f} s: {told}", flush=True)


def ended(process: "subprocess.Popen[bytes]", left: Callable[[], float]) -> str:
    """How: done, failed, or stopped, when no time is left."""
    try:
        while process.poll() is None and left() > 0:
            time.sleep(0.1)
        if process.returncode is None:
            signalled(process, signal.SIGTERM)
            until = time.monotonic() + GRACE_S  # for what it has begun too: it may be saving
            while time.monotonic() < until and (process.poll() is None or signalled(process, 0)):
                time.sleep(0.1)
            return "stopped"
        code = process.returncode
        return "done" if code == 0 else "stopped" if code in (-signal.SIGTERM, 128 + signal.SIGTERM) else "failed"
    finally:
        signalled(process, signal.SIGKILL)  # and what it has left running
        process.wait()


def signalled(process: "subprocess.Popen[bytes]", number: int) -> bool:
    """It, and what it has begun: whether any of them was there."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
        return True
    return False


def take(run: Path, out: Path, name: str) -> None:
    for told in TOLD:
        if (run / told).is_file():
            shutil.copy(run / told, out / f"{name}.{told}")


def noted_in(results: Path) -> list[str]:
    """An entry that is done may have a row that is not: a peer that is missing, a lever that does not compile."""

    def within(found: Any) -> list[str]:
        if isinstance(found, list):
            return [one for part in found for one in within(part)]
        if not isinstance(found, dict):
            return []
        own = [f"{name}: {found[name]}" for name in NOTED if found.get(name)]
        return own + [one for name, part in found.items() if name not in NOTED for one in within(part)]

    with suppress(UserError):  # there are none, or it was stopped as it wrote them
        return within(atomic.read_json(results))
    return []


def last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


# ---- from machine to machine


def send(out: Path, to: Path) -> None:
    """Results and logs, then folders of runs, each whole or not at all, the smallest first. An earlier archive
    is removed when this one is complete."""
    folders: dict[Path, list[Path]] = {}
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        folders.setdefault(path.parent, []).append(path)
    sizes = {folder: sum(map(size_of, paths)) for folder, paths in folders.items()}
    left = LEAVES
    with tempfile.TemporaryFile() as whole:
        with tarfile.open(fileobj=whole, mode="w:gz", compresslevel=1) as archive:
            for folder in sorted(sizes, key=lambda folder: (folder != out, sizes[folder])):
                if sizes[folder] <= left:
                    left -= sizes[folder]
                    for path in folders[folder]:
                        add(path, out, archive)
        whole.seek(0)
        contents = list(iter(lambda: whole.read(PART), b""))
    name = f"{ARCHIVE}.{digest(contents)}"
    parts = [to / f"{name}.{number:02}" for number in range(len(contents))]
    for path, content in zip(parts, contents, strict=True):
        atomic.write_bytes(content, path)
    for path in set(to.glob(f"{ARCHIVE}.*")) - set(parts):
        path.unlink()


def digest(contents: Sequence[bytes]) -> str:
    return hashlib.sha256(b"".join(contents)).hexdigest()[:8]


def size_of(path: Path) -> int:
    with suppress(OSError):  # what runs beside removes files of its own
        return path.stat().st_size
    return 0


def add(path: Path, out: Path, archive: tarfile.TarFile) -> None:
    with suppress(OSError):
        content, info = path.read_bytes(), tarfile.TarInfo(str(path.relative_to(out)))
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))


def bring(carried: Path, out: Path) -> None:
    """The newest complete archive: where `send` was killed there are parts of another."""
    found = sorted(carried.glob(f"{ARCHIVE}.*"))
    if out.exists() or not found:
        return
    complete = {}
    for name, parts in groupby(found, lambda part: part.stem):
        contents = {part: part.read_bytes() for part in parts}
        if name == f"{ARCHIVE}.{digest([*contents.values()])}":
            complete[max(part.stat().st_mtime for part in contents)] = b"".join(contents.values())
    if not complete:
        raise UserError(f"{carried}: parts of the archive are missing or damaged")
    whole = io.BytesIO(complete[max(complete)])
    with tarfile.open(fileobj=whole) as archive, atomic.placed(out) as unpacked:
        archive.extractall(unpacked, filter="data")


@contextmanager
def signals_stop(call: Call) -> Iterator[None]:
    before = {number: signal.signal(number, call.stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- the command


def chosen(names: Sequence[str] | None) -> list[Entry]:
    known = [entry.name for entry in ENTRIES]
    for name in names or ():
        if name not in known:
            raise UserError(f"--only {name}: there is no such entry.{did_you_mean(name, known)} --list shows all")
    return [entry for entry in ENTRIES if names is None or entry.name in names]


def listed(entries: Sequence[Entry]) -> str:
    rows = [(e.name, f"{e.seconds:,.0f}", e.group, ", ".join(e.data), e.page, e.answers) for e in entries]
    return table(rows, ("entry", "seconds", "side by side", "data", "docs/results", "answers"))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="the entries, and what each answers")
    parser.add_argument("--only", nargs="+", metavar="ENTRY")
    parser.add_argument("--seconds", type=float, default=1e9, help="this call may take")
    parser.add_argument("--tiny", action="store_true", help="try the commands on a CPU")
    parser.add_argument("--out", type=Path, default=Path("runs/on_gpu"))
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="where the archive is written")
    parser.add_argument("--from", type=Path, metavar="FOLDER", dest="carried", help="where an archive of --to is")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    options.runs = options.out / "runs"
    entries = chosen(options.only)
    if options.list:
        print(listed(entries))
        return
    if options.carried is not None:
        bring(options.carried, options.out)
    options.runs.mkdir(parents=True, exist_ok=True)
    call = Call(options)
    if not options.tiny and not call.where["gpus"]:
        raise UserError("there is no GPU here: --tiny tries the commands on a CPU")
    with signals_stop(call):
        call.run(entries)
    if any(call.summary.get(entry.name, {}).get("state") == "failed" for entry in entries):
        sys.exit(1)


if __name__ == "__main__":
    with one_line_errors():
        main()
