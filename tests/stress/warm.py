"""Commands as real processes, each the leader of a group of its own, forked from one that has imported everything.

Importing torch takes seconds; a trial often needs less. The server that forks is the standard library's.
"""

import atexit
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import forkserver, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

CONTEXT = get_context("forkserver")


def ensure_server() -> None:
    CONTEXT.set_forkserver_preload(["stress.preloaded"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # by which the server finds what it preloads
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@dataclass(frozen=True)
class Ended:
    code: int  # negative: the signal that ended it
    printed: str
    errors: str
    seconds: float


class Command:
    """`vitreous WORDS`, running. `before` is called in its process first; a fault is injected there, or a limit set."""

    def __init__(
        self,
        words: list[str],
        said: Path,
        environment: Mapping[str, str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        ensure_server()
        self._said, self._began = said, time.monotonic()
        said.parent.mkdir(parents=True, exist_ok=True)
        self._process: BaseProcess = CONTEXT.Process(  # type: ignore[attr-defined]
            target=_run, args=(words, str(said), {**(environment or {})}, before)
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.is_alive()

    @property
    def hears(self) -> bool:
        """Whether it catches signals, as it does from its first line on."""
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        except FileNotFoundError:
            return False
        caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt")), 0)
        return bool(caught >> (signal.SIGUSR1 - 1) & 1)

    def send(self, number: int, group: bool = True) -> None:
        """A signal to the process, or to its readers too, as a terminal and a scheduler send it."""
        try:
            (os.killpg if group else os.kill)(self.pid, number)
        except ProcessLookupError:  # it has ended, or its group is not made yet
            if self.is_running:
                os.kill(self.pid, number)

    def children(self) -> list[int]:
        """The processes that it started: its readers."""
        return [int(word) for word in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def wait(self, timeout: float = 120.0) -> Ended:
        """Raises AssertionError where it does not end by itself."""
        self._process.join(timeout)
        hangs = self._process.exitcode is None
        self.send(signal.SIGKILL)  # readers of a killed process leave by themselves, but only after some seconds
        self._process.join()
        files = [self._said.with_suffix(end) for end in (".out", ".err")]
        printed, errors = (
            file.read_text() if file.exists() else "" for file in files
        )  # or ended before its first word
        assert not hangs, f"does not end within {timeout:.0f} s: {errors[-500:]}"
        code = self._process.exitcode
        assert code is not None
        return Ended(code, printed, errors, time.monotonic() - self._began)


def together(
    words: list[str],
    said: Path,
    ranks: int,
    environment: Mapping[str, str] | None = None,
    before: Callable[[], None] | None = None,
) -> list[Command]:
    """One command, or as many as train together; they meet as those of torchrun do."""
    if ranks == 1:
        return [Command(words, said, environment, before)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **(environment or {}), "WORLD_SIZE": str(ranks)}
    return [
        Command(words, said.with_name(f"{said.name}-{rank}"), {**shared, "RANK": str(rank)}, before)
        for rank in range(ranks)
    ]


def run(words: list[str], said: Path, **options: object) -> Ended:
    """To its end, which must be a good one."""
    ended = Command(words, said, **options).wait()  # type: ignore[arg-type]
    assert ended.code == 0, f"exit code {ended.code}: {ended.errors[-800:]}"
    return ended


def _run(words: list[str], said: str, environment: dict[str, str], before: Callable[[], None] | None) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell switches off for what runs beside it
    for end, descriptor in ((".out", 1), (".err", 2)):
        os.dup2(os.open(said + end, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.environ.update(environment)
    from vitreous.__main__ import main

    try:
        if before is not None:
            before()
        main(words)
    finally:
        atexit._run_exitfuncs()  # as Python does where a process is not one of multiprocessing's
