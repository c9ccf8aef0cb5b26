"""Stopping: a signal lets the current step finish; the run is saved and ends with one line, on all ranks."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self

from vitreous import platforms
from vitreous.errors import UserError


class EndedTogetherError(UserError):
    """All ranks end with it, after the same step."""


class DivergedError(EndedTogetherError):
    """The loss or its gradient is no longer finite."""


class StoppedError(EndedTogetherError):
    """A signal asked the run to end, and it did, after saving."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number  # as shells report a process ended by a signal


class StopSignals:
    """Notes signals to end (platforms.STOPPING), so that the current step can be finished; a second Ctrl-C ends at
    once."""

    def __init__(self) -> None:
        self.received = 0  # the signal's number
        self._before: dict[int, Any] = {}

    def stopped(self, where: str) -> StoppedError:
        number = self.received or signal.SIGTERM  # 0: another rank received it
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        return StoppedError(f"{name}: stopped {where}; the same command resumes from there", number)

    def __enter__(self) -> Self:
        try:
            for number in platforms.STOPPING:
                self._before[number] = signal.signal(number, self._note)
        except ValueError:  # not in the main thread, where signals cannot be caught
            pass
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
