"""Two commands on one directory: the second refuses at once and names the first, which goes on as if nothing was."""

import signal
import time
from pathlib import Path

from stress.campaign import Campaign, Facts
from stress.scenarios import SCENARIOS, reference
from stress.warm import Command

PAIRS = [
    *(("supervised", "supervised"), ("fit", "fit"), ("teach", "teach"), ("mae", "mae"), ("dino", "dino")),
    *(("segmentation", "segmentation"), ("read_by_workers", "read_by_workers")),
    *(("supervised", "fit"), ("fit", "supervised"), ("supervised", "mae")),
]


def trial(number: int, folder: Path, shared: Path) -> Facts:
    names, out = PAIRS[number % len(PAIRS)], folder / "out"
    first, second = (SCENARIOS[name].words(shared, out) for name in names)
    expected, _ = reference(shared, names[0])
    holder = Command(first, folder / "first")
    while not _at_work(out) and holder.is_running:
        time.sleep(0.001)
    holder.send(signal.SIGSTOP)  # so that it does not end meanwhile
    try:
        refused = Command(second, folder / "second").wait()
    finally:
        holder.send(signal.SIGCONT)
    assert refused.code == 2 and refused.errors.count("\n") == 1, refused
    assert f"in use by process {holder.pid} " in refused.errors, refused.errors
    ended = holder.wait()
    assert ended.code == 0, ended
    assert SCENARIOS[names[0]].outcome(out) == expected, "the first was disturbed"
    return {"commands": " and ".join(names), "refused_s": round(refused.seconds, 2)}


def _at_work(out: Path) -> bool:
    """It has the lock, and has begun to write."""
    return (out / "lock").exists() and any((out / name).exists() for name in ("environment.json", "answers.json"))


CAMPAIGN = Campaign(
    name="locks",
    promise="a second command on one directory refuses in one line, naming the first, which is not disturbed",
    full=len(PAIRS),
    trial=trial,
    short=(0, 2),
)
