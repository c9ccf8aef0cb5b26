"""Card: what a folder of weights says of itself."""

from dataclasses import dataclass, replace
from typing import Any

from vitreous import settings
from vitreous.data.transforms import MAX_SIDE, Preprocessing
from vitreous.errors import UserError, shown
from vitreous.models import ModelSettings
from vitreous.tasks import ClassifySettings, TaskSettings
from vitreous.weights import version1
from vitreous.weights.calibration import BoxCalibration, Calibration, ClassCalibration, ManyCalibration


@dataclass(frozen=True, kw_only=True)
class Card:
    FORMAT = 2  # of model.json

    model: ModelSettings
    task: TaskSettings | None = None  # None: an encoder alone
    classes: tuple[str, ...] = ()
    preprocessing: Preprocessing
    calibration: Calibration | None = None  # None: not calibrated

    def __post_init__(self) -> None:
        if not all(1 <= side <= MAX_SIDE for side in self.model.picture_px):
            raise UserError(f"picture_px is {shown(self.model.picture_px)}: each side must be from 1 to {MAX_SIDE} px")
        chosen: tuple[float, ...] = ()
        if isinstance(self.calibration, ManyCalibration):
            chosen = self.calibration.thresholds
        elif isinstance(self.calibration, BoxCalibration):
            chosen = self.calibration.offsets
        if chosen and len(chosen) != len(self.classes):
            what = "thresholds" if isinstance(self.calibration, ManyCalibration) else "offsets"
            raise UserError(f"{len(chosen)} {what} for {len(self.classes)} classes: give one per class, or none")

    @property
    def classifier(self) -> ClassifySettings | None:
        """The task, for what knows classifiers and encoders alone, as the formats of others do."""
        if self.task is None or isinstance(self.task, ClassifySettings):
            return self.task
        raise UserError("this format holds encoders and classifiers only: keep this model in ours")

    @property
    def predicts(self) -> bool:
        """Whether it says something of pictures by itself: an encoder alone does not, nor two towers without words."""
        return self.task is not None and self.task.task_kind != "match"

    @property
    def temperature(self) -> float:
        """What logits are divided by."""
        return 1.0 if self.calibration is None else self.calibration.temperature

    @property
    def sets(self) -> tuple[tuple[float, float], ...]:
        return self.calibration.sets if isinstance(self.calibration, ClassCalibration) else ()


def read_card(document: Any, where: str) -> Card:
    """Of a model.json, whatever version of ours wrote it."""
    return settings.from_json(Card, version1.card(document), where=where)


def nameless(card: Card) -> Card:
    """Of a format that knows neither the names of classes nor whether a picture has several."""
    task = replace(card.task, loss="softmax") if isinstance(card.task, ClassifySettings) else card.task
    return replace(card, task=task, classes=tuple(str(number) for number in range(len(card.classes))))
