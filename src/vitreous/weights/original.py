"""The layouts that DeiT, DINO, MAE and BEiT were published in.

Inside they are timm's, key for key. What differs lives here: the dicts around the model, whose names stand before the
keys ("model.blocks.0. ..."), what a training checkpoint holds besides, MAE's decoder, and the index tables that BEiT
saved. Where nothing differs (a bare DeiT or DINO backbone), the file is timm's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.nn.relative import BiasTable
from vitreous.weights.card import Card
from vitreous.weights.formats import Given
from vitreous.weights.processors import IMAGENET_MEAN, IMAGENET_STD
from vitreous.weights.rules import Rule, aside, carried, computed
from vitreous.weights.timm import is_vit, read_card, timm_rules
from vitreous.weights.timm_config import is_beit, write_config

# What a checkpoint of a training run holds besides the model: of no use here, and known.
TRAINING = r"(optimizer|lr_scheduler|scaler|fp16_scaler|amp|loss_scaler|model_ema|epoch|args)\."
MAX_DECODER_DEPTH = 32  # published: 8
BLOCK_LAYERS = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")


@dataclass(frozen=True)
class Wrapped:
    """timm's names under a prefix."""

    name: str
    title: str
    prefix: str
    besides: str = TRAINING  # pattern of names that are set aside
    container: Literal["safetensors"] = "safetensors"

    def inside(self, given: Given) -> Given:
        tensors = {
            name.removeprefix(self.prefix): tensor
            for name, tensor in given.tensors.items()
            if name.startswith(self.prefix)
        }
        return Given(tensors, given.documents, given.where)

    def fits(self, given: Given) -> bool:
        tensors = self.inside(given).tensors
        return is_vit(tensors) and self.knows(tensors)

    def knows(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether it is this layout and not another under the same prefix."""
        return True

    def card(self, given: Given, picture_px: tuple[int, int] | None = None) -> Card:
        inside = self.inside(given)
        card = read_card(inside, picture_px)
        if "config.json" in given.documents or is_beit(_vit(card)):
            return card
        # All of them were trained and tested on ImageNet's statistics, with the centre 224 of 256.
        known = replace(card.preprocessing, mean=IMAGENET_MEAN, std=IMAGENET_STD, crop_fraction=0.875)
        return replace(card, preprocessing=known)

    def rules(self, card: Card) -> list[Rule]:
        inner = [*timm_rules(card), *self.further(_vit(card))]
        return [*(_prefixed(rule, self.prefix) for rule in inner), aside(self.besides)]

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


def _vit(card: Card) -> ViTSettings:
    if not isinstance(card.model, ViTSettings):
        raise UserError("the layouts of DeiT, DINO, MAE and BEiT have no place for a ResNet")
    return card.model


def _prefixed(rule: Rule, prefix: str) -> Rule:
    return replace(rule, theirs=tuple(prefix + name for name in rule.theirs))


DINO_BESIDES = rf"{TRAINING}|student\.|dino_loss\.|teacher\.(module\.)?head\."

FORMATS: tuple[Wrapped, ...] = (
    Beit("beit", "BEiT's own, with its index tables", "model."),
    Beit("beit-bare", "the same without the dict around it, as early timm", ""),
    Mae("mae", "MAE's own: pre-training with its decoder, or fine-tuned", "model."),
    Mae("mae-bare", "the same without the dict around it", ""),
    Wrapped("dino", "DINO's own training checkpoint: the teacher", "teacher.backbone.", DINO_BESIDES),
    Wrapped(
        "dino-student",
        "DINO's own, where it holds a student alone",
        "student.module.backbone.",
        rf"{TRAINING}|dino_loss\.|student\.module\.head\.",
    ),
    Wrapped("deit", "DeiT's own, with and without distillation token", "model."),
)
