"""Everything that inspection finds in one encoder, for some pictures: what the verb, the report and the server show."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.display.words import counted
from vitreous.errors import UserError
from vitreous.inspection.attention import attention_from
from vitreous.inspection.distance import NUM_PICTURES, AttentionDistances, attention_distances
from vitreous.inspection.filters import FilterComponents, filter_components
from vitreous.inspection.layout import attention_layers, numbered
from vitreous.inspection.positions import has_biases, offset_biases, position_similarity
from vitreous.inspection.receptive import ReceptiveFields, receptive_fields
from vitreous.inspection.rollout import can_roll, check_rolls, rollout
from vitreous.models.layout import AttentionLayer, Box, Layout, Token

Method = Literal["rollout", "product", "raw"]
BATCH_SIZE = 8
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Look:
    """What of the attention is looked at."""

    token: Token = None  # that looks: a prefix token, a patch (row, column) of the layer, or none: what is pooled
    method: Method | None = None  # product: without the residual's share; raw: one layer; none: rollout where it can be
    layer: int = -1  # raw: which (1 is the first, -1 the last); also the one whose heads are shown
    head: int | None = None  # raw: which (1 is the first); none: the mean of all

    def layer_of(self, depth: int) -> int:
        return numbered(self.layer, depth)

    def at(self, encoder: nn.Module) -> "Look":
        """The same, with the method that suits the model where none was asked for."""
        return self if self.method else replace(self, method="rollout" if can_roll(encoder) else "raw")

    def check(self, encoder: nn.Module) -> None:
        """An error for what the model does not have."""
        layers = attention_layers(encoder)
        layer = layers[self.layer_of(len(layers)) - 1]
        layer.looking.rows(self.token)
        if self.head is not None and not 1 <= self.head <= layer.heads:
            raise UserError(f"no head {self.head}: {layer.name} has heads 1 to {layer.heads}")
        if self.at(encoder).method != "raw":
            check_rolls(encoder)

    def title(self, layers: list[AttentionLayer]) -> str:
        """What it is, in words for a figure."""
        layer = layers[self.layer_of(len(layers)) - 1]
        place = layer.looking
        if isinstance(self.token, tuple):
            who = f"patch {self.token}"
        elif self.token is None and place.pool == "mean":
            who = "mean of the patches"
        else:
            who = f"prefix token {self.token}" if self.token else "class token"
        if self.method != "raw":
            through = "plain product of" if self.method == "product" else "rollout through"
            return f"{who}, {through} {counted(len(layers), 'layer')}"
        whose = "mean of heads" if self.head is None else f"head {self.head}"
        return ", ".join(filter(None, [who, layer.name, layer.grouped, whose]))


@dataclass(frozen=True, kw_only=True)
class Attention:
    """What is looked at, of the pictures to show."""

    look: Look
    layers: list[AttentionLayer]  # all of the model's
    maps: Tensor  # (S, h, w): what `look` asked for
    heads: tuple[Tensor, ...]  # (S, heads, h, w) of every layer: the same token, or the one at its place

    @property
    def title(self) -> str:
        return self.look.title(self.layers)

    @property
    def layer(self) -> int:
        """The one that is looked at, or whose heads are shown: 1 is the first."""
        return self.look.layer_of(len(self.layers))

    @property
    def seen(self) -> Layout:
        """Where the cells of `maps` lie."""
        return self.layers[self.layer - 1].seen

    @property
    def patch_px(self) -> Box | None:
        """Of the patch that looks, where it is one."""
        if not isinstance(self.look.token, tuple):
            return None
        place = self.layers[self.layer - 1].looking
        return place.box_px(torch.tensor([place.rows(self.look.token).start - place.num_prefix]))

    @property
    def window_px(self) -> Box | None:
        """What the patch that looks can see, where that is a window of the picture."""
        layer, token = self.layers[self.layer - 1], self.look.token
        if not isinstance(token, tuple) or not layer.grouped:
            return None
        return layer.seen.box_px(layer.seen_from(layer.looking.rows(token).start) - layer.seen.num_prefix)


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Of each: or a line that says why there is none."""

    attention: Attention | str
    distances: AttentionDistances | str
    filters: FilterComponents | str
    positions: Tensor | str  # (h, w, h, w) similarities of absolute positions
    biases: Tensor | None  # (heads, 2h - 1, 2w - 1), in models that have these instead
    receptive: ReceptiveFields | str

    def arrays(self) -> dict[str, Any]:
        """All numbers, for `np.savez`."""
        found: dict[str, Tensor | None] = {
            "distances_px": None if isinstance(self.distances, str) else self.distances.per_picture,
            "filters": None if isinstance(self.filters, str) else self.filters.filters,
            "filters_explained": None if isinstance(self.filters, str) else self.filters.explained,
            "position_similarity": None if isinstance(self.positions, str) else self.positions,
            "offset_biases": self.biases,
        }
        if not isinstance(self.attention, str):
            found |= _attention_arrays(self.attention)
        if not isinstance(self.receptive, str):
            fields = self.receptive.fields
            found |= {f"receptive_{one.name.replace(' ', '_')}": one.field for one in fields}
        return {name: np.asarray(value) for name, value in found.items() if value is not None}


