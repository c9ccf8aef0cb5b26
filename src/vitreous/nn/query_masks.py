"""Masks by queries: what Mask2Former and EoMT return, how to sample a mask between its places, and how masks become a
class per pixel."""

from typing import NamedTuple

import torch
from torch import Tensor

from vitreous import platforms
from vitreous.nn.detr import wide
from vitreous.nn.kernels.deformable import weighted_samples

LEAST = 1e-7  # score of a class that no query sees
LANE = 32  # channels that are sampled together


class QueryMasks(NamedTuple):
    """The queries' predictions after each layer: a class or none, and a mask.

    A mask's logit at a place is the product of the query's embedding and the place's pixel: code that needs only some
    masks, or some points of them, computes only those.
    """

    logits: Tensor  # (L, B, Q, K + 1); the last is for none
    embeddings: Tensor  # (L, B, Q, C)
    pixels: Tensor  # (L, B, C, h, w), or (1, B, C, h, w) for all layers

    def masks(self) -> Tensor:
        """(B, Q, h, w): the logits of the last layer's masks."""
        pixels = self.pixels[-1]
        return (self.embeddings[-1] @ pixels.flatten(2)).view(pixels.shape[0], -1, *pixels.shape[-2:])


def inside(embeddings: Tensor, pixels: Tensor) -> Tensor:
    """(B, Q, D), (B, D, h, w) -> (B, Q, h * w) bool: the places of each query's mask."""
    return embeddings.detach() @ pixels.detach().flatten(2).to(embeddings.dtype) >= 0


def class_scores(said: QueryMasks) -> Tensor:
    """(B, K, h, w): the logarithm of each class's score, summed over the queries of the last layer (Cheng et al. 2021,
    MaskFormer, section 3.4)."""
    logits, masks = said.logits[-1], said.masks()
    with platforms.full_precision(masks.device):
        classes = logits.to(wide(logits.dtype)).softmax(dim=-1)[..., :-1]  # (B, Q, K)
        places = masks.to(wide(masks.dtype)).sigmoid().flatten(2)  # (B, Q, h * w)
        scores = classes.transpose(1, 2) @ places
        return scores.clamp(min=LEAST).log().view(masks.shape[0], -1, *masks.shape[-2:])


def pixels_at(pixels: Tensor, points: Tensor) -> Tensor:
    """(L, B, C, h, w), (B, P, 2) -> (L, B, P, C), interpolated between places; gradients are the same in every run.

    points: as (x, y), 0 to 1 from border to border. Beyond the centres of the outermost places, pixels are as at those
    centres, as in enlarged masks."""
    layers, batch, channels, *shape = pixels.shape
    half_x, half_y = 0.5 / shape[1], 0.5 / shape[0]
    points = torch.stack([points[..., 0].clamp(half_x, 1 - half_x), points[..., 1].clamp(half_y, 1 - half_y)], dim=-1)
    heads = channels // LANE if channels % LANE == 0 else 1
    values = pixels.flatten(0, 1).flatten(2).transpose(1, 2).view(layers * batch, -1, heads, channels // heads)
    places = points.to(wide(pixels.dtype)).repeat(layers, 1, 1)[:, :, None, None, None]
    places = places.expand(-1, -1, heads, -1, -1, -1)  # (L B, P, heads, 1, 1, 2)
    found = weighted_samples(values, [(shape[0], shape[1])], places, places.new_ones(places.shape[:-1]))
    return found.view(layers, batch, points.shape[1], channels)


def logits_at(embeddings: Tensor, sampled: Tensor) -> Tensor:
    """(L, B, Q, C), (L or 1, B, P, C) -> (L, B, Q, P)"""
    if sampled.shape[0] == embeddings.shape[0]:
        return embeddings @ sampled.transpose(-2, -1)
    num_layers, batch, queries, channels = embeddings.shape  # one product for all layers
    joined = embeddings.transpose(0, 1).reshape(batch, num_layers * queries, channels)
    found = joined @ sampled[0].transpose(-2, -1)  # (B, L Q, P)
    return found.view(batch, num_layers, queries, -1).transpose(0, 1)


def uncertain_first(logits: Tensor, known: Tensor, num: int) -> Tensor:
    """(..., P), (..., P) bool -> (..., num) int64: of the known points, those whose logits are nearest to 0."""
    doubts = torch.where(known, -logits.detach().abs(), -torch.inf)
    return doubts.topk(num, dim=-1, sorted=False).indices
