"""Course: the end of a run with a time budget, adjusted while it runs, by its measured pace.

The rate is constant, then falls to 0; when it begins to fall, and how fast, depends on the time left. Every change is
recorded in the recipe before the next step, and does not alter what was done: so the final recipe describes the whole
run.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from vitreous.fitting.budget import Budget, Clock, after_s
from vitreous.recipes.recipe import Recipe
from vitreous.training.schedule import ScheduleSettings

COOLDOWN = 0.5  # share of a run in which the rate falls
EVERY_S = 1.0  # between adjustments
WINDOW_S = 15.0  # of recent steps that the pace is measured over
PAUSE = 3.0  # times the usual step: a longer one was interrupted by a validation or a checkpoint
TOLERANCE = 0.08  # share of the steps left: a smaller difference is ignored
MOST_CONTENTION = 4.0


def paced(recipe: Recipe, steps: int) -> Recipe:
    """The recipe with this length, and a schedule that can be adjusted."""
    warmup, _ = replace(recipe.schedule, falls=()).phases(steps)
    begin = min(max(warmup, round((1 - COOLDOWN) * steps)), steps - 1)
    schedule = replace(
        recipe.schedule, warmup_steps=warmup, cooldown_fraction=0.0, falls=((begin, 1.0, steps),) if steps > 1 else ()
    )
    return replace(recipe, schedule=schedule, training=replace(recipe.training, steps=steps))


def can_be_paced(recipe: Recipe) -> bool:
    return recipe.schedule.decay == "constant" and recipe.training.steps is None and not recipe.rates


class Course:
    """Called after every step (training.loop.Course). `record` is given the recipe whenever it changes."""

    def __init__(
        self,
        recipe: Recipe,
        budget: Budget,
        *,
        clock: Clock,
        record: Callable[[Recipe], None],
        steps_per_epoch: int,
        most_steps: int | None = None,  # more would not help
        cpu_clock: Clock = time.thread_time,
    ) -> None:
        self.recipe, self.budget, self.clock, self.record = recipe, budget, clock, record
        self.most_steps, self.cpu_clock = most_steps, cpu_clock
        self.every = recipe.training.evaluate_every_steps(steps_per_epoch)
        self.marks: deque[tuple[int, float, float]] = deque()  # (steps done, clock, CPU time)
        self.looked_at = 0.0
        self.began: float | None = None  # when the first step was done
        self.pauses: list[float] = []  # seconds of validations

    def __call__(self, step: int) -> tuple[ScheduleSettings, int] | None:
        now = self.clock()
        if self.began is None:
            self.looked_at = now  # one step says too little about the pace
        self._mark(step, now)
        if now - self.looked_at < EVERY_S or len(self.marks) < 2:
            return None
        self.looked_at = now
        changed = self._aimed(step, now)
        if changed is None:
            return None
        self.recipe = changed
        self.record(changed)
        assert changed.training.steps is not None
        return changed.schedule, changed.training.steps

    def _mark(self, step: int, now: float) -> None:
        self.began = now if self.began is None else self.began
        self.marks.append((step, now, self.cpu_clock()))
        while len(self.marks) > 3 and now - self.marks[0][1] > WINDOW_S:
            self.marks.popleft()
        if len(self.marks) > 2 and self.every and (step - 1) % self.every == 0:
            taken = self.marks[-1][1] - self.marks[-2][1]
            if taken > PAUSE * self.step_s:
                self.pauses.append(taken - self.step_s)

    @property
    def step_s(self) -> float:
        """The median of recent steps."""
        pairs = zip(list(self.marks)[:-1], list(self.marks)[1:], strict=True)
        return statistics.median((later - now) / (there - here) for (here, now, _), (there, later, _) in pairs)

    @property
    def contention(self) -> float:
        """Wall time over CPU time of this process: above 1 if others use the processor, too."""
        (_, began, computed), (_, ended, computed_since) = self.marks[0], self.marks[-1]
        return min(max(1.0, (ended - began) / max(computed_since - computed, 1e-9)), MOST_CONTENTION)

    def _seconds_left(self, now: float) -> float:
        """Before evaluation and report have to begin."""
        slower = max(1.0, self.step_s / self.budget.pace.step_s)
        return self.budget.total_s - after_s(self.budget, slower=slower, contention=self.contention) - now

    def _steps_in(self, seconds: float) -> int:
        """Steps that fit into this time, validations included."""
        pauses_s = statistics.mean(self.pauses) / self.every if self.every and self.pauses else 0.0
        return max(0, int(seconds / (self.step_s + pauses_s)))

    def _aimed(self, step: int, now: float) -> Recipe | None:
        """The recipe that ends in time; None if it nearly does already."""
        schedule, planned, left_s = self.recipe.schedule, self.recipe.training.steps, self._seconds_left(now)
        assert planned is not None and self.began is not None
        end = step + self._steps_in(left_s)
        is_enough = self.most_steps is not None and end >= self.most_steps
        end = self.most_steps if is_enough and self.most_steps is not None else end
        if end <= step:  # no time is left
            return replace(self.recipe, training=replace(self.recipe.training, steps=step)) if step < planned else None
        if abs(end - planned) <= max(1.0, TOLERANCE * (planned - step)):
            return None
        *earlier, (begin, factor, stop) = schedule.falls or ((step, 1.0, planned),)
        if step > begin:
            earlier.append((begin, factor, stop))
            aimed = (step, factor * max(0.0, 1 - (step - begin) / (stop - begin)), end)
        elif is_enough:
            aimed = (max(step, round((1 - COOLDOWN) * end)), 1.0, end)
        else:
            # By time, not by steps: a momentary pace must not make the rate fall too early.
            constant_s = (1 - COOLDOWN) * (now - self.began + left_s) - (now - self.began)
            aimed = (min(step + self._steps_in(constant_s), end - 1), 1.0, end)
        return replace(
            self.recipe,
            schedule=replace(schedule, falls=(*earlier, aimed)),
            training=replace(self.recipe.training, steps=end),
        )
