"""Mask2Former of transformers, on its Swin Transformers and ResNets."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from vitreous.errors import UserError
from vitreous.models import ModelSettings, ResNetV1Settings, SwinSettings
from vitreous.nn.mask2former import SCALES
from vitreous.tasks.mask_queries import MaskQuerySettings, PixelSettings
from vitreous.weights import resnet_v1, swin
from vitreous.weights.card import Card
from vitreous.weights.detr_rules import DEFORMABLE_PARTS
from vitreous.weights.mask_queries import MaskQueryFormat
from vitreous.weights.published import Shapes
from vitreous.weights.pyramids import Pyramid
from vitreous.weights.resnet_v1 import ResNetFormat
from vitreous.weights.rules import Rule, carried, joined, layer, prefixed, same
from vitreous.weights.swin import SwinFormat
from vitreous.weights.transformers_config import Config

BACKBONE, PIXELS, QUERIES = (
    "model.pixel_level_module.encoder.",
    "model.pixel_level_module.decoder.",
    "model.transformer_module.",
)
STAGES = 4  # of the encoder, with strides of 4, 8, 16 and 32
GROUPS = 32  # of their norms, which a width must be a multiple of
# What their config may say and our model does not have.
FIXED: dict[str, Any] = {
    "activation_function": "relu",
    "pre_norm": False,
    "enforce_input_projection": False,
    "common_stride": 4,
    "feature_strides": [4, 8, 16, 32],
}


@dataclass(frozen=True, kw_only=True)
class Mask2FormerFormat(MaskQueryFormat):
    encoder: Pyramid  # the family's own format

    # ---- reading

    def read_model(self, shapes: Shapes, config: Config) -> ModelSettings:
        document = config.get("backbone_config")
        found = self.encoder.read_model(shapes, BACKBONE, document if isinstance(document, Mapping) else {})
        return self._as_run(self._known(found))

    def _as_run(self, model: SwinSettings | ResNetV1Settings) -> SwinSettings | ResNetV1Settings:
        """With what their code has for everybody."""
        fixed = self.encoder.as_run(model)
        return self._known(fixed.changed(small_maps="shift") if isinstance(fixed, SwinSettings) else fixed)

    def read_task(self, shapes: Shapes, config: Config, heads: int | None) -> MaskQuerySettings:
        for name, value in FIXED.items():
            if config.get(name) is not None:
                config.demand(name, value)
        width = shapes(f"{QUERIES}queries_embedder.weight", 2)[1]
        mask_width = shapes(f"{PIXELS}mask_projection.weight", 4)[0]
        layers = {
            start: shapes.numbered(rf"{start}layers\.(\d+)\.".replace("model.", r"model\."))
            for start in (f"{PIXELS}encoder.", f"{QUERIES}decoder.")
        }
        heads = heads or config.integer("num_attention_heads")
        pixel = PixelSettings(mask_width=mask_width, depth=layers[f"{PIXELS}encoder."])
        if pixel.depth:
            first = f"{PIXELS}encoder.layers.0."
            looks = shapes(f"{first}self_attn.{DEFORMABLE_PARTS['weights']}.weight", 2)[0] // (SCALES * heads)
            pixel = replace(pixel, mlp_width=shapes(f"{first}fc1.weight", 2)[0], looks=looks)
        depth = layers[f"{QUERIES}decoder."]
        mlp_width = shapes(f"{QUERIES}decoder.layers.0.fc1.weight", 2)[0] if depth else MaskQuerySettings.mlp_width
        return MaskQuerySettings(
            width=width,
            heads=heads,
            mlp_width=mlp_width,
            decoder_depth=depth,
            dropout=config.number("dropout"),
            pixel=pixel,
        )

    # ---- both ways

    def _known(self, model: ModelSettings) -> SwinSettings | ResNetV1Settings:
        if not isinstance(model, SwinSettings | ResNetV1Settings) or len(model.depths) != STAGES:
            raise UserError(f"{self.name} cannot store a {model.name}: its encoders have {STAGES} stages")
        return model

    def model_rules(self, model: ModelSettings, task: MaskQuerySettings) -> list[Rule]:
        known = self._known(model)
        if task.width % GROUPS or task.pixel.looks != PixelSettings.looks:
            raise UserError(
                f"{self.name} has widths that are multiples of {GROUPS} and {PixelSettings.looks} looks, not a width "
                f"of {task.width} and {task.pixel.looks} looks"
            )
        rules = [prefixed(rule, BACKBONE) for rule in self.encoder.encoder_rules(known)]
        if isinstance(known, SwinSettings):
            rules += _norms_of_stages(known)
        return [*rules, *_pixel_rules(task), *_query_rules(task), *layer("head.classes", "class_predictor")]

    # ---- writing

    def run_as(self, card: Card) -> Card:
        there = super().run_as(card)
        return replace(there, model=self._as_run(self._known(card.model)))

    def arguments(self, model: ModelSettings, task: MaskQuerySettings) -> dict[str, Any]:
        _, backbone = self.encoder.arguments(self._known(model))
        stages = [f"stage{number + 1}" for number in range(STAGES)]
        return {
            **FIXED,
            "backbone_config": backbone | {"out_features": stages},
            "feature_size": task.width,
            "hidden_dim": task.width,
            "mask_feature_size": task.pixel.mask_width,
            "encoder_feedforward_dim": task.pixel.mlp_width,
            "dim_feedforward": task.mlp_width,
            "encoder_layers": task.pixel.depth,
            "decoder_layers": task.decoder_depth + 1,  # they count what is said before the first one
            "num_attention_heads": task.heads,
            "dropout": task.dropout,
        }


def _norms_of_stages(model: SwinSettings) -> list[Rule]:
    """Of all but the last, which is the encoder's own; and a norm that is saved and never used."""
    rules = []
    for number in range(STAGES - 1):
        rules += layer(f"head.norms.{number}", f"{BACKBONE}hidden_states_norms.stage{number + 1}")
    width, unused = model.width * 2 ** (STAGES - 1), f"{BACKBONE}swin.layernorm."
    ones, zeros = (
        carried(f"{unused}weight", lambda: torch.ones(width)),
        carried(f"{unused}bias", lambda: torch.zeros(width)),
    )
    return [*rules, ones, zeros]


