"""What all layouts of Swin, ConvNeXt and PVT have in common, whoever's they are: timm's, transformers', torchvision's,
and those of the code that came with the papers.

A family's file (swin, convnext, pvt) knows its tensors; here is what a library knows of any model: the size of the
pictures, the classes, the preprocessing, and what it writes beside the tensors.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from vitreous.errors import UserError, shown
from vitreous.models import ModelSettings
from vitreous.models.base import EncoderSettings
from vitreous.tasks import ClassifySettings
from vitreous.weights import processors
from vitreous.weights.card import Card, nameless
from vitreous.weights.formats import Format, Given
from vitreous.weights.processors import USUAL
from vitreous.weights.published import Shapes
from vitreous.weights.rules import Rule, aside, layer, prefixed
from vitreous.weights.timm_config import Config as TimmConfig
from vitreous.weights.timm_config import timm_document
from vitreous.weights.transformers_config import CONFIG, Config, config_in, labels

Library = Literal["timm", "transformers", "torchvision", "original"]
USUAL_PX = (224, 224)  # of published models, where nothing tells


@dataclass(frozen=True, kw_only=True)
class Pyramid(Format):
    """One library's layout of one family: a Format."""

    name: str
    title: str
    library: Library
    starts: tuple[str, ...] = ("",)  # what the encoder's names may begin with; the first is written with a head
    start: str | None = None  # as found in a file
    container: Literal["safetensors"] = "safetensors"

    head: str = "head"  # of the classifier

    # ---- a family's part

    @abstractmethod
    def tells(self) -> str:
        """The name of a tensor that no other family has, without its start."""

    @abstractmethod
    def read_model(self, shapes: Shapes, start: str, config: Mapping[str, Any]) -> ModelSettings:
        """All that the tensors and the config tell; the picture's size is filled in."""

    @abstractmethod
    def encoder_rules(self, model: ModelSettings) -> list[Rule]:
        """Without the start; a UserError for another family."""

    @abstractmethod
    def arguments(self, model: ModelSettings) -> tuple[str, dict[str, Any]]:
        """Of the library's constructor: the name of an architecture, and what differs from it."""

    @abstractmethod
    def as_run(self, model: ModelSettings) -> ModelSettings:
        """With the constants that the library's code has for everybody."""

    # ---- reading

    def fits(self, given: Given) -> bool:
        return self._start_in(given) is not None

    def _start_in(self, given: Given) -> str | None:
        return next((start for start in self.starts if start + self.tells() in given.tensors), None)

    def found_in(self, given: Given) -> "Pyramid":
        return replace(self, start=self._start_in(given))

    def card(self, given: Given, picture_px: tuple[int, int] | None = None) -> Card:
        document = given.documents.get(CONFIG)
        config: Mapping[str, Any] = document if isinstance(document, Mapping) else {}
        if self.library == "transformers":
            config = config_in(given.documents, given.where)
        start, shapes = self._start_in(given) or "", Shapes(given)
        model = self.read_model(shapes, start, config).changed(picture_px=picture_px or self._size(given, config))
        head = f"{self._head_start(start)}{self.head}.weight"
        num = shapes(head, 2)[0] if head in shapes else 0
        assumed = Card(
            model=model,
            task=ClassifySettings() if num else None,
            classes=tuple(str(number) for number in range(num)),
            preprocessing=replace(USUAL, size_px=model.picture_px),
        )
        if self.library == "timm":
            about = TimmConfig(given)
            preprocessing = about.preprocessing(model.picture_px, assumed.preprocessing)
            return replace(assumed, classes=about.classes(num), preprocessing=preprocessing)
        return self._of_transformers(assumed, given, config) if self.library == "transformers" else assumed

    def _of_transformers(self, assumed: Card, given: Given, config: Mapping[str, Any]) -> Card:
        several = config.get("problem_type") == "multi_label_classification"
        task = ClassifySettings(loss="sigmoid" if several else "softmax") if assumed.classes else None
        classes = Config(config, {}, f"{given.where}: {CONFIG}").labels(len(assumed.classes))
        preprocessing = processors.preprocessing_in(given.documents, given.where) or assumed.preprocessing
        return replace(assumed, task=task, classes=classes, preprocessing=preprocessing)

    def _size(self, given: Given, config: Mapping[str, Any]) -> tuple[int, int]:
        if self.library == "timm":
            return TimmConfig(given).picture_px() or USUAL_PX
        if self.library == "transformers" and config.get("image_size") is not None:
            return Config(config, {}, f"{given.where}: {CONFIG}").pair("image_size")
        return USUAL_PX

    def assumed(self, given: Given, card: Card) -> list[str]:
        if self.library in ("timm", "transformers") and given.documents:
            return []
        height, width = card.model.picture_px
        return [f"its files do not record the preprocessing: the centre {width} x {height} px, ImageNet's mean"]

    # ---- both ways

    def rules(self, card: Card) -> list[Rule]:
        start = self.start
        if start is None:
            start = self.starts[0] if card.classifier is not None or self.library != "transformers" else self.starts[-1]
        rules = [prefixed(rule, start) for rule in self.encoder_rules(card.model)]
        rules += [] if card.classifier is None else layer("head", self._head_start(start) + self.head)
        if card.classifier is not None and card.classifier.head != "linear":
            raise UserError(f"{self.name} cannot store a {card.classifier.head} head")
        return [*rules, aside(r"(optimizer|lr_scheduler|scaler|config|epoch|max_accuracy|args|best_acc|model_ema)\b")]

    def _head_start(self, start: str) -> str:
        return "" if self.library == "transformers" else start

    # ---- writing

    def run_as(self, card: Card) -> Card:
        self.encoder_rules(card.model)  # refuses other families
        model, p = self.as_run(card.model), card.preprocessing
        if self.library == "transformers":
            return replace(card, model=model, preprocessing=processors.as_written(p))
        if self.library == "timm":
            p = replace(p, skip_fitting=False, resizer="pillow", odd_margin="even")
            return replace(nameless(card), model=model, classes=card.classes, preprocessing=p)
        return replace(nameless(card), model=model, preprocessing=replace(USUAL, size_px=p.size_px))

    def documents(self, card: Card) -> dict[str, Any]:
        architecture, arguments = self.arguments(card.model)
        if self.library == "timm":
            return {CONFIG: timm_document(card, architecture, arguments, self.head)}
        if self.library != "transformers":
            return {}
        kind = f"{architecture}{'Model' if card.classifier is None else 'ForImageClassification'}"
        config = {"architectures": [kind], **arguments, **labels(card)}
        config |= {"num_labels": len(card.classes)} if card.classifier is not None else {}  # Pvt asks for it, too
        return {CONFIG: config, processors.FILE: processors.write_preprocessing(card.preprocessing)}


def refusal(format: Format, model: EncoderSettings) -> UserError:
    return UserError(f"{format.name} cannot store a {model.name}")


def depths_of(shapes: Shapes, tensor: Callable[[int, int], str]) -> tuple[int, ...]:
    """How many blocks each stage has, by the name of a tensor that each block has."""
    found: list[int] = []
    while tensor(len(found), 0) in shapes:
        j = 1
        while tensor(len(found), j) in shapes:
            j += 1
        found.append(j)
    return tuple(found)


def demand(config: Mapping[str, Any], where: str, **usual: Any) -> None:
    """What transformers' configs may say and our models do not have."""
    for name, value in usual.items():
        if config.get(name, value) != value:
            raise UserError(f"{where}: {CONFIG}: {name} is {shown(config[name])}, which no model of ours has")


def square(picture_px: tuple[int, int]) -> int | list[int]:
    """A size as configs write it: one number for both sides where they are equal."""
    return picture_px[0] if picture_px[0] == picture_px[1] else list(picture_px)
