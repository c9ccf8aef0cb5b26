"""DETR and Deformable DETR on a ResNet: transformers' folders and the original code's checkpoints.

The tensors tell all sizes but the number of heads; they do not tell the size of the pictures, which may be any.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ResNetV1Settings
from vitreous.tasks.detect import DetectSettings
from vitreous.tasks.detect_loss import CostSettings, LossSettings
from vitreous.weights import detr_rules, resnet_v1
from vitreous.weights.card import Card
from vitreous.weights.detr_rules import INSIDE, Names
from vitreous.weights.formats import Format, Given
from vitreous.weights.processors import FILE, IMAGENET_MEAN, IMAGENET_STD, canvas_in, with_statistics
from vitreous.weights.published import Shapes
from vitreous.weights.resnet_v1 import Names as ResNetNames
from vitreous.weights.resnet_v1 import read_resnet, resnet_config
from vitreous.weights.rules import Rule, aside, prefixed
from vitreous.weights.transformers_config import CONFIG, Config, class_names, config_in

CANVAS_PX = (800, 800)  # where nothing tells: both were tested on pictures whose shorter side has 800
HEADS = 8  # of all published models
FROZEN_LEVELS = 2  # root and first stage, in both papers' code
PREPROCESSING = Preprocessing(
    crop="letterbox", resizer="pillow", interpolation="bilinear", mean=IMAGENET_MEAN, std=IMAGENET_STD
)
DEFAULTS: dict[str, Any] = {
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "activation_function": "relu",
    "position_embedding_type": "sine",
    "dilation": False,
    "dropout": 0.1,
    "with_box_refine": False,
    "two_stage": False,
    "num_queries": 300,
    "two_stage_num_proposals": 300,
    "class_cost": 1,
    "bbox_cost": 5,
    "giou_cost": 2,
    "bbox_loss_coefficient": 5,
    "giou_loss_coefficient": 2,
    "eos_coefficient": 0.1,
}


@dataclass(frozen=True, kw_only=True)
class DetrFormat(Format):
    name: str
    title: str
    decoder: Literal["detr", "deformable"]
    library: Literal["transformers", "original"]
    names: Names
    backbone: str  # what the backbone's names begin with
    resnet: ResNetNames
    container: Literal["safetensors"] = "safetensors"

    start: str | None = None  # as found: what all names begin with
    heads_inside: bool = True  # as found: heads that the decoder uses stand in it (transformers), or outside alone
    one_class_head: bool = False  # as found: layers with boxes of their own that share what tells classes

    # ---- reading

    def fits(self, given: Given) -> bool:
        """By a tensor of the decoder that no other kind has."""
        return self._start_in(given) is not None

    def _start_in(self, given: Given) -> str | None:
        telling = (self.names.levels or f"{self.names.norm}.weight", f"{self.backbone}{self.resnet.root[0]}.weight")
        return next((one for one in self.names.starts if all(one + name in given.tensors for name in telling)), None)

    def found_in(self, given: Given) -> "DetrFormat":
        start = self._start_in(given) or ""
        heads = [f"{start}{self.names.classes.format(i=i)}.weight" in given.tensors for i in range(2)]
        inside = f"{INSIDE}{self.names.boxes.format(i=0)}.layers.0.weight" in given.tensors
        return replace(self, start=start, one_class_head=heads == [True, False], heads_inside=inside)

    def card(self, given: Given, picture_px: tuple[int, int] | None = None) -> Card:
        start = self._start_in(given)
        if start is None:
            raise UserError(f"{given.where}: no {self.title}")
        document = config_in(given.documents, given.where) if self.library == "transformers" else {}
        config = Config(document, DEFAULTS, f"{given.where}: {CONFIG}")
        for name in ("activation_function", "position_embedding_type", "dilation"):
            config.demand(name, DEFAULTS[name])
        shapes = Shapes(given)
        task = self._task(shapes, start, config, given.heads)
        classes = shapes(start + self._classes(shapes, start), 2)[0] - (self.decoder == "detr")
        px = picture_px or self._canvas(given) or CANVAS_PX
        model = read_resnet(shapes, start + self.backbone, self.resnet)
        return Card(
            model=model.changed(picture_px=px, learned_norms=False, frozen_levels=FROZEN_LEVELS),
            task=task,
            classes=config.labels(classes) if document else tuple(str(number) for number in range(classes)),
            preprocessing=replace(with_statistics(PREPROCESSING, given.documents, given.where), size_px=px),
        )

    def _classes(self, shapes: Shapes, start: str) -> str:
        """The name of a class head's weight: in two stages it stands in the decoder."""
        name = self.names.classes.format(i=0) + ".weight"
        return name if start + name in shapes else INSIDE + name

    def _task(self, shapes: Shapes, start: str, config: Config, heads: int | None) -> DetectSettings:
        names = self.names
        first = start + names.encoder.format(i=0)
        mlp_width, width = shapes(f"{first}{names.mlp[0]}.weight", 2)
        pattern = r"{}(\d+)\."
        encoder, decoder = (
            shapes.numbered(pattern.format((start + one).partition("{i}")[0].replace(".", r"\.")))
            for one in (names.encoder, names.decoder)
        )
        two_stage = start + names.proposals[0] + ".weight" in shapes
        found = DetectSettings(
            decoder=self.decoder,
            queries=self._queries(shapes, start, config, two_stage),
            width=width,
            heads=heads or config.integer("decoder_attention_heads"),
            mlp_width=mlp_width,
            encoder_depth=encoder,
            decoder_depth=decoder,
            dropout=config.number("dropout"),
            cost=CostSettings(
                classes=config.number("class_cost"), l1=config.number("bbox_cost"), giou=config.number("giou_cost")
            ),
            weights=LossSettings(
                classes=1.0,
                l1=config.number("bbox_loss_coefficient"),
                giou=config.number("giou_loss_coefficient"),
                no_object=config.number("eos_coefficient"),
            ),
        )
        if self.decoder == "detr":
            return replace(found, refine=False)
        levels = shapes(start + names.levels, 2)[0]
        read = shapes(f"{first}self_attn.{detr_rules.DEFORMABLE_PARTS['weights']}.weight", 2)[0]
        refine = two_stage or bool(config["with_box_refine"]) or self._are_apart(shapes, start)
        points = read // (levels * found.heads)
        return replace(found, levels=levels, points=points, refine=refine, two_stage=two_stage)

    def _are_apart(self, shapes: Shapes, start: str) -> bool:
        """Whether layers have heads of their own, as original checkpoints tell by a copy in the decoder."""
        return f"{start}transformer.decoder.{self.names.boxes.format(i=0)}.layers.0.weight" in shapes

    def _queries(self, shapes: Shapes, start: str, config: Config, two_stage: bool) -> int:
        if two_stage:
            return config.integer("two_stage_num_proposals")
        return shapes(start + self.names.queries, 2)[0]

    def _canvas(self, given: Given) -> tuple[int, int] | None:
        return canvas_in(given.documents, given.where, ("max_height", "max_width"))

    def assumed(self, given: Given, card: Card) -> list[str]:
        if self._canvas(given) is not None:
            return []
        height, width = card.model.picture_px
        return [
            f"its files give no fixed picture size: pictures are shown whole in {width} x {height} px, with padding"
        ]

    # ---- both ways

    def rules(self, card: Card) -> list[Rule]:
        task, model = self._checked(card)
        start = self.names.starts[0] if self.start is None else self.start
        rules = detr_rules.encoder_rules(model, self.backbone, self.resnet)
        if self.decoder == "detr":
            rules += detr_rules.detr_rules(task, self.names)
        else:
            inside = self.library == "transformers" and self.heads_inside
            rules += detr_rules.deformable_rules(task, self.names, inside=inside, one=self.one_class_head)
        return [
            *(prefixed(rule, start) for rule in rules),
            aside(r"(optimizer|lr_scheduler|epoch|args|bbox_attention)\b"),
        ]

    def _checked(self, card: Card) -> tuple[DetectSettings, ResNetV1Settings]:
        task, model = card.task, card.model
        if not isinstance(task, DetectSettings) or task.decoder != self.decoder:
            raise UserError(f"{self.name} holds a {self.title} only")
        if not isinstance(model, ResNetV1Settings):
            raise UserError(f"{self.name} cannot store a {model.name}: its encoders are ResNets")
        return task, model

    # ---- writing

    def run_as(self, card: Card) -> Card:
        task, model = self._checked(card)
        fixed = model.changed(learned_norms=False, frozen_levels=FROZEN_LEVELS)
        p = replace(PREPROCESSING, size_px=card.model.picture_px)
        if self.library == "transformers":
            p = replace(p, mean=card.preprocessing.mean, std=card.preprocessing.std)
        names = card.classes if self.library == "transformers" else tuple(map(str, range(len(card.classes))))
        return replace(card, model=fixed, task=task, classes=names, preprocessing=p)

    def documents(self, card: Card) -> dict[str, Any]:
        if self.library != "transformers":
            return {}
        task, model = self._checked(card)
        kind = "Detr" if self.decoder == "detr" else "DeformableDetr"
        config = {
            "architectures": [f"{kind}ForObjectDetection"],
            "model_type": "detr" if self.decoder == "detr" else "deformable_detr",
            "backbone_config": self._backbone(model, task),
            "use_timm_backbone": self.resnet is resnet_v1.TORCHVISION,
            "d_model": task.width,
            "num_queries": task.queries,
            "dropout": task.dropout,
            "auxiliary_loss": False,  # DetrModel gives other boxes with it than without
            "class_cost": _whole(task.cost.classes),
            "bbox_cost": _whole(task.cost.l1),
            "giou_cost": _whole(task.cost.giou),
            "bbox_loss_coefficient": _whole(task.weights.l1),
            "giou_loss_coefficient": _whole(task.weights.giou),
            "eos_coefficient": task.weights.no_object,
            **class_names(card),
        }
        for side, depth in (("encoder", task.encoder_depth), ("decoder", task.decoder_depth)):
            config |= {
                f"{side}_layers": depth,
                f"{side}_attention_heads": task.heads,
                f"{side}_ffn_dim": task.mlp_width,
            }
        if self.decoder == "deformable":
            config |= {
                "num_feature_levels": task.levels,
                "encoder_n_points": task.points,
                "decoder_n_points": task.points,
            }
            config |= {"with_box_refine": task.refine, "two_stage": task.two_stage}
            config |= {"two_stage_num_proposals": task.queries}
        return {CONFIG: config, FILE: _processor(card.preprocessing, kind)}

    def _backbone(self, model: ResNetV1Settings, task: DetectSettings) -> dict[str, Any]:
        """timm's by its name where it has one: another one cannot be asked for; else transformers' own."""
        last = len(model.depths)
        stages = range(last + 1 - task.num_maps, last + 1)
        if self.resnet is resnet_v1.TORCHVISION:
            if not model.name.startswith("ResNet-") or model.channels != 3:
                raise UserError(f"{self.name} stores ResNets by their timm names, and none is a {model.describe()}")
            architecture = model.name.lower().replace("-", "")
            timm = {"model_type": "timm_backbone", "backbone": architecture, "num_channels": 3, "features_only": True}
            return timm | {"use_pretrained_backbone": False, "out_indices": list(stages)}
        return resnet_config(model) | {"out_features": [f"stage{number}" for number in stages]}


