"""FLOPs of a forward pass: one multiply-add counts 2, attention products included."""

import copy

import torch
from torch.utils.flop_counter import FlopCounterMode

from vitreous.models.base import Encoder

TRAINING_FACTOR = 3  # forward once, and twice as much for the gradients of inputs and weights


def flops(encoder: Encoder, picture_px: tuple[int, int] | None = None) -> int:
    """FLOPs of one picture's forward pass, at the encoder's own picture size or another. Computes nothing."""
    shadow = _on_meta(encoder)
    if picture_px is not None and picture_px != encoder.picture_px:
        shadow.resize(picture_px)
    images = torch.empty(1, shadow.channels, *shadow.picture_px, device="meta", dtype=_dtype(shadow))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        shadow(images)
    return int(counter.get_total_flops())


def training_flops(encoder: Encoder) -> int:
    """FLOPs of one picture's training step."""
    return TRAINING_FACTOR * flops(encoder)


def num_parameters(encoder: torch.nn.Module) -> int:
    """Learned numbers, each counted once."""
    return sum(parameter.numel() for parameter in encoder.parameters())


def _on_meta(encoder: Encoder) -> Encoder:
    """A copy that has shapes and no numbers."""
    memo: dict[int, object] = {}
    for parameter in encoder.parameters():
        memo[id(parameter)] = torch.nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
    for buffer in encoder.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(encoder, memo).eval()


def _dtype(encoder: Encoder) -> torch.dtype:
    first = next(encoder.parameters(), None)
    return torch.float32 if first is None else first.dtype
