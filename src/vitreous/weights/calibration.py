"""What was fitted on validation pictures after training, by kind of task. Knows no torch: exported files carry it."""

import math
from dataclasses import dataclass

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


Calibration = ClassCalibration | ManyCalibration | PixelCalibration


def _check_temperature(temperature: float) -> None:
    if not (math.isfinite(temperature) and temperature > 0):
        raise UserError(f"temperature is {temperature}: it must be above 0")
