"""Embedder: pictures in, embeddings out: what an encoder makes of a whole picture."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous import platforms, settings
from vitreous.data.images import Picture
from vitreous.errors import UserError
from vitreous.models.base import Encoder
from vitreous.nn.graphed import Graphed
from vitreous.nn.half import half_where_native
from vitreous.prediction.predictor import exported_file
from vitreous.tasks.image_text import ImageText, ImageTextSettings
from vitreous.weights.fingerprint import fingerprint
from vitreous.weights.trained import Trained


class Embedder:
    """The pooled features of an encoder, with the preprocessing that it was trained with; of a model that has a text
    tower too, what its texts are compared with."""

    def __init__(self, trained: Trained, device: torch.device | str = "cpu") -> None:
        self._tokenizer, self.where = replace(trained, weights={}).tokenizer, trained.where
        self.preprocessing, self.device = trained.card.preprocessing, platforms.device_named(device)
        self.normalisation: Literal["none", "l2"] = "none"  # l2: they have length 1 as they are
        if isinstance(trained.card.task, ImageTextSettings):
            towers = trained.task()
            assert isinstance(towers, ImageText)
            model: ImageText | Encoder = towers
            self.width, self.normalisation = towers.settings.width or towers.encoder.width, "l2"
        else:
            model = trained.encoder()
            self.width = model.width
        self.model = model.to(self.device).eval()
        self._forward = Graphed(self.model, self._embedded)
        self.fingerprint = fingerprint(self.model, settings.to_json(self.preprocessing))

    @classmethod
    def load(cls, where: str | Path, device: str = "cpu") -> Self:
        if exported_file(where) is not None:
            raise UserError(
                f"{where}: an exported model only makes predictions; give the run or weights it was made from"
            )
        return cls(Trained.load(where), device)

    @torch.inference_mode()
    def embed(self, pictures: Sequence[Picture]) -> NDArray[np.float32]:
        """(B, D), as the model gives them."""
        if not pictures:
            return np.zeros((0, self.width), np.float32)
        resized = torch.stack([self.preprocessing.resized(picture) for picture in pictures])
        with half_where_native(self.device):
            return np.asarray(self._forward(resized.to(self.device)).float().cpu().numpy())

    def _embedded(self, model: ImageText | Encoder, resized: Tensor) -> Tensor:
        return embedding(model, self.preprocessing.normalised(resized))

    @torch.inference_mode()
    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(B, D) of length 1, to be compared with embeddings of pictures."""
        if not isinstance(self.model, ImageText):
            raise UserError(f"{self.where}: has no text tower, so it cannot read words: give it a picture")
        ids = torch.from_numpy(self._tokenizer()(texts)).to(self.device)
        return np.asarray(self.model.embed_texts(ids).float().cpu().numpy())


def embedding(model: ImageText | Encoder, images: Tensor) -> Tensor:
    """(B, D): pooled features; if there is a text tower, what texts are compared with."""
    if isinstance(model, ImageText):
        return model.embed_pictures(images)
    pooled: Tensor = model(images).pooled
    return pooled
