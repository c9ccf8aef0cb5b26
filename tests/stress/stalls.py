"""A reader, or one of two processes that train together, is killed or stopped, or the network between them is cut:
nobody waits longer than the stated time, one line says so, and the same command ends as if it had never happened."""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from hosts import Hosts, NoHosts, two_hosts
from stress.campaign import Campaign, Facts, Unable
from stress.scenarios import SCENARIOS, reference
from stress.signals import wait_for_a_checkpoint
from stress.warm import Command, together

STATED = ("VITREOUS_READER_TIMEOUT_S", "VITREOUS_RANK_TIMEOUT_S")
STALL_S = 4.0  # as they say
SLACK_S = 20.0  # to end in, on a machine with other work
KINDS = [(who, number.name) for who in ("reader", "rank") for number in (signal.SIGKILL, signal.SIGSTOP)]
KINDS += [("network", "cable pulled")]
NAMELESS = "The hostname of the client socket cannot be retrieved"  # torch's warning of hosts without a name
SAID = {
    "reader": ("a process that reads pictures was killed", "the processes that read pictures have sent none"),
    "rank": ("lost another one",),
    "network": ("lost another one",),
}


def trial(number: int, folder: Path, shared: Path) -> Facts:
    who, what = KINDS[number % len(KINDS)]
    draws, ranks, out = random.Random(number), 1 if who == "reader" else 2, folder / "out"
    name = "longer_read" if who == "reader" else "longer"
    scenario, (expected, _) = SCENARIOS[name], reference(shared, name, ranks)
    words, environment = scenario.words(shared, out), dict.fromkeys(STATED, str(STALL_S))
    with _between(who) as hosts:
        there: dict[str, Any] = {"environment": environment}
        if hosts is not None:
            there = {"environment": environment | hosts.environment(), "before": hosts.enter}
        commands = together(words, folder / "lost", ranks, **there)
        wait_for_a_checkpoint(out, commands[0], of_step=draws.randrange(1, 15))
        left = _lost(who, what, commands, draws, hosts)
        began = time.monotonic()
        ended = [command.wait(timeout=STALL_S + SLACK_S) for command in left]
        waited_s = time.monotonic() - began
        for command in commands:
            command.send(signal.SIGKILL)
    for one in ended:
        said = [line for line in one.errors.splitlines() if NAMELESS not in line]
        assert one.code == 2 and len(said) == 1 and said[0].startswith("vitreous: "), one
        assert any(words in said[0] for words in SAID[who]), one
    again = [command.wait() for command in together(words, folder / "again", ranks)]
    assert all(one.code == 0 for one in again), again
    assert scenario.outcome(out) == expected
    return {"who": who, "what": what, "waited_s": round(waited_s, 1)}


@contextmanager
def _between(who: str) -> Iterator[Hosts | None]:
    """A network that can be lost, where that is what is tried."""
    try:
        with two_hosts() if who == "network" else nullcontext() as hosts:
            yield hosts
    except NoHosts as error:
        raise Unable(str(error)) from None


def _lost(who: str, what: str, commands: list[Command], draws: random.Random, hosts: Hosts | None) -> list[Command]:
    """Who must end by itself."""
    if hosts is not None:
        hosts.pull_the_cable()
        return commands
    if who == "reader":
        os.kill(draws.choice(commands[0].children()), signal.Signals[what])
        return commands
    lost = draws.choice(commands)
    lost.send(signal.Signals[what])
    return [command for command in commands if command is not lost]


CAMPAIGN = Campaign(
    name="stalls",
    promise="a reader or a rank killed or stopped, a network cut: nobody waits beyond the stated time; then bit-equal",
    full=25,
    trial=trial,
    short=(1, 4),
)
