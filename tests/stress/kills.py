"""SIGKILL, half of them at any instant and half while something is being written; then the same command again. Of two
processes that train together, both are killed, or one."""

import random
import shutil
import signal
import time
from pathlib import Path

from stress.campaign import Campaign, Facts
from stress.scenarios import SCENARIOS, half_written, reference
from stress.warm import Command, together

# Most runs are training runs; every command that writes has its turn.
TURNS = [
    *("supervised", "mae", "dino", "segmentation", "towers", "read_by_workers", "sharded", "dino", "segmentation"),
    *("fit", "sharded", "teach", "mae", "dino", "segmentation", "convert", "sharded", "export", "fit", "study"),
    *("towers", "embed", "supervised", "index", "index"),
]
RANKS = {"sharded": 2}  # that train together
WRITE_S = 0.008  # so long, about, a checkpoint is being written here
PATIENCE_S = 60.0
STATED = {"VITREOUS_RANK_TIMEOUT_S": "60"}  # for one whose other was killed before they met


def trial(number: int, folder: Path, shared: Path) -> Facts:
    name = TURNS[number % len(TURNS)]
    ranks = RANKS.get(name, 1)
    scenario, (expected, takes_s) = SCENARIOS[name], reference(shared, name, ranks)
    draws, out = random.Random(number), folder / "out"
    in_a_write = (number // len(TURNS) + number) % 2 == 1
    for attempt in range(10):  # earlier and earlier, where it had ended before
        shutil.rmtree(out, ignore_errors=True)
        after_s = draws.uniform(0, takes_s) * 0.6**attempt
        commands = together(scenario.words(shared, out), folder / f"killed-{attempt}", ranks, STATED)
        if _killed(commands, out, after_s, in_a_write, draws):
            break
    else:
        raise AssertionError("it always ends before it is killed")
    left = sorted(path.name for path in out.rglob(".*.vitreous-*")) if out.exists() else []
    wrong = half_written(out)
    assert not wrong, wrong
    is_there = name == "convert" and (out / "converted").exists()  # whole by then, and convert never writes over it
    if not is_there:
        again = [command.wait() for command in together(scenario.words(shared, out), folder / "resumed", ranks)]
        assert all(one.code == 0 for one in again), again
    found = scenario.outcome(out)
    differing = [part for part in expected if found[part] != expected[part]]
    assert not differing, f"{name}: {', '.join(differing)} differ from those of an uninterrupted run"
    assert not list(out.rglob(".*.vitreous-*")), "something is left of the killed process"
    return {"command": name, "after_s": round(after_s, 3), "in_a_write": bool(left)}


def _killed(commands: list[Command], out: Path, after_s: float, in_a_write: bool, draws: random.Random) -> bool:
    """Whether it was still at work when it was killed."""
    began, first = time.monotonic(), commands[0]
    while first.is_running and time.monotonic() < began + after_s:
        time.sleep(0.002)
    while in_a_write and first.is_running and not _writes(out) and time.monotonic() < began + PATIENCE_S:
        pass
    if in_a_write:
        time.sleep(draws.uniform(0, WRITE_S))
    killed = commands if draws.random() < 0.5 else [draws.choice(commands)]
    for command in killed:
        command.send(signal.SIGKILL)
    ended = [command.wait() for command in commands]  # where only one was killed, the other by itself
    return any(one.code == -signal.SIGKILL for one in ended)


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
