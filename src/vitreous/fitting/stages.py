"""Stages: what a fit is doing, said aloud, and the time that each part takes."""

import time


class Stages:
    """Says what is being done, and keeps the time of it."""

    names = ("data", "first", "plan", "train", "evaluate", "inspect", "report")  # the last is the caller's

    def __init__(self, began: float | None = None) -> None:
        self.began = time.monotonic() if began is None else began
        self._starts: dict[str, float] = {}

    def __call__(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    def begin(self, name: str, what: str) -> None:
        self._starts[name] = self()
        say(name, what)

    def timings(self) -> dict[str, float]:
        ends = [*list(self._starts.values())[1:], self()]
        return {name: round(end - at, 2) for (name, at), end in zip(self._starts.items(), ends, strict=True)}


def say(stage: str, what: str) -> None:
    print(f"\n[{Stages.names.index(stage) + 1}/{len(Stages.names)}] {what}", flush=True)
