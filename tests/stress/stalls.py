"""A reader, or one of two processes that train together, is killed or stopped: nobody waits longer than the stated
time, one line says so, and the same command ends as if it had never happened."""

import os
import random
import signal
import time
from pathlib import Path

from stress.campaign import Campaign, Facts
from stress.scenarios import SCENARIOS, reference
from stress.signals import wait_for_a_checkpoint
from stress.warm import together

STATED = ("VITREOUS_READER_TIMEOUT_S", "VITREOUS_RANK_TIMEOUT_S")
STALL_S = 4.0  # as they say
SLACK_S = 20.0  # to end in, on a machine with other work
KINDS = [(who, number) for who in ("reader", "rank") for number in (signal.SIGKILL, signal.SIGSTOP)]
SAID = {
    "reader": ("a process that reads pictures was ended", "no pictures came from"),
    "rank": ("lost another one",),
}


def trial(number: int, folder: Path, shared: Path) -> Facts:
    who, sent = KINDS[number % len(KINDS)]
    draws, ranks, out = random.Random(number), 2 if who == "rank" else 1, folder / "out"
    name = "longer_read" if who == "reader" else "longer"
    scenario, (expected, takes_s) = SCENARIOS[name], reference(shared, name, ranks)
    words, environment = scenario.words(shared, out), dict.fromkeys(STATED, str(STALL_S))
    commands = together(words, folder / "lost", ranks, environment)
    wait_for_a_checkpoint(out, commands[0])
    time.sleep(draws.uniform(0, takes_s / 8))
    lost = draws.randrange(ranks)
    if who == "rank":
        commands[lost].send(sent)
        left = [command for command in commands if command is not commands[lost]]
    else:
        left = commands
        os.kill(draws.choice(commands[0].children()), sent)
    began = time.monotonic()
    ended = [command.wait(timeout=STALL_S + SLACK_S) for command in left]
    waited_s = time.monotonic() - began
    for command in commands:
        command.send(signal.SIGKILL)
    for one in ended:
        assert one.code == 2 and one.errors.startswith("vitreous: ") and one.errors.count("\n") == 1, one
        assert any(words in one.errors for words in SAID[who]), one.errors
    again = [command.wait() for command in together(words, folder / "again", ranks)]
    assert all(one.code == 0 for one in again), again
    assert scenario.outcome(out) == expected
    return {"who": who, "signal": sent.name, "waited_s": round(waited_s, 1)}


CAMPAIGN = Campaign(
    name="stalls",
    promise="a reader or a rank killed or stopped: no wait beyond the stated time, one line; then bit-equal",
    full=20,
    trial=trial,
    short=(1, 3),
)