def _pixel_rules(task: MaskQuerySettings) -> list[Rule]:
    rules = [
        same("head.pixels.levels", f"{PIXELS}level_embed"),
        *layer("head.pixels.masks", f"{PIXELS}mask_projection"),
    ]
    for level in range(SCALES):
        for part in range(2):
            rules += layer(f"head.pixels.project.{level}.{part}", f"{PIXELS}input_projections.{level}.{part}")
    for ours, theirs in (("laterals.0", "adapter_1"), ("smooth.0", "layer_1")):
        rules += layer(f"head.pixels.{ours}.0", f"{PIXELS}{theirs}.0", bias=False)
        rules += layer(f"head.pixels.{ours}.1", f"{PIXELS}{theirs}.1")
    for number in range(task.pixel.depth):
        ours, theirs = f"head.pixels.encoder.{number}.", f"{PIXELS}encoder.layers.{number}."
        for mine, their in DEFORMABLE_PARTS.items():
            rules += layer(f"{ours}attention.{mine}", f"{theirs}self_attn.{their}")
        rules += layer(f"{ours}attention_residual.norm", f"{theirs}self_attn_layer_norm")
        rules += _mlp(ours, theirs)
    return rules


def _query_rules(task: MaskQuerySettings) -> list[Rule]:
    rules = [
        same("head.queries", f"{QUERIES}queries_embedder.weight"),
        same("head.known", f"{QUERIES}queries_features.weight"),
        same("head.levels", f"{QUERIES}level_embed.weight"),
        *layer("head.norm", f"{QUERIES}decoder.layernorm"),
    ]
    for number, ours in enumerate(("hidden.0", "hidden.1", "last")):
        rules += layer(f"head.masks.{ours}", f"{QUERIES}decoder.mask_predictor.mask_embedder.{number}.0")
    for number in range(task.decoder_depth):
        ours, theirs = f"head.decoder.{number}.", f"{QUERIES}decoder.layers.{number}."
        for kind in ("weight", "bias"):
            three = [f"{theirs}self_attn.{part}_proj.{kind}" for part in "qkv"]
            rules.append(joined(f"{ours}self_attention.project_in.{kind}", three))
            rules.append(same(f"{ours}attention.project_in.{kind}", f"{theirs}cross_attn.in_proj_{kind}"))
        rules += layer(f"{ours}self_attention.project_out", f"{theirs}self_attn.out_proj")
        rules += layer(f"{ours}attention.project_out", f"{theirs}cross_attn.out_proj")
        rules += layer(f"{ours}attention_residual.norm", f"{theirs}cross_attn_layer_norm")
        rules += layer(f"{ours}self_residual.norm", f"{theirs}self_attn_layer_norm")
        rules += _mlp(ours, theirs)
    return rules


def _mlp(ours: str, theirs: str) -> list[Rule]:
    rules = layer(f"{ours}mlp.hidden.0", f"{theirs}fc1") + layer(f"{ours}mlp.last", f"{theirs}fc2")
    return rules + layer(f"{ours}mlp_residual.norm", f"{theirs}final_layer_norm")


_QUERIES = f"{QUERIES}queries_embedder.weight"
FORMATS = (
    Mask2FormerFormat(
        name="transformers-mask2former",
        title="Mask2Former of transformers, on its Swin",
        peer="Mask2FormerForUniversalSegmentation",
        decoder="mask2former",
        telling=(_QUERIES, f"{BACKBONE}embeddings.patch_embeddings.projection.weight"),
        usual_px=(512, 512),
        encoder=SwinFormat(
            name="",
            title="",
            library="transformers",
            names=replace(swin.TRANSFORMERS, norm=f"hidden_states_norms.stage{STAGES}"),
        ),
    ),
    Mask2FormerFormat(
        name="transformers-mask2former-resnet",
        title="Mask2Former of transformers, on its ResNet",
        peer="Mask2FormerForUniversalSegmentation",
        decoder="mask2former",
        telling=(_QUERIES, f"{BACKBONE}{resnet_v1.TRANSFORMERS.root[0]}.weight"),
        usual_px=(512, 512),
        encoder=ResNetFormat(name="", title="", library="transformers", names=resnet_v1.TRANSFORMERS),
    ),
)
