"""Reading: what one must know to make use of a model's raw outputs. Knows no torch: exported files carry it."""

from dataclasses import dataclass
from typing import Any, Literal

from vitreous.data.kinds import TaskKind
from vitreous.weights.calibration import Calibration


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """The way from a picture to the model's input: the fields of `Preprocessing`, which knows torch."""

    size_px: tuple[int, int]
    crop: Literal["centre", "squash", "squash-centre", "letterbox"]
    crop_fraction: float
    odd_margin: Literal["even", "down"]
    skip_fitting: bool
    interpolation: Literal["bilinear", "bicubic", "nearest"]
    resizer: Literal["torch", "pillow"]  # whose rounding; a graph has torch's
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Windowing:
    """A model that sees a picture through windows of its own size."""

    cell_px: tuple[int, int]  # px of the model's input that one place of its outputs is about
    overlap: float  # the least share that neighbours have in common


@dataclass(frozen=True, kw_only=True)
class Reading:
    kind: TaskKind
    classes: tuple[str, ...]
    fitting: Fitting
    calibration: Calibration | None = None  # None: not calibrated
    windows: Windowing | None = None  # None: it sees a picture at once

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
            windows=_windowing(card),
        )


def _windowing(card: Any) -> Windowing | None:
    if getattr(card.task, "inference", "whole") == "whole":
        return None
    from vitreous.models.shapes import shapes_only

    with shapes_only():
        outputs = card.model.build().outputs
    return Windowing(cell_px=card.task.decoded(outputs).stride, overlap=card.task.overlap)
