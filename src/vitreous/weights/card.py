"""Card: what a folder of weights says of itself."""

import math
from dataclasses import dataclass, replace

from vitreous.data.transforms import MAX_SIDE, Preprocessing
from vitreous.errors import UserError, shown
from vitreous.models import ModelSettings
from vitreous.tasks import TaskSettings


@dataclass(frozen=True, kw_only=True)
class Card:
    FORMAT = 1  # of model.json

    model: ModelSettings
    task: TaskSettings | None = None  # None: an encoder alone
    classes: tuple[str, ...] = ()
    preprocessing: Preprocessing
    temperature: float = 1.0  # logits are divided by it before the softmax
    sets: tuple[tuple[float, float], ...] = ()  # (coverage, least calibrated probability of a class in such a set)

    def __post_init__(self) -> None:
        if not all(1 <= side <= MAX_SIDE for side in self.model.picture_px):
            raise UserError(f"picture_px is {shown(self.model.picture_px)}: sides go from 1 to {MAX_SIDE} px")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise UserError(f"temperature is {self.temperature}: it must be above 0")
        if not all(0 <= number <= 1 for pair in self.sets for number in pair):
            raise UserError(f"sets is {shown(self.sets)}: coverages and probabilities lie between 0 and 1")


def nameless(card: Card) -> Card:
    """Of a format that knows neither the names of classes nor whether a picture has several."""
    task = None if card.task is None else replace(card.task, loss="softmax")
    return replace(card, task=task, classes=tuple(str(number) for number in range(len(card.classes))))
