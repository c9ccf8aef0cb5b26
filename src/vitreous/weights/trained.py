"""Trained: a model with everything needed to use it, from wherever it lies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

from torch import Tensor, nn

from vitreous import settings
from vitreous.errors import UserError, did_you_mean, did_you_mean_beside
from vitreous.models import ModelSettings
from vitreous.models.base import Encoder
from vitreous.models.shapes import shapes_only
from vitreous.models.vit import as_plain_vit
from vitreous.tasks.base import Task
from vitreous.weights import own
from vitreous.weights.card import Card, read_card
from vitreous.weights.door import check_sizes, check_tensors, check_values
from vitreous.weights.patches import resize_patches
from vitreous.weights.rules import Report
from vitreous.weights.shipped import shipped, shipped_folder
from vitreous.words.tokenizer import Tokenizer

PATCHES = "encoder.stem.patches.linear.weight"


@dataclass(frozen=True)
class Trained:
    card: Card
    weights: Mapping[str, Tensor]  # "encoder. ...", of a task "head. ...", and "extra. ..." that is only kept
    where: str
    format: str = "vitreous"
    report: Report | None = None  # what became of the tensors of a foreign file
    words: Callable[[], Tokenizer | None] | None = None  # finds the tokenizer of its text tower, where it has one

    @classmethod
    def load(
        cls,
        where: str | Path,
        *,
        picture_px: int | tuple[int, int] | None = None,
        patch: int | None = None,
        heads: int | None = None,
        strict: bool = True,
    ) -> Self:
        """A run or folder of ours, an encoder that ships, a foreign file or folder (known by its contents),
        hf:owner/name or timm:name.

        `picture_px` prepares it for pictures of another size, `patch` for another patch size (FlexiViT). `heads` is for
        foreign files that do not tell how many there are. One that holds more or less than its model is an error,
        unless `strict` is off.
        """
        size = (picture_px, picture_px) if isinstance(picture_px, int) else picture_px
        path = found_at(str(where))
        found = cls._ours(path, str(where)) or cls._foreign(path, str(where), size, heads, strict)
        check_values(found.weights, str(where))
        if patch is not None:
            found = found._with_patch((patch, patch))
        return found if size is None else found.resized(size)

    @classmethod
    def _ours(cls, path: Path, where: str) -> Self | None:
        folder = path / "model" if (path / "model").is_dir() else path
        if not (folder / "model.json").is_file():
            if (path / "recipe.json").is_file():
                raise UserError(
                    f"{where}: this run has not finished; give the command that started it again, and it goes on"
                )
            if (path / own.MANIFEST).is_file() and (path / "state.json").is_file():
                raise UserError(f"{where}: a checkpoint, not a model; `vitreous convert {where} OUT` makes it one")
            return None
        weights, document, others = own.load_model_and_others(folder)
        card = read_card(document, where=str(folder / "model.json"))
        check_sizes(card, weights, where)
        check_tensors(card, weights, where)
        words = partial(Tokenizer.of_document, others["tokenizer"], where) if "tokenizer" in others else None
        return cls(card, weights, where, words=words)

    @classmethod
    def _foreign(cls, path: Path, where: str, size: tuple[int, int] | None, heads: int | None, strict: bool) -> Self:
        from vitreous.weights import formats
        from vitreous.weights.files import open_weights

        given = replace(open_weights(path), heads=heads)
        chosen = formats.recognised(given)
        card, weights, report = formats.read(replace(given, where=where), chosen, size, strict)
        # Only when it is asked for: the libraries that it needs are an extra.
        words = partial(chosen.tokenizer, path if path.is_dir() else path.parent, card)
        return cls(card, weights, where, chosen.name, report, None if card.task is None else words)

    def save(self, folder: Path) -> None:
        tokenizer = None if self.words is None else self.words()
        words = {} if tokenizer is None else {"tokenizer": tokenizer.document()}
        own.save_model(folder, self.weights, settings.to_json(self.card), **words)

    # ---- using it

    def encoder(self, model: ModelSettings | None = None) -> Encoder:
        """The encoder, its weights shared with this object. `model` may change what has none (dropout, size).

        By default it is for pictures of the size that the preprocessing makes: DINOv2's positions are for larger ones.
        """
        wanted = model or replace(self.card.model, picture_px=self.card.preprocessing.size_px)
        prefix = "encoder."
        weights = {name.removeprefix(prefix): value for name, value in self.weights.items() if name.startswith(prefix)}
        # Built for the pictures it was trained on; what depends on their size is resized once the weights are in.
        with shapes_only():
            encoder = wanted.as_trained(self.card.model).build()
        self._fill(encoder, weights)
        encoder.fit_to(wanted)
        return encoder

    def task(self) -> Task:
        """The encoder with its head, for pictures of the size that the preprocessing makes."""
        if self.card.task is None:
            raise UserError(f"{self.where}: an encoder without a head makes no predictions; fine-tune it first")
        with shapes_only():
            task = self.card.task.build(self.card.model.build(), self.card.classes)
        self._fill(task, {name: value for name, value in self.weights.items() if not name.startswith("extra.")})
        if self.card.preprocessing.size_px != self.card.model.picture_px:
            task.encoder.resize(self.card.preprocessing.size_px)
        return task.eval()

    def tokenizer(self) -> Tokenizer:
        """That of its text tower."""
        found = None if self.words is None else self.words()
        if found is None:
            raise UserError(f"{self.where}: has no text tower, or came without its tokenizer: it reads no texts")
        return found

    def _fill(self, module: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Weights into a module that has only shapes so far: nothing is held twice."""
        full = {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}
        try:
            module.load_state_dict(full, assign=True)
        except RuntimeError as error:
            first = str(error).splitlines()[1].strip()
            raise UserError(f"{self.where}: its weights do not fit the model that was asked for: {first}") from None

    # ---- fitting it to other pictures

    def resized(self, picture_px: tuple[int, int]) -> Self:
        """The same model for pictures of another size: position tables interpolated, the prefix kept."""
        model = replace(self.card.model, picture_px=picture_px)
        card = replace(self.card, model=model, preprocessing=replace(self.card.preprocessing, size_px=picture_px))
        if picture_px == self.card.model.picture_px:
            return replace(self, card=card)
        encoder = self.encoder(model).state_dict(prefix="encoder.")
        changed = [name for name, value in encoder.items() if value.shape != self.weights[name].shape]
        return replace(self, card=card, weights={**self.weights, **encoder}, report=self._noting(changed))

    def _with_patch(self, patch: tuple[int, int]) -> Self:
        """The same grid of larger or smaller patches, so of larger or smaller pictures."""
        model = as_plain_vit(self.card.model, f"{self.where}: only a plain ViT's patches can be resized")
        old = (model.patch, model.patch) if isinstance(model.patch, int) else model.patch
        weight = resize_patches(self.weights[PATCHES], model.channels, old, patch)
        height, width = (
            side // before * after for side, before, after in zip(model.picture_px, old, patch, strict=True)
        )
        model = replace(model, patch=patch[0] if patch[0] == patch[1] else patch, picture_px=(height, width))
        card = replace(self.card, model=model, preprocessing=replace(self.card.preprocessing, size_px=(height, width)))
        return replace(self, card=card, weights={**self.weights, PATCHES: weight}, report=self._noting([PATCHES]))

    def _noting(self, changed: list[str]) -> Report | None:
        return None if self.report is None else replace(self.report, reshaped=[*self.report.reshaped, *changed])


def found_at(where: str) -> Path:
    """An error if there are no such weights."""
    path = fetched(where)
    if not path.exists():
        known = did_you_mean(where, list(shipped())) or did_you_mean_beside(path)
        raise UserError(f"{where}: no such run, file or folder of weights{known and '.' + known}")
    return path


def fetched(where: str) -> Path:
    if where.startswith(("hf:", "timm:")):
        from vitreous.weights.hub import fetch

        return fetch(where)
    return shipped_folder(where) or Path(where).expanduser()


load = Trained.load