def _whole(factor: float) -> int:
    """Their configs take nothing else. What is rounded matters for training alone."""
    return round(factor)


def _processor(p: Preprocessing, kind: str) -> dict[str, Any]:
    height, width = p.size_px
    return {
        "image_processor_type": f"{kind}ImageProcessor",
        "format": "coco_detection",
        "do_resize": True,
        "size": {"max_height": height, "max_width": width},
        "do_normalize": True,
        "image_mean": list(p.mean),
        "image_std": list(p.std),
        "do_pad": True,
        "pad_size": {"height": height, "width": width},
    }


TRANSFORMERS_BACKBONE = "model.backbone.conv_encoder.model."
FORMATS = (
    DetrFormat(
        name="transformers-detr",
        title="DETR of transformers, on timm's ResNet",
        decoder="detr",
        library="transformers",
        names=detr_rules.DETR_TRANSFORMERS,
        backbone=TRANSFORMERS_BACKBONE,
        resnet=resnet_v1.TORCHVISION,
    ),
    DetrFormat(
        name="transformers-detr-resnet",
        title="DETR of transformers, on its own ResNet",
        decoder="detr",
        library="transformers",
        names=detr_rules.DETR_TRANSFORMERS,
        backbone=TRANSFORMERS_BACKBONE,
        resnet=resnet_v1.TRANSFORMERS,
    ),
    DetrFormat(
        name="detr",
        title="DETR of the original code",
        decoder="detr",
        library="original",
        names=detr_rules.DETR_ORIGINAL,
        backbone="backbone.0.body.",
        resnet=resnet_v1.TORCHVISION,
    ),
    DetrFormat(
        name="transformers-deformable-detr",
        title="Deformable DETR of transformers, on timm's ResNet",
        decoder="deformable",
        library="transformers",
        names=detr_rules.DEFORMABLE_TRANSFORMERS,
        backbone=TRANSFORMERS_BACKBONE,
        resnet=resnet_v1.TORCHVISION,
    ),
    DetrFormat(
        name="transformers-deformable-detr-resnet",
        title="Deformable DETR of transformers, on its own ResNet",
        decoder="deformable",
        library="transformers",
        names=detr_rules.DEFORMABLE_TRANSFORMERS,
        backbone=TRANSFORMERS_BACKBONE,
        resnet=resnet_v1.TRANSFORMERS,
    ),
    DetrFormat(
        name="deformable-detr",
        title="Deformable DETR of the original code",
        decoder="deformable",
        library="original",
        names=detr_rules.DEFORMABLE_ORIGINAL,
        backbone="backbone.0.body.",
        resnet=resnet_v1.TORCHVISION,
    ),
)
