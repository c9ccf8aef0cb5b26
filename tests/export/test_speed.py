"""A speed carries its spread."""

import pytest

from vitreous.export.speed import in_words, speed_facts, timed


class Clock:
    """Time passes only when something runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def run(self, *seconds: float):
        left = iter(seconds)

        def once() -> None:
            self.now += next(left)

        return once


def test_the_two_run_in_turn_until_rounds_or_seconds_are_over():
    clock = Clock()
    ours, theirs = timed([clock.run(9, 1, 2, 3, 4), clock.run(9, 5, 6, 7, 8)], rounds=4, clock=lambda: clock.now)
    assert (ours, theirs) == ([1, 2, 3], [5, 6, 7])  # the first is not counted; 5 s are over, but three rounds are due
    clock = Clock()
    ours, _ = timed([clock.run(*[0.1] * 5), clock.run(*[0.1] * 5)], rounds=4, clock=lambda: clock.now)
    assert ours == pytest.approx([0.1] * 4)


def test_a_steady_speed():
    facts = speed_facts([0.010] * 9, [0.005] * 9)
    assert (facts["eager_ms"], facts["exported_ms"], facts["times_faster"]) == (10, 5, 2)
    assert facts["times_faster_middle_half"] == [2, 2]
    assert facts["rounds"] == 9
    assert in_words(facts) == "2.00 times as fast as torch (2.00 to 2.00 in half of the rounds)"


def test_a_busy_machine_is_named():
    facts = speed_facts([0.010, 0.010, 0.030, 0.040, 0.050], [0.010] * 5)
    assert facts["times_faster"] == 3
    assert facts["times_faster_middle_half"] == pytest.approx([1, 4])
    assert facts["exported_ms_middle_half"] == [10, 10]
    assert "3.00 times as fast as torch (1.00 to 4.00 in half of the rounds); not steady" in in_words(facts)
