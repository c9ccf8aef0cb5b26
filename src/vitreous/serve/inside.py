"""The attention of every layer and head on a picture, as bytes in the format that docs/SERVING.md describes."""

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.inspection.attention import Seen, reading
from vitreous.inspection.layout import attention_layers
from vitreous.inspection.rollout import Product, can_roll
from vitreous.models.base import Features
from vitreous.models.layout import AttentionLayer, Layout

MAX_ATTENTION_BYTES = 64_000_000
NO_ROLLOUT = "its layers have different queries and keys, or attend within windows, so they cannot be multiplied"


def looked_at(
    encoder: nn.Module, forward: Callable[[], Features]
) -> tuple[Features, dict[str, Any], dict[str, Tensor]]:
    """The features of one picture, and the attention of the pass that computed them, as JSON and arrays."""
    layers = attention_layers(encoder)
    averaged = _are_averaged(layers)
    product = Product(residual=True) if can_roll(encoder) else None
    wide: dict[str, Tensor] = {}  # of four bytes per value: they come first, so that all are aligned
    levels: dict[str, Tensor] = {}

    def read(seen: Seen) -> None:
        weights = seen.weights()[0].transpose(0, 1)  # (heads, groups, q, k)
        if product is not None:
            product.add(weights[:, 0].mean(dim=0))
        weights = weights.mean(dim=0, keepdim=True) if averaged else weights
        wide[f"scale_{seen.number}"], levels[f"weights_{seen.number}"] = quantised(weights)
        for name, tokens in (("queries", seen.layer.queries), ("keys", seen.layer.keys)):
            if not _in_order(tokens):
                wide[f"{name}_{seen.number}"] = tokens.to("cpu", torch.int32)

    with reading(encoder, read):
        features = forward()
    if product is not None:
        assert product.value is not None
        wide["rollout_scale"], levels["rollout"] = quantised(product.value)
    header = {
        "layers": [described_layer(layer) | ({"heads": 1} if averaged else {}) for layer in layers],
        "heads_averaged": averaged,
        "no_rollout": None if product is not None else NO_ROLLOUT,
    }
    return features, header, wide | levels


def _are_averaged(layers: list[AttentionLayer]) -> bool:
    """Whether all heads together are too large to send. Raises UserError if their means are, too."""
    if sum(layer.num_weights for layer in layers) <= MAX_ATTENTION_BYTES:
        return False
    if sum(layer.num_weights // layer.heads for layer in layers) > MAX_ATTENTION_BYTES:
        num = max(layer.looking.num_tokens for layer in layers)
        raise UserError(f"the attention of {num} tokens in {len(layers)} layers is too large to send")
    return True


def _in_order(tokens: Tensor) -> bool:
    return len(tokens) == 1 and torch.equal(tokens[0].cpu(), torch.arange(tokens.shape[1]))


def described_layer(layer: AttentionLayer) -> dict[str, Any]:
    return {
        "name": layer.name,
        "heads": layer.heads,
        "grouped": layer.grouped,
        "looking": described_layout(layer.looking),
        "seen": described_layout(layer.seen),
    }


def described_layout(place: Layout) -> dict[str, Any]:
    return {
        "grid": list(place.grid),
        "prefix": place.num_prefix,
        "patch_px": list(place.pitch_px),
        "pool": place.pool,
    }


def quantised(weights: Tensor) -> tuple[Tensor, Tensor]:
    """The largest value of each row (..., N), and the rows as bytes, in which 255 is that value."""
    scale = weights.amax(dim=-1)
    return scale.cpu(), (weights / scale.unsqueeze(-1) * 255).round().to(torch.uint8).cpu()


def packed(header: dict[str, Any], arrays: dict[str, Tensor]) -> bytes:
    """Four bytes (little-endian) with the length of the JSON; the JSON, padded to a multiple of four; then the arrays.
    The JSON lists the arrays' names, types, shapes and offsets from its end."""
    places, offset = [], 0
    for name, values in arrays.items():
        dtype = str(values.dtype).removeprefix("torch.")
        places.append({"name": name, "dtype": dtype, "shape": list(values.shape), "offset": offset})
        offset += values.numel() * values.element_size()
    text = json.dumps({**header, "arrays": places}).encode()
    text += b" " * (-len(text) % 4)
    data = [values.contiguous().numpy().tobytes() for values in arrays.values()]
    return b"".join([len(text).to_bytes(4, "little"), text, *data])
