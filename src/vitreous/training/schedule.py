"""The learning rate over a run, as a pure function of the step: nothing to save, nothing to wait for."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitreous.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings:
    warmup_steps: int | None = None  # steps of linear warm-up; none: by warmup_fraction
    warmup_fraction: float = 0.0  # share of all steps, if warmup_steps is none
    decay: Literal["cosine", "linear", "constant", "drop"] = "cosine"  # shape after the warm-up
    final_fraction: float = 0.0  # of the peak rate, reached at the end of the run
    cooldown_fraction: float = 0.0  # share of all steps, at the end, in which a constant rate falls; drop: at once
    # (step, factor, end): from that step on, a constant rate falls linearly from the factor to the final one at `end`.
    # Of several, the last that has begun counts: a run with a time budget moves its end while its rate falls.
    falls: tuple[tuple[int, float, int], ...] = ()

    def rate(self, step: Tensor, total_steps: int) -> Tensor:
        """Factor on the peak learning rate: a 0-d float tensor for a 0-d step (0 = the first), on its device.

        It is 1 / warm-up at step 0 and 1 at the last step of the warm-up. The fall starts from 1 and would reach the
        final fraction at step `total_steps`, so that the last step still learns something.
        """
        warmup, falling = self.phases(total_steps)
        step = step.to(torch.float32)
        risen = ((step + 1) / max(1, warmup)).clamp(max=1.0)
        if self.falls:
            left = self._aimed(step)
        else:
            fallen = ((step - (total_steps - falling)) / max(1, falling)).clamp(0.0, 1.0)
            left = 0.5 * (1 + torch.cos(math.pi * fallen)) if self.decay == "cosine" else 1 - fallen
            if self.decay == "drop":
                left = (step < total_steps - falling).to(step.dtype)
        return risen * (self.final_fraction + (1 - self.final_fraction) * left)

    def _aimed(self, step: Tensor) -> Tensor:
        """The share of the rate left at a step. The steps of a fall are computed from that fall alone, to the last bit,
        whatever is added later."""
        left = torch.ones_like(step)
        for begin, factor, end in self.falls:
            aimed = factor * (1 - (step - begin) / (end - begin)).clamp(0.0, 1.0)
            left = torch.where(step >= begin, aimed, left)
        return left

    def phases(self, total_steps: int) -> tuple[int, int]:
        """How many steps the rate rises at the start, and how many it falls at the end."""
        for name in ("warmup_fraction", "final_fraction", "cooldown_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"schedule.{name}: {getattr(self, name)} is not between 0 and 1")
        if self.cooldown_fraction and self.decay not in ("constant", "drop"):
            raise UserError(f"schedule.cooldown_fraction goes with schedule.decay constant or drop, not {self.decay}")
        if self.falls and (self.decay != "constant" or self.cooldown_fraction):
            raise UserError("schedule.falls go with schedule.decay constant and no schedule.cooldown_fraction")
        if any(begin >= end for begin, _, end in self.falls) or list(self.falls) != sorted(self.falls):
            raise UserError(f"schedule.falls: {self.falls} must be in order, and each must end after its step")
        warmup = round(self.warmup_fraction * total_steps) if self.warmup_steps is None else self.warmup_steps
        cooldown = round(self.cooldown_fraction * total_steps)
        # A run whose end depends on the clock may end while it warms up.
        if warmup < 0 or (warmup + cooldown > total_steps and not self.falls):
            parts = f"{warmup} steps of warm-up" + (f" and {cooldown} of cooldown" if cooldown else "")
            raise UserError(
                f"schedule: {parts} do not fit into {total_steps} steps; lower schedule.warmup_steps or train longer"
            )
        return warmup, cooldown if self.decay in ("constant", "drop") else total_steps - warmup