def _attention_arrays(found: Attention) -> dict[str, Tensor | None]:
    place = found.seen
    same = len({each.shape for each in found.heads}) == 1
    heads: dict[str, Tensor | None] = (
        {"heads": torch.stack(found.heads, dim=1)}  # (S, layers, heads, h, w)
        if same
        else {f"heads_layer_{number}": each for number, each in enumerate(found.heads, start=1)}
    )
    return heads | {
        "maps": found.maps,
        "grid": torch.tensor(place.grid),
        "picture_px": torch.tensor(place.picture_px),
        "pitch_px": torch.tensor(place.pitch_px),
        "num_prefix": torch.tensor(place.num_prefix),
    }


def look_inside(
    encoder: nn.Module, images: Tensor, look: Look | None = None, *, num_shown: int = 8, num: int = NUM_PICTURES
) -> Findings:
    """`images` (P, C, H, W) as the model takes them: the first `num_shown` are shown (0: none), distances are the mean
    of the first `num`."""
    if not len(images):
        raise UserError("there are no pictures to look at")

    def shown() -> Attention:
        if not num_shown:
            raise UserError("no picture was to be shown")
        return attention_shown(encoder, images[:num_shown], look)

    return Findings(
        attention=or_why(shown) if look is None else shown(),  # a request for a figure gets the reason if there is none
        distances=or_why(lambda: attention_distances(encoder, images, num)),
        filters=or_why(lambda: filter_components(encoder)),
        positions=or_why(lambda: position_similarity(encoder)),
        biases=offset_biases(encoder) if has_biases(encoder) else None,
        receptive=or_why(lambda: receptive_fields(encoder, images)),
    )


def attention_shown(encoder: nn.Module, images: Tensor, look: Look | None = None) -> Attention:
    look = look or Look()
    look.check(encoder)
    look, device = look.at(encoder), next(encoder.parameters()).device
    parts = [attention_of(encoder, part.to(device), look) for part in torch.split(images, BATCH_SIZE)]
    maps, heads = zip(*parts, strict=True)
    return Attention(
        look=look,
        layers=attention_layers(encoder),
        maps=torch.cat(maps),
        heads=tuple(torch.cat(each) for each in zip(*heads, strict=True)),
    )


def attention_of(encoder: nn.Module, images: Tensor, look: Look) -> tuple[Tensor, list[Tensor]]:
    """(B, h, w): what `look` asks for; and (B, heads, h, w) of every layer: the same token there."""
    found = attention_from(encoder, images, look.token, look.layer)
    heads = [found.maps(number)[:, :, 0].float().cpu() for number in found.layers]
    if look.at(encoder).method == "raw":
        chosen = heads[look.layer_of(len(heads)) - 1]
        return chosen.mean(dim=1) if look.head is None else chosen[:, look.head - 1], heads
    row = rollout(encoder, images, look.token, residual=look.method != "product")
    return found.described[0].seen.as_map(row).float().cpu(), heads


def or_why(find: Callable[[], T]) -> T | str:
    try:
        return find()
    except UserError as error:
        return str(error)
