"""What a campaign is: a numbered row of trials, each of which holds or does not."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Facts = dict[str, Any]  # what a trial found out, as JSON


class Unable(Exception):
    """This machine does not allow the trial; the reason."""


@dataclass(frozen=True)
class Campaign:
    """A trial is given its number, from which all that is random in it follows, an empty folder of its own, and a
    folder that all trials of the campaign share. It raises AssertionError where a promise is broken."""

    name: str
    promise: str  # what must hold
    full: int  # instances in the full form
    trial: Callable[[int, Path, Path], Facts]
    short: tuple[int, ...]  # the trials of the short form
    per_trial: int = 1  # instances in one trial

    @property
    def num_trials(self) -> int:
        return -(-self.full // self.per_trial)
