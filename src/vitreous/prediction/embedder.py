"""Embedder: pictures in, embeddings out: what an encoder makes of a whole picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous import settings
from vitreous.data.images import Picture
from vitreous.errors import UserError
from vitreous.prediction.predictor import exported_file
from vitreous.weights.fingerprint import fingerprint
from vitreous.weights.trained import Trained


class Embedder:
    """The pooled features of an encoder, with the preprocessing that it was trained with."""

    def __init__(self, trained: Trained, device: torch.device | str = "cpu") -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.preprocessing, self.device = trained.card.preprocessing, torch.device(device)
        self.encoder = trained.encoder().to(self.device).eval()
        self.fingerprint = fingerprint(self.encoder, settings.to_json(self.preprocessing))

    @classmethod
    def load(cls, where: str | Path, device: str = "cpu") -> Self:
        if exported_file(where) is not None:
            raise UserError(
                f"{where}: an exported model gives predictions alone; give the run or weights it was made of"
            )
        return cls(Trained.load(where), device)

    @property
    def width(self) -> int:
        return self.encoder.width

    @torch.inference_mode()
    def embed(self, pictures: Sequence[Picture]) -> NDArray[np.float32]:
        """(B, D), as the encoder gives them."""
        if not pictures:
            return np.zeros((0, self.width), np.float32)
        resized = torch.stack([self.preprocessing.resized(picture) for picture in pictures])
        pooled: torch.Tensor = self.encoder(self.preprocessing.normalised(resized.to(self.device))).pooled
        return pooled.float().cpu().numpy()
