"""Stages: announces what a fit is doing, and measures the time of each part."""

import time


class Stages:
    """Announces each stage and keeps its time."""

    names = ("data", "first", "plan", "train", "evaluate", "inspect", "report")  # the last is the caller's

    def __init__(self, began: float | None = None) -> None:
        self.began = time.monotonic() if began is None else began
        self._starts: dict[str, float] = {}

    def __call__(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def begin(self, name: str, what: str) -> None:
        self._starts[name] = self()
        say(name, what)

    def timings(self) -> dict[str, float]:
        ends = [*list(self._starts.values())[1:], self()]
        return {name: round(end - at, 2) for (name, at), end in zip(self._starts.items(), ends, strict=True)}


def say(stage: str, what: str) -> None:
    print(f"\n[{Stages.names.index(stage) + 1}/{len(Stages.names)}] {what}", flush=True)
