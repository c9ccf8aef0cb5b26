"""Trained: a model with everything needed to use it, and the folder it lives in."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from torch import Tensor

from vitreous import settings
from vitreous.errors import UserError
from vitreous.models import ModelSettings
from vitreous.models.base import Encoder
from vitreous.tasks.base import Task
from vitreous.weights import own
from vitreous.weights.card import Card


@dataclass(frozen=True)
class Trained:
    card: Card
    weights: dict[str, Tensor]  # "encoder. ..." and, of a task, "head. ..."
    where: str

    @classmethod
    def load(cls, where: str | Path) -> Self:
        """A folder of weights, or a run that has one."""
        path = Path(where)
        folder = path / "model" if (path / "model").is_dir() else path
        if not folder.is_dir():
            raise UserError(f"{where}: no such run or folder of weights")
        if not (folder / "model.json").is_file():
            unfinished = (path / "recipe.json").is_file()
            raise UserError(
                f"{where}: this run has not finished; give the command that started it again, and it goes on"
                if unfinished
                else f"{where}: neither a run nor a folder of weights (it has no model.json)"
            )
        weights, card = own.load_model(folder)
        return cls(settings.from_json(Card, card, where=str(folder / "model.json")), weights, str(where))

    def save(self, folder: Path) -> None:
        own.save_model(folder, self.weights, settings.to_json(self.card))

    def encoder(self, model: ModelSettings | None = None) -> Encoder:
        """The encoder with its weights. `model` may change what has no weights (dropout, picture size)."""
        wanted = model or self.card.model
        # Built at the size it was trained at; what depends on the size is resized once the weights are in.
        encoder = replace(wanted, picture_px=self.card.model.picture_px).build()
        prefix = "encoder."
        weights = {name.removeprefix(prefix): value for name, value in self.weights.items() if name.startswith(prefix)}
        try:
            encoder.load_state_dict(weights)
        except RuntimeError as error:
            first = str(error).splitlines()[1].strip()
            raise UserError(f"{self.where}: its weights do not fit the model that was asked for: {first}") from None
        if wanted.picture_px != self.card.model.picture_px:
            encoder.resize(wanted.picture_px)
        return encoder

    def task(self) -> Task:
        if self.card.task is None:
            raise UserError(f"{self.where}: an encoder without a head answers no question; fine-tune it first")
        task = self.card.task.build(self.encoder(), self.card.classes)
        task.load_state_dict(self.weights)
        return task.eval()
