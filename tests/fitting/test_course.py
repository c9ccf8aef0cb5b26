"""With clocks of our own: what a run does with its time, whatever its pace."""

from dataclasses import replace

import pytest
import torch

from vitreous.fitting.budget import FIGURES_S, Budget, Pace, after_s
from vitreous.fitting.course import Course, paced
from vitreous.recipes.fashion import fashion_vit
from vitreous.training.schedule import ScheduleSettings

TOTAL_S, AFTER_S = 240.0, 20.0


def budget(step_s):
    pace = Pace(step_s=step_s, start_s=1.0, picture_s=0.001)
    return Budget(total_s=TOTAL_S, before_s=40.0, after_s=AFTER_S, train_s=180.0, pace=pace)


class Machine:
    """A run of a step after the other; `step_s` says how long each takes, `others` how busy the processor is."""

    def __init__(self, planned_step_s, step_s, others=lambda now: 1.0, most_steps=None):
        self.now, self.computed, self.recipes = 40.0, 0.0, []
        recipe = replace(fashion_vit(), schedule=ScheduleSettings(decay="constant", warmup_fraction=0.05))
        self.recipe = paced(recipe, int(179 / planned_step_s))
        kept = budget(planned_step_s)
        course = Course(
            self.recipe,
            kept,
            clock=lambda: self.now,
            record=self.recipes.append,
            steps_per_epoch=50,
            most_steps=most_steps,
            cpu_clock=lambda: self.computed,
        )
        schedule, end, step = self.recipe.schedule, self.recipe.training.steps, 0
        self.rates, self.times = [], []
        while step < end:
            self.rates.append(float(schedule.rate(torch.tensor(step), end)))
            taken = step_s(self.now)
            self.now += taken
            self.times.append(self.now)
            self.computed += taken / others(self.now)
            step += 1
            schedule, end = course(step) or (schedule, end)
        self.steps = step
        slower = max(1.0, step_s(self.now) / planned_step_s)
        self.ended = self.now + after_s(kept, slower=slower, contention=course.contention)


@pytest.mark.parametrize("planned", [0.02, 0.2])
@pytest.mark.parametrize(
    "slowness",
    [
        pytest.param(lambda now: 1.0, id="as planned"),
        pytest.param(lambda now: 0.4, id="faster"),
        pytest.param(lambda now: 3.0, id="slower"),
        pytest.param(lambda now: 1.0 if now < 150 else 4.0, id="slower while the rate falls"),
        pytest.param(lambda now: 4.0 if now < 150 else 1.0, id="time that comes back"),
        pytest.param(lambda now: 1.0 + 3.0 * (int(now / 20) % 2), id="now and then"),
    ],
)
def test_a_run_keeps_its_time_whatever_its_pace(planned, slowness):
    found = Machine(planned, lambda now: planned * slowness(now))
    assert found.ended == pytest.approx(TOTAL_S, rel=0.1)
    assert found.rates[-1] < 0.2, "and its rate has fallen"
    begins = found.rates.index(1.0)
    falls = len(found.rates) - found.rates[::-1].index(1.0)
    assert found.times[falls - 1] == pytest.approx((40 + TOTAL_S - AFTER_S) / 2, abs=30), "at half of the time"
    assert set(found.rates[begins:falls]) == {1.0} and begins < 0.2 * found.steps
    assert found.rates[falls:] == sorted(found.rates[falls:], reverse=True)
    assert len(found.recipes) < 40


def test_other_programs_make_the_end_longer_too():
    alone, beside = (Machine(0.1, lambda now: 0.1, others=lambda now, share=share: share) for share in (1.0, 3.0))
    assert beside.now == pytest.approx(alone.now - 2 * FIGURES_S, abs=4)


def test_what_was_done_is_what_the_last_recipe_says():
    found = Machine(0.1, lambda now: 0.1 + 0.2 * (int(now / 15) % 2))
    last = found.recipes[-1]
    assert last.training.steps == found.steps and len(last.schedule.falls) > 1
    again = [float(last.schedule.rate(torch.tensor(step), found.steps)) for step in range(found.steps)]
    assert again == found.rates


def test_more_steps_than_help_are_not_taken():
    found = Machine(0.1, lambda now: 0.01, most_steps=2000)
    assert found.steps == 2000 and found.rates[-1] < 0.01


def test_a_machine_that_is_far_slower_ends_the_run_while_it_warms_up():
    found = Machine(0.1, lambda now: 30.0)
    assert found.steps < found.recipe.schedule.warmup_steps and found.now < TOTAL_S


def test_a_machine_that_stands_still_ends_the_run():
    found = Machine(0.1, lambda now: 0.1 if now < 100 else 60.0)
    assert found.steps < 700 and found.now < TOTAL_S + 60
