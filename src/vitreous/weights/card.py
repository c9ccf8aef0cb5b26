"""Card: what a folder of weights says of itself."""

from dataclasses import dataclass

from vitreous.data.transforms import Preprocessing
from vitreous.models import ModelSettings
from vitreous.tasks import TaskSettings


@dataclass(frozen=True, kw_only=True)
class Card:
    model: ModelSettings
    task: TaskSettings | None = None  # None: an encoder alone
    classes: tuple[str, ...] = ()
    preprocessing: Preprocessing
    temperature: float = 1.0  # logits are divided by it before the softmax
    sets: tuple[tuple[float, float], ...] = ()  # (coverage, least calibrated probability of a class in such a set)
