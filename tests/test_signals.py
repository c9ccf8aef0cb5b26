"""A signal at any time of a command: one line, the signal's exit code, no traceback. (In the midst of training it is a
campaign's to show that nothing is lost: tests/stress/signals.py.)"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vitreous.signals import ENDING, Hearing, Stopped
from vitreous.training.stopping import StopSignals

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

TRAIN = [
    *("train", "fashion_vit", "--data.train_limit", "200", "--data.val_fraction", "0.02"),
    *("--training.batch_size", "50", "--training.steps", "6", "--training.workers", "0", "--training.device", "cpu"),
    *("--model.width", "16", "--model.depth", "1", "--model.heads", "2"),
]


@pytest.fixture
def handlers() -> Iterator[list[object]]:
    before = [signal.getsignal(number) for number in ENDING]
    yield before
    for number, handler in zip(ENDING, before, strict=True):
        signal.signal(number, handler)


def hears(process: subprocess.Popen[str], out: Path) -> bool:
    """Whether it catches SIGUSR1: from its first line on."""
    caught = next(line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "SigCgt" in line)
    return bool(int(caught.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1)


def has_begun(process: subprocess.Popen[str], out: Path) -> bool:
    return (out / "pictures.json").exists()


def has_trained(process: subprocess.Popen[str], out: Path) -> bool:
    return (out / "checkpoints" / "step-00000006").exists()


Moment = Callable[["subprocess.Popen[str]", Path], bool]


@pytest.mark.parametrize(
    ("moment", "number", "line"),
    [
        (hears, signal.SIGINT, "Ctrl-C: stopped"),
        (hears, signal.SIGUSR1, "SIGUSR1: stopped"),
        (
            has_begun,
            signal.SIGTERM,
            "SIGTERM: stopped; there is no checkpoint in OUT yet, so the same command begins the training anew",
        ),
        (has_trained, signal.SIGUSR1, "SIGUSR1: stopped.* step 6 .*saved in OUT.* the same command resumes from there"),
    ],
)
def test_before_and_after_training_a_signal_ends_a_command_with_one_line(
    tmp_path: Path, moment: Moment, number: int, line: str
) -> None:
    out = tmp_path / "run"
    process = started(out)
    while not moment(process, out):
        assert process.poll() is None, process.communicate()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert re.fullmatch(f"vitreous: {line.replace('OUT', str(out))}\n", errors), errors


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGINT])
def test_when_all_is_done_a_signal_changes_nothing(tmp_path: Path, number: int) -> None:
    """From its last words on, Python still takes a while to end."""
    process = started(tmp_path / "run")
    assert process.stdout is not None and process.stderr is not None
    while "results" not in process.stdout.readline():
        assert process.poll() is None, process.stderr.read()
    time.sleep(0.02)  # the command returns
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


def started(out: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "vitreous", *TRAIN, "--out", str(out)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_what_waits_inside_a_library_is_ended_all_the_same() -> None:
    """Such as a process of torchrun that waits for another, where Python does not see a signal."""
    code = """
import ctypes
from vitreous import signals
signals.GRACE_S = 0.2
with signals.Process() as process:
    process.hear()
    mutex = ctypes.create_string_buffer(64)
    print("waits", flush=True)
    for _ in range(2):  # the second time forever
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, text=True)
    assert process.stdout is not None and process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[1] == "vitreous: SIGTERM: stopped\n"
    assert process.returncode == 128 + signal.SIGTERM


def test_where_python_drops_what_is_raised_a_signal_ends_the_command_after_that() -> None:
    """As while torch's loader waits for its readers to end, in __del__: Python would print a traceback, and go on."""
    code = """
import time
from vitreous import signals

class Slow:
    def __del__(self):
        print("waits", flush=True)
        time.sleep(0.3)

with signals.Process() as process:
    process.hear()
    Slow()
    time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, text=True)
    assert process.stdout is not None and process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=5)[1] == "vitreous: SIGTERM: stopped\n"
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("consequence", [None, ImportError("cannot load module more than once per process")])
def test_what_a_library_makes_of_a_signal_still_ends_the_command(
    handlers: list[object], consequence: Exception | None
) -> None:
    """torch drops what is raised while it imports numpy, which then cannot be imported."""
    with pytest.raises(Stopped) as ended, Hearing():
        try:
            signal.raise_signal(signal.SIGUSR1)
        except Stopped:
            if consequence is not None:
                raise consequence from None
    assert ended.value.exit_code == 138 and ended.value.__cause__ is consequence
    assert [signal.getsignal(number) for number in ENDING] == handlers
    with pytest.raises(Stopped), Hearing():
        try:
            signal.raise_signal(signal.SIGTERM)
        except Stopped:
            with StopSignals() as run:
                assert run.received == signal.SIGTERM  # it stops after its first step


def test_a_second_signal_does_not_disturb_what_the_first_has_begun(handlers: list[object]) -> None:
    cleared = []
    with pytest.raises(Stopped, match="SIGTERM"), Hearing():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)  # as torchrun passes on what a scheduler sends to all processes
            cleared.append("all")
    assert cleared == ["all"]


def test_while_a_run_notes_signals_only_a_second_ctrl_c_ends_it_at_once(handlers: list[object]) -> None:
    with StopSignals() as run:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1):
            signal.raise_signal(number)
        assert run.received == signal.SIGUSR1
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGINT)


def test_outside_the_main_thread_signals_stay_as_they_are(handlers: list[object]) -> None:
    def hear() -> None:
        with Hearing():
            found.extend(signal.getsignal(number) for number in ENDING)

    found: list[object] = []
    thread = threading.Thread(target=hear)
    thread.start()
    thread.join()
    assert found == handlers
