"""SIGTERM, Ctrl-C and SIGUSR1, to one process and to two that train together: the step is finished and saved, all end
within ten seconds after the same step, and the same command goes on exactly."""

import random
import re
import signal
import time
from pathlib import Path

from stress.campaign import Campaign, Facts
from stress.scenarios import SCENARIOS, half_written, reference
from stress.warm import Command, together
from vitreous.training.checkpoint import Checkpoints

NAMES = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C", signal.SIGUSR1: "SIGUSR1"}
WITHIN_S = 10.0


def trial(number: int, folder: Path, shared: Path) -> Facts:
    draws, sent = random.Random(number), list(NAMES)[number % 3]
    ranks = 1 + number // 3 % 2
    name = "longer_read" if number // 6 % 2 else "longer"
    scenario, out = SCENARIOS[name], folder / "out"
    expected, _ = reference(shared, name, ranks)
    commands = together(scenario.words(shared, out), folder / "stopped", ranks)
    wait_for_a_checkpoint(out, commands[0], of_step=draws.randrange(1, 15))
    to_all, to_group = draws.random() < 0.5, draws.random() < 0.5
    time.sleep(0.1 * draws.random())  # it finds ranks anywhere in a step, and before it
    began = time.monotonic()
    for command in commands if to_all else [draws.choice(commands)]:
        command.send(sent, group=to_group)
    ended = [command.wait(timeout=60) for command in commands]
    within_s = time.monotonic() - began
    steps = {_stopped_after(one.errors) for one in ended}
    assert len(steps) == 1, [one.errors for one in ended]
    assert {one.code for one in ended} <= {128 + sent, 128 + signal.SIGTERM}, ended
    assert any(one.code == 128 + sent and NAMES[sent] in one.errors for one in ended), ended
    assert max(Checkpoints(out / "checkpoints").paths()) == steps.pop()
    assert not half_written(out)
    assert within_s < WITHIN_S, f"took {within_s:.1f} s"
    again = [command.wait() for command in together(scenario.words(shared, out), folder / "again", ranks)]
    assert all(one.code == 0 for one in again), again
    assert scenario.outcome(out) == expected
    return {"signal": NAMES[sent], "ranks": f"{ranks}", "within_s": round(within_s, 2)}


def wait_for_a_checkpoint(out: Path, command: Command, of_step: int) -> None:
    """Of that step or a later one."""
    while command.is_running and max(Checkpoints(out / "checkpoints").paths(), default=0) < of_step:
        time.sleep(0.001)


def _stopped_after(errors: str) -> int:
    found = re.fullmatch(r"vitreous: \S+: stopped after step (\d+) of \d+, saved in \S+; the same command .*\n", errors)
    assert found, errors
    return int(found[1])


CAMPAIGN = Campaign(
    name="signals",
    promise="step finished and saved, out within 10 s, all ranks together; then bit-equal",
    full=60,
    trial=trial,
    short=(2, 5),
)
