"""How fast an exported file is beside the model it was made of, and how far that can be trusted."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

ROUNDS, SECONDS = 30, 5.0  # at most
BUSY = 0.3  # width of the middle half, as a share of the median, from which on a single number would mislead


def timed(
    runs: Sequence[Callable[[], Any]],
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Seconds of each, run in turn, so that whatever else the machine does slows all; at least three rounds, then as
    many as fit."""
    times: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    began = clock()
    while len(times[0]) < 3 or (len(times[0]) < rounds and clock() - began < seconds):
        for run, found in zip(runs, times, strict=True):
            start = clock()
            run()
            found.append(clock() - start)
    return times


def speed_facts(eager_s: Sequence[float], exported_s: Sequence[float]) -> dict[str, Any]:
    """Medians, each with the middle half of the rounds: on a busy machine that is wide. The ratio has its own, from
    the two of each round."""
    ratios = [ours / theirs for ours, theirs in zip(eager_s, exported_s, strict=True)]
    facts: dict[str, Any] = {}
    for name, values in (
        ("eager_ms", [1000 * value for value in eager_s]),
        ("exported_ms", [1000 * value for value in exported_s]),
        ("times_faster", ratios),
    ):
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        facts[name] = round(middle, 3)
        facts[f"{name}_middle_half"] = [round(low, 3), round(high, 3)]
    return facts | {"rounds": len(ratios), "load_per_core": load_per_core()}


def load_per_core() -> float | None:
    """Programs that wanted a core in the last minute, ourselves among them; None where the system does not say."""
    return round(os.getloadavg()[0] / (os.cpu_count() or 1), 2) if hasattr(os, "getloadavg") else None


def in_words(facts: dict[str, Any]) -> str:
    low, high = facts["times_faster_middle_half"]
    text = f"{facts['times_faster']:.2f} times as fast as torch ({low:.2f} to {high:.2f} in half of the rounds)"
    if high - low < BUSY * facts["times_faster"]:
        return text
    load = "" if facts["load_per_core"] is None else f" (load {facts['load_per_core']:g} per core)"
    return f"{text}; not steady: the machine was busy{load}, so measure again on an idle one"
