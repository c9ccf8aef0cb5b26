"""Stopping: a signal lets the current step finish; the run is saved and ends with one line, on all ranks."""

import signal
from types import FrameType, TracebackType
from typing import Self

from vitreous.errors import UserError
from vitreous.signals import Hearing, Stopped, named


class EndedTogetherError(UserError):
    """All ranks end with it, after the same step."""


class DivergedError(EndedTogetherError):
    """The loss or its gradient is no longer finite."""


class StoppedError(EndedTogetherError):
    """A signal asked the run to end, and it did, after saving."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number, self.exit_code = number, Stopped(number).exit_code


class StopSignals(Hearing):
    """Notes the signals, so that the current step can be finished; a second Ctrl-C ends at once."""

    def __enter__(self) -> Self:
        super().__enter__()
        for handler in self._before.values():
            outer = getattr(handler, "__self__", None)
            if isinstance(outer, Hearing):  # what it raised may have been dropped: by a callback, or a library's import
                self.received = self.received or outer.received
        return self

    def stopped(self, where: str) -> StoppedError:
        number = self.received or signal.SIGTERM  # 0: another rank received it
        return StoppedError(f"{named(number)}: stopped {where}; the same command resumes from there", number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:  # who noted the signal says where the run is
            self._end(None)
        else:
            super().__exit__(kind, error, trace)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise Stopped(number)
        self.received = number
