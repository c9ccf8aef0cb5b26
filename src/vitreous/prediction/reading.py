"""Reading: what one must know to make use of a model's raw outputs. Knows no torch: exported files carry it."""

from dataclasses import dataclass
from typing import Any, Literal

from vitreous.weights.calibration import Calibration

TaskKind = Literal["classify", "label", "segment"]  # one class per picture, several labels, a class per pixel


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """The way from a picture to the model's input: the fields of `Preprocessing`, which knows torch."""

    size_px: tuple[int, int]
    crop: Literal["centre", "squash", "squash-centre"]
    crop_fraction: float
    odd_margin: Literal["even", "down"]
    skip_fitting: bool
    interpolation: Literal["bilinear", "bicubic", "nearest"]
    resizer: Literal["torch", "pillow"]  # whose rounding; a graph has torch's
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Reading:
    kind: TaskKind
    classes: tuple[str, ...]
    fitting: Fitting
    calibration: Calibration | None = None  # None: not calibrated

    @property
    def temperature(self) -> float:
        """What logits are divided by."""
        return 1.0 if self.calibration is None else self.calibration.temperature

    @classmethod
    def of(cls, card: Any) -> "Reading":
        """`card`: a `Card` with a task."""
        return cls(
            kind=card.task.task_kind,
            classes=card.classes,
            fitting=Fitting(**vars(card.preprocessing)),
            calibration=card.calibration,
        )
