"""The layouts that DeiT, DINO, DINOv2, MAE and BEiT were published in.

Inside they are timm's, key for key. What differs lives here: the dicts around the model, whose names stand before the
keys ("model.blocks.0. ..."), what a training checkpoint holds besides, MAE's decoder, the index tables that BEiT
saved, and DINOv2's registers, gated units and mask token. Where nothing differs (a bare DeiT or DINO backbone), the
file is timm's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.nn.relative import BiasTable
from vitreous.weights.card import Card, nameless
from vitreous.weights.formats import Format, Given
from vitreous.weights.processors import HALF, USUAL
from vitreous.weights.rules import Rule, aside, carried, computed, prefixed
from vitreous.weights.timm import TOKENS, as_timm_runs, is_vit, read_card, timm_rules
from vitreous.weights.timm_config import NORM_EPSILON, is_beit, write_config

# What a checkpoint of a training run holds besides the model: of no use here, and known.
TRAINING = r"(optimizer|lr_scheduler|scaler|fp16_scaler|amp|loss_scaler|model_ema|epoch|args)\."
# What the classes of the original repositories build, of all that our settings describe.
COMMON: dict[str, tuple[Any, ...]] = {
    "stem": (None,),
    "patch_bias": (True,),
    "pre_norm": (False,),
    "positions_where": ("stem",),
    "projection": (None,),
}
PLAIN = COMMON | {
    "mlp": ("gelu",),
    "pool": ("class",),
    "pool_norm": ("before",),
    "num_prefix": (1,),
    "num_registers": (0,),
    "positions": ("learned", "sincos"),
    "attention_bias": ("all",),
    "layer_scale": (None,),
}
DEIT = {name: allowed for name, allowed in PLAIN.items() if name != "layer_scale"} | {
    "num_prefix": (0, 1, 2),  # of DeiT III, whose class token has no position; with a distillation token
    "num_registers": (0, 1),
}
MAE = PLAIN | {"pool": ("class", "mean"), "pool_norm": ("before", "after")}
BEIT = COMMON | {
    "mlp": ("gelu",),
    "num_prefix": (1,),
    "num_registers": (0,),
    "positions": ("bias", "bias-shared"),
    "attention_bias": ("no-key",),
}
DINOV2 = COMMON | {"attention_bias": ("all",)}
MAX_DECODER_DEPTH = 32  # published: 8
BLOCK_LAYERS = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")


@dataclass(frozen=True)
class Wrapped(Format):
    """timm's names under a prefix."""

    name: str
    title: str
    prefix: str
    built: Mapping[str, tuple[Any, ...]]  # what their code builds, by the field of our settings
    besides: str = TRAINING  # pattern of names that are set aside
    heads: tuple[str, ...] = ("linear",)
    container: Literal["safetensors"] = "safetensors"

    def inside(self, given: Given) -> Given:
        tensors = {
            name.removeprefix(self.prefix): tensor
            for name, tensor in given.tensors.items()
            if name.startswith(self.prefix)
        }
        return replace(given, tensors=tensors)

    def fits(self, given: Given) -> bool:
        tensors = self.inside(given).tensors
        return is_vit(tensors) and self.knows(tensors)

    def knows(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether it is this layout and not another under the same prefix."""
        return True

    def card(self, given: Given, picture_px: tuple[int, int] | None = None) -> Card:
        inside = self.inside(given)
        card = read_card(inside, picture_px, any_depth=True)  # in their code a head is always 64 wide
        if "config.json" in given.documents or is_beit(_vit(card)):
            return card
        return replace(card, preprocessing=replace(USUAL, size_px=card.preprocessing.size_px))

    def assumed(self, given: Given, card: Card) -> list[str]:
        if "config.json" in given.documents:
            return []
        heads, width = _vit(card).heads, _vit(card).width
        return [
            f"its files do not record the number of heads ({heads}: each {width // heads} wide, as published), nor the "
            "preprocessing (as published)"
        ]

    def run_as(self, card: Card) -> Card:
        """Their code reads no config.json, and is timm's as it was then."""
        model = _vit(card)
        for field, allowed in self.built.items():
            if model.value(field) not in allowed:
                raise UserError(f"{self.name} has no model whose {field} is {model.value(field)!r}")
        if card.classifier is not None and card.classifier.head not in self.heads:
            raise UserError(f"{self.name} cannot store a {card.classifier.head} head")
        p = replace(USUAL, size_px=card.preprocessing.size_px)
        if is_beit(model):
            p = replace(p, crop_fraction=0.9, mean=HALF, std=HALF)
        return replace(nameless(card), model=as_timm_runs(model, NORM_EPSILON).changed(gelu="erf"), preprocessing=p)

    def rules(self, card: Card) -> list[Rule]:
        inner = [*timm_rules(card), *self.further(_vit(card))]
        return [*(prefixed(rule, self.prefix) for rule in inner), aside(self.besides)]

    def further(self, model: ViTSettings) -> list[Rule]:
        """What the layout has beyond timm's."""
        return []

    def documents(self, card: Card) -> dict[str, Any]:
        """The original code has no such file; ours then knows the heads and the preprocessing."""
        return {"config.json": write_config(card)}


@dataclass(frozen=True)
class Mae(Wrapped):
    """Pre-training checkpoints, with the decoder, and fine-tuned ones, whose norm comes after the mean."""

    def knows(self, tensors: Mapping[str, Tensor]) -> bool:
        return "decoder_embed.weight" in tensors or ("fc_norm.weight" in tensors and self.prefix != "")

    def further(self, model: ViTSettings) -> list[Rule]:
        """The decoder is no part of an encoder: it is kept, and written back."""
        layers = ["decoder_embed", "decoder_norm", "decoder_pred"]
        layers += [f"decoder_blocks.{block}.{part}" for block in range(MAX_DECODER_DEPTH) for part in BLOCK_LAYERS]
        names = ["mask_token", "decoder_pos_embed"]
        return [carried(name) for name in names + [f"{one}.{kind}" for one in layers for kind in ("weight", "bias")]]


@dataclass(frozen=True)
class Beit(Wrapped):
    """With the index tables that the original code and early timm saved, and the head of pre-training."""

    def knows(self, tensors: Mapping[str, Tensor]) -> bool:
        names = ("blocks.0.attn.relative_position_index", "rel_pos_bias.relative_position_index")
        return any(name in tensors for name in names)

    def further(self, model: ViTSettings) -> list[Rule]:
        patch = (model.patch, model.patch) if isinstance(model.patch, int) else model.patch
        h, w = (size // side for size, side in zip(model.picture_px, patch, strict=True))

        def index() -> Tensor:
            return BiasTable((h, w), 1).pairs(1, torch.arange(h * w))

        shared = model.positions == "bias-shared"
        owners = ["rel_pos_bias"] if shared else [f"blocks.{number}.attn" for number in range(model.depth)]
        kept = [carried(name) for name in ("mask_token", "lm_head.weight", "lm_head.bias")]
        return [*(computed(f"{owner}.relative_position_index", index) for owner in owners), *kept]


@dataclass(frozen=True)
class Dinov2(Wrapped):
    """A backbone as DINOv2 published it. Its registers stand beside a table in which the class token has its row."""

    def knows(self, tensors: Mapping[str, Tensor]) -> bool:
        telling = {"mask_token", "register_tokens", "blocks.0.mlp.w12.weight"} & tensors.keys()
        return "blocks.0.ls1.gamma" in tensors and bool(telling) and "decoder_embed.weight" not in tensors

    def card(self, given: Given, picture_px: tuple[int, int] | None = None) -> Card:
        theirs = {name: _timm_name(name) for name in given.tensors if name not in ("mask_token", "register_tokens")}
        tensors = {name: given.tensors[their] for their, name in theirs.items()}
        card = super().card(replace(given, tensors=tensors), picture_px)
        registers = given.tensors.get("register_tokens")
        # As the published code resizes them, but for its offset of a tenth of a cell in models without registers.
        resizing = "bicubic" if registers is None else "bicubic-antialiased"
        num = 0 if registers is None else registers.shape[1]
        return replace(card, model=_vit(card).changed(resizing=resizing, num_registers=num))

    def rules(self, card: Card) -> list[Rule]:
        model = self._checked(card)
        rules = [
            replace(rule, theirs=tuple(map(_dinov2_name, rule.theirs))) if model.block.mlp == "swiglu" else rule
            for rule in timm_rules(replace(card, model=replace(model, num_registers=0)))
            if rule.ours != (TOKENS,)
        ]
        names = ("cls_token", "register_tokens") if model.num_registers else ("cls_token",)
        counts = [1, model.num_registers] if model.num_registers else [1]
        tokens = Rule(
            (TOKENS,),
            names,
            lambda *theirs: (torch.cat([one[0] for one in theirs]),),
            lambda ours: tuple(one[None] for one in ours.split(counts)),
        )
        # Their code wants a mask token, which starts at zero; transformers' DINOv2 has the same.
        blank = Rule((), ("mask_token",), lambda _: (), lambda: (torch.zeros(1, model.width),), optional=True)
        kept = replace(carried("mask_token"), ours=("extra.embeddings.mask_token",))
        return [*rules, tokens, blank, kept]

    def _checked(self, card: Card) -> ViTSettings:
        model = _vit(card)
        if card.classifier is not None:
            raise UserError(f"{self.name} holds an encoder alone, and this model has a head; write another format")
        wanted = {"pool": "class", "pool_norm": "before", "num_prefix": 1, "positions": "learned", "pre_norm": False}
        for field, value in wanted.items():
            if model.value(field) != value:
                raise UserError(f"{self.name} has {field} {value}, not {model.value(field)}")
        if model.block.layer_scale is None:
            raise UserError(f"{self.name} has LayerScale, and this model has none")
        return model


def _timm_name(name: str) -> str:
    return name.replace(".mlp.w12.", ".mlp.fc1.").replace(".mlp.w3.", ".mlp.fc2.")


def _dinov2_name(name: str) -> str:
    return name.replace(".mlp.fc1.", ".mlp.w12.").replace(".mlp.fc2.", ".mlp.w3.")


def _vit(card: Card) -> ViTSettings:
    if not isinstance(card.model, ViTSettings):
        raise UserError("the layouts of DeiT, DINO, DINOv2, MAE and BEiT cannot store a ResNet")
    return card.model


DINO_BESIDES = rf"{TRAINING}|student\.|dino_loss\.|teacher\.(module\.)?head\."

FORMATS: tuple[Wrapped, ...] = (
    Beit("beit", "BEiT's own, with its index tables", "model.", BEIT),
    Beit("beit-bare", "the same without the dict around it, as early timm", "", BEIT),
    Mae("mae", "MAE's own: pre-training with its decoder, or fine-tuned", "model.", MAE),
    Mae("mae-bare", "the same without the dict around it", "", MAE),
    Dinov2("dinov2-original", "DINOv2's own backbones, with and without registers", "", DINOV2),
    Wrapped("dino", "DINO's own training checkpoint: the teacher", "teacher.backbone.", PLAIN, DINO_BESIDES, ()),
    Wrapped(
        "dino-student",
        "DINO's own, where it holds a student alone",
        "student.module.backbone.",
        PLAIN,
        rf"{TRAINING}|dino_loss\.|student\.module\.head\.",
        (),
    ),
    Wrapped("deit", "DeiT's own, with and without distillation token", "model.", DEIT, heads=("linear", "distilled")),
)
