"""A disk that is full at five moments, or read-only, and a folder that vanishes: what was saved before stays, and one
line says what is the matter. The disk is a small tmpfs in a namespace of its own, which needs no root."""

import ctypes
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from stress.campaign import Campaign, Facts, Unable
from stress.scenarios import SCENARIOS, STEPS, half_written, reference
from stress.warm import Command, Ended
from vitreous.training.checkpoint import Checkpoints

DISK_BYTES = 8 * 2**20
PAGE = 4096
KEPT = 2  # checkpoints
ENTERED = ("user", "mnt")


class Disk:
    """Seen from here under `outside`, and by commands that enter the namespace under `path`."""

    def __init__(self, path: Path, holder: int) -> None:
        self.path, self.holder = path, holder
        self.outside = Path(f"/proc/{holder}/root{path}")
        self._ballast = self.outside / "ballast"

    def enter(self) -> None:
        """Called in the process of a command."""
        libc = ctypes.CDLL(None, use_errno=True)
        for kind in ENTERED:
            handle = os.open(f"/proc/{self.holder}/ns/{kind}", os.O_RDONLY)
            if libc.setns(handle, 0) != 0:
                raise OSError(ctypes.get_errno(), f"the {kind} namespace cannot be entered")

    def fill(self, leave: int) -> None:
        """With so many bytes left over."""
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(PAGE))
            except OSError:
                file.truncate(max(0, file.tell() - leave))

    def empty(self) -> None:
        self._ballast.unlink()

    def remount(self, how: str) -> None:
        words = [f"--{name}=/proc/{self.holder}/ns/{kind}" for name, kind in (("user", "user"), ("mount", "mnt"))]
        subprocess.run(
            ["nsenter", *words, "--preserve-credentials", "mount", "-o", f"remount,{how}", str(self.path)], check=True
        )


@contextmanager
def mounted(path: Path) -> Iterator[Disk]:
    path.mkdir()
    script = f'mount -t tmpfs -o size={DISK_BYTES} none "$1" && echo ready && exec sleep 1000'
    try:
        holder = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except FileNotFoundError:
        raise Unable("there is no `unshare` here, to mount a small disk") from None
    with holder:
        try:
            assert holder.stdout is not None and holder.stderr is not None
            if holder.stdout.readline() != "ready\n":
                raise Unable(f"a small disk cannot be mounted here ({holder.stderr.read().strip()})")
            yield Disk(path, holder.pid)
        finally:
            holder.kill()


# ---- what happens: each returns how the command ended


def full_from_the_start(disk: Disk, begun: "Begun") -> Ended:
    disk.fill(leave=0)
    return begun.start().wait()


def full_later(disk: Disk, begun: "Begun", share: float) -> Ended:
    """With room for a share of the next checkpoint; of its last pages, the manifest is the very last."""
    command, pages = begun.stopped_after(1), begun.checkpoint_pages()
    disk.fill(leave=PAGE * min(round(share * pages), pages - 1))
    command.send(signal.SIGCONT)
    return command.wait()


def full_at_the_end(disk: Disk, begun: "Begun") -> Ended:
    """After the last checkpoint, when the model is to be written."""
    command = begun.stopped_after(STEPS)
    while any(begun.outside.glob("*model*")):  # it was quicker than we
        command.send(signal.SIGKILL)
        command.wait()
        shutil.rmtree(begun.outside)
        command = begun.stopped_after(STEPS)
    disk.fill(leave=0)
    command.send(signal.SIGCONT)
    return command.wait()


def read_only_later(disk: Disk, begun: "Begun") -> Ended:
    command = begun.stopped_after(1)
    command.send(signal.SIGKILL)
    command.wait()
    disk.remount("ro")
    try:
        return begun.start().wait()
    finally:
        disk.remount("rw")


def read_only_from_the_start(disk: Disk, begun: "Begun") -> Ended:
    disk.remount("ro")
    try:
        return begun.start().wait()
    finally:
        disk.remount("rw")


