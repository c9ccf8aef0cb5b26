"""The layers of attention of any encoder, and how its tokens lie on the picture."""

from typing import cast

from torch import nn

from vitreous.errors import UserError
from vitreous.models.base import Encoder
from vitreous.models.layout import AttentionLayer, Layout


def plain(encoder: nn.Module) -> Encoder:
    """The encoder itself, also where it was handed over compiled."""
    return cast(Encoder, getattr(encoder, "_orig_mod", encoder))


def attention_layers(encoder: nn.Module) -> list[AttentionLayer]:
    """An error for what has no attention."""
    layers = plain(encoder).attention_layers()
    if not layers:
        raise UserError("this model has no attention over patches: its receptive field shows what it depends on")
    return layers


def layout(encoder: nn.Module, layer: int = -1) -> Layout:
    """Of the tokens that look in a layer (1 is the first, -1 the last). In a plain ViT it is that of all layers."""
    layers = attention_layers(encoder)
    return layers[numbered(layer, len(layers)) - 1].looking


def numbered(layer: int, depth: int) -> int:
    """1 for the first layer, -1 for the last."""
    number = layer + depth + 1 if layer < 0 else layer
    if not 1 <= number <= depth:
        raise UserError(f"no layer {layer}: this model has layers 1 to {depth} (-1 is the last)")
    return number
