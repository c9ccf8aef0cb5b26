"""Everything that inspection finds in one encoder, for some pictures: what the verb, the report and the server show."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.inspection.attention import attention, numbered
from vitreous.inspection.distance import NUM_PICTURES, AttentionDistances, attention_distances
from vitreous.inspection.filters import FilterComponents, filter_components
from vitreous.inspection.layout import Layout, Token, layout, transformer
from vitreous.inspection.positions import has_biases, offset_biases, position_similarity
from vitreous.inspection.rollout import rollout

Method = Literal["rollout", "product", "raw"]
BATCH_SIZE = 8
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Look:
    """What of the attention is looked at."""

    token: Token = None  # that looks: a prefix token, a patch (row, column), or none: what is pooled
    method: Method = "rollout"  # product: without the residual's share; raw: the weights of one layer
    layer: int = -1  # raw: which (1 is the first, -1 the last); also the one whose heads are shown
    head: int | None = None  # raw: which (1 is the first); none: the mean of all

    def layer_of(self, depth: int) -> int:
        return numbered(self.layer, depth)

    def title(self, place: Layout, depth: int) -> str:
        """What it is, in words for a figure."""
        if isinstance(self.token, tuple):
            who = f"patch {self.token}"
        elif self.token is None and place.pool == "mean":
            who = "mean of the patches"
        else:
            who = f"prefix token {self.token}" if self.token else "class token"
        if self.method != "raw":
            return f"{who}, {'rollout through' if self.method == 'rollout' else 'plain product of'} {depth} layers"
        return f"{who}, layer {self.layer_of(depth)}, " + (
            "mean of heads" if self.head is None else f"head {self.head}"
        )


@dataclass(frozen=True, kw_only=True)
class Findings:
    look: Look
    layout: Layout
    maps: Tensor  # (S, h, w): what `look` asked for, of the pictures to show
    heads: Tensor  # (S, layers, heads, h, w): the same token in every layer and head
    distances: AttentionDistances | str  # here and below: or a line that says why there is none
    filters: FilterComponents | str
    positions: Tensor | str  # (h, w, h, w) similarities of absolute positions
    biases: Tensor | None  # (heads, 2h - 1, 2w - 1), in models that have these instead

    def arrays(self) -> dict[str, Any]:
        """All numbers, for `np.savez`."""
        place = self.layout
        found: dict[str, Tensor | None] = {
            "maps": self.maps,
            "heads": self.heads,
            "distances_px": None if isinstance(self.distances, str) else self.distances.per_picture,
            "filters": None if isinstance(self.filters, str) else self.filters.filters,
            "filters_explained": None if isinstance(self.filters, str) else self.filters.explained,
            "position_similarity": None if isinstance(self.positions, str) else self.positions,
            "offset_biases": self.biases,
            "grid": torch.tensor(place.grid),
            "picture_px": torch.tensor(place.picture_px),
            "pitch_px": torch.tensor(place.pitch_px),
            "num_prefix": torch.tensor(place.num_prefix),
        }
        return {name: np.asarray(value) for name, value in found.items() if value is not None}


def look_inside(
    encoder: nn.Module, images: Tensor, look: Look | None = None, *, num_shown: int = 8, num: int = NUM_PICTURES
) -> Findings:
    """`images` (P, C, H, W) as the model takes them: the first `num_shown` are shown, distances are the mean of the
    first `num`."""
    look, place = look or Look(), layout(encoder)
    if not len(images):
        raise UserError("there is not one picture to look at")
    device = next(transformer(encoder).parameters()).device
    parts = [attention_of(encoder, part.to(device), look) for part in torch.split(images[:num_shown], BATCH_SIZE)]
    maps, heads = (torch.cat(each) for each in zip(*parts, strict=True))
    return Findings(
        look=look,
        layout=place,
        maps=maps,
        heads=heads,
        distances=_or_why(lambda: attention_distances(encoder, images, num)),
        filters=_or_why(lambda: filter_components(encoder)),
        positions=_or_why(lambda: position_similarity(encoder)),
        biases=offset_biases(encoder) if has_biases(encoder) else None,
    )


def attention_of(encoder: nn.Module, images: Tensor, look: Look) -> tuple[Tensor, Tensor]:
    """(B, h, w): what `look` asks for; and (B, layers, heads, h, w): the same token in every layer and head."""
    place = layout(encoder)
    rows = None if look.token is None else place.rows(look.token)
    found = attention(encoder, images, rows=rows)
    heads = torch.stack([weights[:, :, 0] for weights in found.weights], dim=1)  # (B, layers, heads, N)
    if look.method == "raw":
        row = _of_head(heads[:, look.layer_of(heads.shape[1]) - 1], look.head)
    else:
        row = rollout(encoder, images, look.token, residual=look.method == "rollout")
    return place.as_map(row).float().cpu(), place.as_map(heads).float().cpu()


def _or_why(find: Callable[[], T]) -> T | str:
    try:
        return find()
    except UserError as error:
        return str(error)


def _of_head(weights: Tensor, head: int | None) -> Tensor:
    if head is None:
        return weights.mean(dim=1)
    if not 1 <= head <= weights.shape[1]:
        raise UserError(f"no head {head}: this model's layers have heads 1 to {weights.shape[1]}")
    return weights[:, head - 1]
