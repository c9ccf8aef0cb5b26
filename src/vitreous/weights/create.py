"""create_model: a model by name, ready to train or to look at."""

from typing import Any

from vitreous.models import model_settings
from vitreous.tasks.classify import Classify, ClassifySettings


def create_model(name: str, num_classes: int = 1000, **changes: Any) -> Classify:
    """`create_model("vit_s16", num_classes=10, picture_px=(384, 384))`: a classifier, its head at zero."""
    encoder = model_settings(name, **changes).build()
    return ClassifySettings().build(encoder, tuple(str(number) for number in range(num_classes)))
