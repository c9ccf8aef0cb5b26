"""Predictor: a picture in, an answer out; for Python and, later, everything that serves."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from vitreous.data.images import read_picture
from vitreous.trained import Trained


@dataclass(frozen=True)
class Answer:
    classes: tuple[str, ...]
    probabilities: Tensor  # (K,), calibrated by the model's temperature

    def top(self, num: int = 5) -> list[tuple[str, float]]:
        """The likeliest classes, best first."""
        values, places = self.probabilities.topk(min(num, len(self.classes)))
        return [(self.classes[place], value) for place, value in zip(places.tolist(), values.tolist(), strict=True)]


class Predictor:
    """A task with the preprocessing it was trained with."""

    def __init__(self, trained: Trained, device: torch.device | str = "cpu") -> None:
        self.card = trained.card
        self.device = torch.device(device)
        self.task = trained.task().to(self.device)

    @classmethod
    def load(cls, where: str | Path, device: torch.device | str = "cpu") -> Self:
        """From anything that `vitreous.load` reads."""
        return cls(Trained.load(where), device)

    def inputs(self, picture: bytes | Path | str | np.ndarray) -> Tensor:
        """(1, 3, h, w): what the model sees of a file, its bytes, or pixels (H, W, 3) uint8."""
        if not isinstance(picture, np.ndarray):
            picture = read_picture(Path(picture) if isinstance(picture, str) else picture)
        resized = self.card.preprocessing.resized(picture)[None].to(self.device)
        return self.card.preprocessing.normalised(resized)

    @torch.inference_mode()
    def __call__(self, picture: bytes | Path | str | np.ndarray) -> Answer:
        logits = self.task.predict(self.inputs(picture)).float()
        return Answer(self.card.classes, (logits[0] / self.card.temperature).softmax(dim=0).cpu())
