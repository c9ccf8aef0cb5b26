"""What was fitted on validation pictures after training, by kind of task. Knows no torch: exported files carry it."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import UserError, shown


@dataclass(frozen=True, kw_only=True)
class ClassCalibration:
    """Of one class per picture."""

    temperature: float = 1.0  # logits are divided by it before the softmax
    sets: tuple[tuple[float, float], ...] = ()  # (coverage, least calibrated probability of a class in such a set)

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)
        if not all(0 <= number <= 1 for pair in self.sets for number in pair):
            raise UserError(f"sets is {shown(self.sets)}: coverages and probabilities are between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class ManyCalibration:
    """Of several labels per picture."""

    temperature: float = 1.0  # logits are divided by it before the sigmoid
    thresholds: tuple[float, ...] = ()  # one per class: from this probability on, a picture has the label; none: 0.5

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)
        if not all(0 <= number <= 1 for number in self.thresholds):
            raise UserError(f"thresholds is {shown(self.thresholds)}: probabilities are between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class PixelCalibration:
    """Of a class per pixel."""

    temperature: float = 1.0  # logits are divided by it before the softmax

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)


@dataclass(frozen=True, kw_only=True)
class BoxCalibration:
    """Of objects. A score becomes the probability that an object of its class is there, with an overlap of at least one
    half. Both as logits, the second is a line of the first that bends at knots, and lies higher for some classes."""

    temperature: float = 1.0  # logits of the model are divided by it before they become scores
    shift: float = 0.0  # where the first piece of the line crosses zero
    slopes: tuple[float, ...] = (1.0,)  # of each piece
    knots: tuple[float, ...] = ()  # where one piece meets the next, in logits of scores
    offsets: tuple[float, ...] = ()  # one per class: how much higher its line lies; none: all are alike
    threshold: float = 0.5  # from this probability on, an object is shown
    thresholds: tuple[tuple[float, float], ...] = ()  # (share of shown objects that is right, least probability)

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)
        if (
            not all(map(math.isfinite, (self.shift, *self.slopes, *self.knots, *self.offsets)))
            or not min(self.slopes, default=0) > 0
        ):
            raise UserError(f"slopes is {shown(self.slopes)}: each must be above 0, and all numbers must be finite")
        if len(self.knots) != len(self.slopes) - 1 or list(self.knots) != sorted(self.knots):
            raise UserError(f"{len(self.slopes)} slopes need {len(self.slopes) - 1} knots in ascending order")
        if not all(0 <= number <= 1 for number in (self.threshold, *(n for pair in self.thresholds for n in pair))):
            raise UserError(f"thresholds is {shown(self.thresholds)}: shares and probabilities are between 0 and 1")

    def probabilities(
        self, logits: NDArray[np.float64], classes: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """Of scores, given as logits: (..., K) of all classes, or of any shape with the class of each."""
        line = self.shift + self.slopes[0] * logits
        for knot, before, after in zip(self.knots, self.slopes, self.slopes[1:], strict=False):
            line = line + (after - before) * np.maximum(logits - knot, 0)
        if self.offsets:
            line = line + (np.array(self.offsets) if classes is None else np.array(self.offsets)[classes])
        probabilities: NDArray[np.float64] = 1 / (1 + np.exp(-np.clip(line, -700, 700)))  # exp(710) overflows
        return probabilities


Calibration = ClassCalibration | ManyCalibration | PixelCalibration | BoxCalibration


def _check_temperature(temperature: float) -> None:
    if not (math.isfinite(temperature) and temperature > 0):
        raise UserError(f"temperature is {temperature}: it must be above 0")
