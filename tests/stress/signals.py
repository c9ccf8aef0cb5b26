"""SIGTERM, Ctrl-C and SIGUSR1, to one process and to two that train together: all end within ten seconds with one line,
and the same command goes on exactly. In the midst of training the step is finished and saved, after the same step
everywhere; a third of the trials send the signal at any time of the command."""

import random
import re
import signal
import time
from pathlib import Path

from stress.campaign import Campaign, Facts
from stress.scenarios import SCENARIOS, half_written, reference
from stress.warm import Command, Ended, together
from vitreous.training.checkpoint import Checkpoints

NAMES = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C", signal.SIGUSR1: "SIGUSR1"}
WITHIN_S = 10.0
IN_TRAINING = 60  # of the trials


def trial(number: int, folder: Path, shared: Path) -> Facts:
    draws, sent = random.Random(number), list(NAMES)[number % 3]
    ranks = 1 + number // 3 % 2
    in_training, reads = number < IN_TRAINING, number // 6 % 2
    name = ("longer", "longer_read")[reads] if in_training else ("supervised", "read_by_workers")[reads]
    scenario, out = SCENARIOS[name], folder / "out"
    expected, takes_s = reference(shared, name, ranks)
    commands = together(scenario.words(shared, out), folder / "stopped", ranks)
    if in_training:
        wait_for_a_checkpoint(out, commands[0], of_step=draws.randrange(1, 15))
        time.sleep(0.1 * draws.random())  # it finds ranks anywhere in a step
    else:
        while not all(command.hears for command in commands):
            time.sleep(0.001)
        time.sleep(takes_s * draws.random())
    to_all, to_group = draws.random() < 0.5 or not in_training, draws.random() < 0.5
    began = time.monotonic()
    for command in commands if to_all else [draws.choice(commands)]:
        command.send(sent, group=to_group)
    ended = [command.wait(timeout=60) for command in commands]
    within_s = time.monotonic() - began
    if in_training:
        _check_stopped_together(ended, sent, max(Checkpoints(out / "checkpoints").paths()))
    else:
        _check_stopped_or_done(ended, sent)
    assert not half_written(out)
    assert within_s < WITHIN_S, f"took {within_s:.1f} s"
    again = [command.wait() for command in together(scenario.words(shared, out), folder / "again", ranks)]
    assert all(one.code == 0 for one in again), again
    assert scenario.outcome(out) == expected
    when = "in training" if in_training else _when(ended[0])
    return {"signal": NAMES[sent], "ranks": f"{ranks}", "when": when, "within_s": round(within_s, 2)}


def wait_for_a_checkpoint(out: Path, command: Command, of_step: int) -> None:
    """Of that step or a later one."""
    while command.is_running and max(Checkpoints(out / "checkpoints").paths(), default=0) < of_step:
        time.sleep(0.001)


def _check_stopped_together(ended: list[Ended], sent: signal.Signals, saved: int) -> None:
    assert {_stopped_after(one.errors) for one in ended} == {saved}, [one.errors for one in ended]
    assert {one.code for one in ended} <= {128 + sent, 128 + signal.SIGTERM}, ended
    assert any(one.code == 128 + sent and NAMES[sent] in one.errors for one in ended), ended


def _stopped_after(errors: str) -> int:
    found = re.fullmatch(
        r"vitreous: \S+: stopped after step ([\d,]+) of \d+, saved in \S+; the same command .*\n", errors
    )
    assert found, errors
    return int(found[1].replace(",", ""))


def _check_stopped_or_done(ended: list[Ended], sent: signal.Signals) -> None:
    for one in ended:
        if one.code == 0:
            assert not one.errors, one
        else:
            assert one.code == 128 + sent, one
            assert re.fullmatch(rf"vitreous: {NAMES[sent]}: stopped.*\n", one.errors), one


def _when(first: Ended) -> str:
    """By its last words."""
    if first.code == 0:
        return "at its end"
    words = {"no checkpoint": "before a checkpoint", "is saved in": "after training", "after step": "in training"}
    return next((when for word, when in words.items() if word in first.errors), "outside of the run")


CAMPAIGN = Campaign(
    name="signals",
    promise="step finished and saved, out within 10 s with one line, all ranks together; then bit-equal",
    full=90,
    trial=trial,
    short=(2, 5, 60),
)