def moved(disk: Disk, begun: "Begun") -> Ended:
    command = begun.stopped_after(1)
    away = begun.outside.with_name("away")
    begun.outside.rename(away)
    command.send(signal.SIGCONT)
    ended = command.wait()
    assert not begun.outside.exists(), "the folder was made anew"
    away.rename(begun.outside)
    return ended


def removed(disk: Disk, begun: "Begun") -> Ended:
    command = begun.stopped_after(1)
    shutil.rmtree(begun.outside)
    command.send(signal.SIGCONT)
    ended = command.wait()
    assert not begun.outside.exists(), "the folder was made anew"
    return ended


EVENTS = {
    "full from the start": full_from_the_start,
    "full: no page left": partial(full_later, share=0.0),
    "full: half a checkpoint fits": partial(full_later, share=0.5),
    "full: all but the manifest fits": partial(full_later, share=1.0),
    "full: the model does not fit": full_at_the_end,
    "full: a quarter of a checkpoint fits": partial(full_later, share=0.25),
    "read-only from the start": read_only_from_the_start,
    "read-only later": read_only_later,
    "moved away": moved,
    "removed": removed,
}


class Begun:
    """A run on that disk."""

    def __init__(self, disk: Disk, folder: Path, shared: Path) -> None:
        self.path, self.outside = disk.path / "out", disk.outside / "out"
        self._disk, self._folder, self._shared, self._starts = disk, folder, shared, 0

    def start(self) -> Command:
        self._starts += 1
        words = SCENARIOS["supervised"].words(self._shared, self.path)
        return Command(words, self._folder / f"start-{self._starts}", before=self._disk.enter)

    def checkpoint_pages(self) -> int:
        newest = list(Checkpoints(self.outside / "checkpoints").paths().values())[-1]
        return sum(-(-file.stat().st_size // PAGE) for file in newest.iterdir())

    def stopped_after(self, step: int) -> Command:
        """As soon as the checkpoint of a step, or of a later one, is in place, and older ones are gone."""
        command, folder = self.start(), self.outside / "checkpoints"
        while command.is_running:
            if max(Checkpoints(folder).paths(), default=0) >= step and len(list(folder.iterdir())) <= KEPT:
                break
            time.sleep(0.001)
        command.send(signal.SIGSTOP)
        time.sleep(0.02)  # until it stands
        return command


def trial(number: int, folder: Path, shared: Path) -> Facts:
    expected, _ = reference(shared, "supervised")
    (folder / "said").mkdir()
    with mounted(folder / "disk") as disk:
        begun, name = Begun(disk, folder / "said", shared), list(EVENTS)[number % len(EVENTS)]
        ended = EVENTS[name](disk, begun)
        lines = [line for line in ended.errors.splitlines() if "for TensorBoard" not in line]
        assert ended.code == 2 and len(lines) == 1 and lines[0].startswith("vitreous: "), ended
        is_full = name.startswith("full")
        assert bool(re.search(r"[\d,]+ bytes needed, [\d,]+ free", lines[0])) == is_full, lines
        if begun.outside.exists():
            assert not half_written(begun.outside), half_written(begun.outside)
        saved = Checkpoints(begun.outside / "checkpoints")
        if name not in ("removed", "full from the start", "read-only from the start"):
            newest = saved.latest()
            assert newest is not None and not newest.notes
        if is_full:
            disk.empty()
        ended = begun.start().wait()
        assert ended.code == 0, ended
        assert SCENARIOS["supervised"].outcome(begun.outside) == expected
    return {"what": name, "said": re.sub(r"\S*/|[\d,]+ (?=bytes|free)", "", lines[0])}


CAMPAIGN = Campaign(
    name="disk",
    promise="full, read-only or vanished: the previous checkpoint stays; one line, with bytes needed and free",
    full=len(EVENTS),
    trial=trial,
    short=(4, 5, 8),
)
