"""What transformers' folders of Mask2Former and EoMT have in common: losses, points, pictures, what is not told."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ModelSettings
from vitreous.tasks.mask_loss import MaskWeights, PointSettings
from vitreous.tasks.mask_queries import MaskQuerySettings
from vitreous.weights.card import Card
from vitreous.weights.formats import Format, Given
from vitreous.weights.processors import FILE, IMAGENET_MEAN, IMAGENET_STD, canvas_in, with_statistics
from vitreous.weights.published import Shapes
from vitreous.weights.rules import Rule, carried
from vitreous.weights.transformers_config import CONFIG, Config, class_names, config_in

OUTPUT = "segmentation"  # a field of ours in their config: semantic, or instances
PREPROCESSING = Preprocessing(
    crop="squash", resizer="pillow", interpolation="bilinear", mean=IMAGENET_MEAN, std=IMAGENET_STD
)
DEFAULTS: dict[str, Any] = {
    "dropout": 0.0,
    "class_weight": 2.0,
    "mask_weight": 5.0,
    "dice_weight": 5.0,
    "no_object_weight": 0.1,
    "train_num_points": 12544,
    "oversample_ratio": 3.0,
    "importance_sample_ratio": 0.75,
    OUTPUT: "semantic",
}


@dataclass(frozen=True, kw_only=True)
class MaskQueryFormat(Format):
    name: str
    title: str
    peer: str  # the library's class
    container: Literal["safetensors"] = "safetensors"

    decoder: Literal["mask2former", "eomt"]
    telling: tuple[str, ...]  # tensors that no other kind has together
    usual_px: tuple[int, int]  # where nothing tells

    # ---- a kind's part

    @abstractmethod
    def read_model(self, shapes: Shapes, config: Config) -> ModelSettings:
        """All that the tensors and the config tell."""

    @abstractmethod
    def read_task(self, shapes: Shapes, config: Config, heads: int | None) -> MaskQuerySettings:
        """The decoder's sizes."""

    @abstractmethod
    def model_rules(self, model: ModelSettings, task: MaskQuerySettings) -> list[Rule]:
        """A UserError for another family, or sizes that their code cannot build."""

    @abstractmethod
    def arguments(self, model: ModelSettings, task: MaskQuerySettings) -> dict[str, Any]:
        """Of the library's config: the model's."""

    # ---- reading

    def fits(self, given: Given) -> bool:
        return all(name in given.tensors for name in self.telling)

    def card(self, given: Given, picture_px: tuple[int, int] | None = None) -> Card:
        document = config_in(given.documents, given.where)
        config, shapes = Config(document, DEFAULTS, f"{given.where}: {CONFIG}"), Shapes(given)
        classes = config.labels(shapes("class_predictor.weight", 2)[0] - 1)
        model = self.read_model(shapes, config)
        px = picture_px or self._canvas(given) or self.built_for(model) or self.usual_px
        task = replace(
            self.read_task(shapes, config, given.heads),
            output="instances" if self._is_of_objects(config) else "semantic",
            queries=shapes(self.telling[0], 2)[0],
            points=PointSettings(
                number=config.integer("train_num_points"),
                candidates=config.number("oversample_ratio"),
                uncertain=config.number("importance_sample_ratio"),
            ),
            weights=MaskWeights(
                classes=config.number("class_weight"),
                mask=config.number("mask_weight"),
                dice=config.number("dice_weight"),
                no_object=config.number("no_object_weight"),
            ),
        )
        fixed = model.picture_px if self.built_for(model) else px
        return Card(
            model=model.changed(picture_px=fixed),
            task=task,
            classes=classes,
            preprocessing=replace(with_statistics(PREPROCESSING, given.documents, given.where), size_px=px),
        )

    def _is_of_objects(self, config: Config) -> bool:
        config.demand(OUTPUT, "semantic", "instances")
        return bool(config[OUTPUT] == "instances")

    def built_for(self, model: ModelSettings) -> tuple[int, int] | None:
        """The one size that a model's tensors have; None where it takes any."""
        return None

    def _canvas(self, given: Given) -> tuple[int, int] | None:
        return canvas_in(given.documents, given.where, ("height", "width"))

    def assumed(self, given: Given, card: Card) -> list[str]:
        notes, (height, width) = [], card.preprocessing.size_px
        if OUTPUT not in given.documents[CONFIG]:
            notes.append("its files do not say whether it is for classes or for objects: read as a class per pixel")
        if self._canvas(given) is None:
            notes.append(f"its files give no fixed picture size: pictures are resized to {width} x {height} px")
        return notes

    # ---- both ways

    def rules(self, card: Card) -> list[Rule]:
        model, task = self.checked(card)

        def factors() -> Tensor:
            found = torch.ones(len(card.classes) + 1)
            found[-1] = task.weights.no_object
            return found

        return [*self.model_rules(model, task), carried("criterion.empty_weight", factors)]

    def checked(self, card: Card) -> tuple[ModelSettings, MaskQuerySettings]:
        if not isinstance(card.task, MaskQuerySettings) or card.task.decoder != self.decoder:
            raise UserError(f"{self.name} holds a {self.title} only")
        return card.model, card.task

    # ---- writing

    def run_as(self, card: Card) -> Card:
        self.rules(card)  # refuses what has no place
        p = card.preprocessing
        return replace(card, preprocessing=replace(PREPROCESSING, size_px=p.size_px, mean=p.mean, std=p.std))

    def documents(self, card: Card) -> dict[str, Any]:
        model, task = self.checked(card)
        config = {
            "architectures": [self.peer],
            "model_type": self.decoder,
            **self.arguments(model, task),
            "num_queries": task.queries,
            "class_weight": task.weights.classes,
            "mask_weight": task.weights.mask,
            "dice_weight": task.weights.dice,
            "no_object_weight": task.weights.no_object,
            "train_num_points": task.points.number,
            "oversample_ratio": task.points.candidates,
            "importance_sample_ratio": task.points.uncertain,
            OUTPUT: task.output,
            **class_names(card),
        }
        return {CONFIG: config, FILE: self._processor(card.preprocessing)}

    def _processor(self, p: Preprocessing) -> dict[str, Any]:
        height, width = p.size_px
        return {
            "image_processor_type": f"{self.peer.removesuffix('ForUniversalSegmentation')}ImageProcessor",
            "do_resize": True,
            "size": {"height": height, "width": width},
            "resample": 2,
            "do_rescale": True,
            "do_normalize": True,
            "image_mean": list(p.mean),
            "image_std": list(p.std),
            "ignore_index": 255,
        }
