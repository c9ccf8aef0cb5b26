"""TorchPredictor: a task of ours, or of anybody whose weights we read, answers about pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.images import Picture
from vitreous.prediction.pictures import AnyPicture, pixels
from vitreous.prediction.predictor import Predictor
from vitreous.weights.trained import Trained


class TorchPredictor(Predictor):
    def __init__(self, trained: Trained, device: torch.device | str = "cpu") -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.card = trained.card
        self.classes, self.thresholds = self.card.classes, self.card.sets
        self.device = torch.device(device)
        self.task = trained.task().to(self.device)

    @classmethod
    def load(cls, where: str | Path, device: str = "cpu") -> Self:
        return cls(Trained.load(where), device)

    def inputs(self, *pictures: AnyPicture) -> Tensor:
        """(B, 3, h, w): what the model sees of them."""
        resized = torch.stack([self.card.preprocessing.resized(pixels(picture)) for picture in pictures])
        return self.card.preprocessing.normalised(resized.to(self.device))

    @torch.inference_mode()
    def probabilities(self, pictures: Sequence[Picture]) -> NDArray[np.float32]:
        return self.calibrated(self.task.predict(self.inputs(*pictures))).cpu().numpy()

    def calibrated(self, logits: Tensor) -> Tensor:
        """(N, K) logits -> probabilities; those of several labels each for itself."""
        scaled = logits.float() / self.card.temperature
        return scaled.sigmoid() if self.card.task and self.card.task.loss == "sigmoid" else scaled.softmax(dim=1)
