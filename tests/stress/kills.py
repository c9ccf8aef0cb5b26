"""SIGKILL, half of them at any instant and half while something is being written; then the same command again."""

import random
import shutil
import signal
import time
from pathlib import Path

from stress.campaign import Campaign, Facts
from stress.scenarios import SCENARIOS, half_written, reference
from stress.warm import Command, run

# Most runs are training runs; every command that writes has its turn.
TURNS = [
    *("supervised", "mae", "dino", "segmentation", "towers", "read_by_workers", "mae", "dino", "segmentation", "fit"),
    *("supervised", "teach", "mae", "dino", "segmentation", "convert", "supervised", "export", "fit", "study"),
    *("towers", "embed", "supervised", "index", "index"),
]
WRITE_S = 0.008  # so long, about, a checkpoint is being written here
PATIENCE_S = 60.0


def trial(number: int, folder: Path, shared: Path) -> Facts:
    name = TURNS[number % len(TURNS)]
    scenario, (expected, takes_s) = SCENARIOS[name], reference(shared, name)
    draws, out = random.Random(number), folder / "out"
    in_a_write = (number // len(TURNS) + number) % 2 == 1
    for attempt in range(10):  # earlier and earlier, where it had ended before
        shutil.rmtree(out, ignore_errors=True)
        after_s = draws.uniform(0, takes_s) * 0.6**attempt
        if _killed(scenario.words(shared, out), folder / f"killed-{attempt}", out, after_s, in_a_write, draws):
            break
    else:
        raise AssertionError("it always ends before it is killed")
    left = sorted(path.name for path in out.rglob(".*.vitreous-*")) if out.exists() else []
    wrong = half_written(out)
    assert not wrong, wrong
    if not (
        name == "convert" and (out / "converted").exists()
    ):  # which was whole by then, and nothing is ever written over
        run(scenario.words(shared, out), folder / "resumed")
    found = scenario.outcome(out)
    differing = [part for part in expected if found[part] != expected[part]]
    assert not differing, f"{name}: {', '.join(differing)} differ from those of an uninterrupted run"
    assert not list(out.rglob(".*.vitreous-*")), "something is left of the killed process"
    return {"command": name, "after_s": round(after_s, 3), "in_a_write": bool(left)}


def _killed(words: list[str], said: Path, out: Path, after_s: float, in_a_write: bool, draws: random.Random) -> bool:
    """Whether it was still at work when it was killed."""
    began, command = time.monotonic(), Command(words, said)
    while command.is_running and time.monotonic() < began + after_s:
        time.sleep(0.002)
    while in_a_write and command.is_running and not _writes(out) and time.monotonic() < began + PATIENCE_S:
        pass
    if in_a_write:
        time.sleep(draws.uniform(0, WRITE_S))
    command.send(signal.SIGKILL)
    return command.wait().code == -signal.SIGKILL


def _writes(out: Path) -> bool:
    try:
        return any(".vitreous-tmp-" in path.name for path in out.rglob(".*"))
    except FileNotFoundError:  # it took its place while we looked
        return True


CAMPAIGN = Campaign(
    name="kills",
    promise="SIGKILL: resumes; losses and final sha256 equal; nothing half-written looks whole",
    full=200,
    trial=trial,
    short=(0, 1),
)
