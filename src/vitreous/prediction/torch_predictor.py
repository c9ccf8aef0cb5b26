"""TorchPredictor: a task of ours, or of anybody whose weights we read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from vitreous import platforms, settings
from vitreous.data.images import Picture
from vitreous.errors import UserError
from vitreous.nn.graphed import Graphed
from vitreous.nn.half import half_where_native
from vitreous.prediction.outcomes import Outputs
from vitreous.prediction.pictures import AnyPicture, pixels
from vitreous.prediction.predictor import Predictor, sizes_of
from vitreous.prediction.reading import Reading
from vitreous.tasks.base import Task
from vitreous.tasks.predictions import Prediction
from vitreous.weights.fingerprint import fingerprint
from vitreous.weights.trained import Trained


class TorchPredictor(Predictor):
    def __init__(self, trained: Trained, device: torch.device | str = "cpu") -> None:
        if trained.card.task is not None and not trained.card.predicts:
            raise UserError(
                f"{trained.where}: compares pictures with words, so it needs some: predict with --classes "
                "'a cat,a dog', or write a classifier of them first, with `vitreous convert MODEL OUT --classes ...`"
            )
        self.card = trained.card
        self.device = platforms.device_named(device)
        self.task = trained.task().to(self.device)
        self.reading = Reading.of(self.card)
        self._forward = Graphed(self.task, self._predicted)

    @classmethod
    def load(cls, where: str | Path, device: str = "cpu") -> Self:
        return cls(Trained.load(where), device)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.task, settings.to_json(self.card))

    def inputs(self, *pictures: AnyPicture) -> Tensor:
        """(B, 3, h, w): what the model sees of them."""
        return self.card.preprocessing.normalised(self._resized(pictures).to(self.device))

    def _resized(self, pictures: Sequence[AnyPicture]) -> Tensor:
        """(B, 3, h, w) uint8, on the CPU."""
        return torch.stack([self.card.preprocessing.resized(pixels(picture)) for picture in pictures])

    def outputs(self, pictures: Sequence[Picture]) -> Outputs:
        return as_arrays(self.predict(self._resized(pictures), self.card.preprocessing.extents(sizes_of(pictures))))

    @torch.inference_mode()
    def predict(self, resized: Tensor, extent: Tensor | None = None) -> Prediction:
        """Of pictures (B, 3, h, w) uint8 that are resized already; in bfloat16 where the device has it."""
        with half_where_native(self.device):
            return self._forward(resized.to(self.device), None if extent is None else extent.to(self.device))

    def _predicted(self, task: Task, resized: Tensor, extent: Tensor | None) -> Prediction:
        return task.predict(self.card.preprocessing.normalised(resized), extent)

    def raw(self, images: Tensor, extent: Tensor | None = None) -> Outputs:
        """Of normalised images, as arrays; `extent` (B, 2): how many rows and columns are picture, none: all."""
        return as_arrays(self.task.predict(images, extent))


def as_arrays(prediction: Prediction) -> Outputs:
    return {name: tensor.float().cpu().numpy() for name, tensor in prediction.outputs().items()}
