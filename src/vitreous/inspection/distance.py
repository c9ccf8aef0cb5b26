"""Mean attention distance: how far, in pixels of the picture, a head looks (paper, Figure 7 right)."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.inspection.attention import Seen, evaluating, reading
from vitreous.inspection.layout import attention_layers, plain
from vitreous.models.layout import AttentionLayer, Layout
from vitreous.platforms import widest

NUM_PICTURES = 128
BATCH_SIZE = 16


@dataclass(frozen=True, kw_only=True)
class AttentionDistances:
    layers: tuple[int, ...]  # 1 = the first block
    names: tuple[str, ...]  # of the layers
    per_picture: Tensor  # (P, layers, heads) float64, in pixels, on the CPU; NaN where a layer has fewer heads
    even: Tensor  # (layers,): were all patches that a token can see looked at alike

    @property
    def mean(self) -> Tensor:
        """(layers, heads), over all pictures."""
        return self.per_picture.mean(dim=0)

    @property
    def num_pictures(self) -> int:
        return len(self.per_picture)


def attention_distances(
    encoder: nn.Module, images: Tensor | Iterable[Tensor], num: int = NUM_PICTURES
) -> AttentionDistances:
    """Of every head in every layer, for the first `num` pictures: (P, C, H, W), or batches of such."""
    layers = attention_layers(encoder)
    if max(layer.seen.grid.cells for layer in layers) < 2:
        raise UserError("this model sees its picture as a single patch: there is no distance to attend over")
    device = next(encoder.parameters()).device
    apart = [pair_distances(layer).to(device) for layer in layers]
    most_heads = max(layer.heads for layer in layers)
    found: dict[int, Tensor] = {}
    parts: list[Tensor] = []

    def read(seen: Seen) -> None:
        blocks = [_sums(block, apart[seen.number - 1][:, rows]) for rows, block in seen.row_blocks()]
        mean = _ratio(torch.stack(blocks).sum(dim=0))
        found[seen.number] = nn.functional.pad(mean, (0, most_heads - seen.layer.heads), value=torch.nan)

    with evaluating(encoder), torch.no_grad(), reading(encoder, read):
        for batch in _batches(images, num):
            plain(encoder).forward(batch.to(device))
            parts.append(torch.stack([found[number] for number in sorted(found)], dim=1).cpu())  # (B, layers, heads)
    if not parts:
        raise UserError("there are no pictures to measure attention distances on")
    return AttentionDistances(
        layers=tuple(range(1, len(layers) + 1)),
        names=tuple(layer.name for layer in layers),
        per_picture=torch.cat(parts),
        even=torch.stack([_even(each) for each in apart]).cpu(),
    )


def pair_distances(layer: AttentionLayer) -> Tensor:
    """(groups, q, k): from the centre of each patch that looks to that of each that is seen, in pixels of the picture.
    NaN where either is a prefix token or padding, or where one cannot see the other: such pairs have no distance."""
    places, others = _centres(layer.looking, layer.queries), _centres(layer.seen, layer.keys)
    found = torch.cdist(places, others, compute_mode="donot_use_mm_for_euclid_dist")
    return found if layer.hidden is None else found.masked_fill(layer.hidden, torch.nan)


def mean_distance(weights: Tensor, distances: Tensor) -> Tensor:
    """(B, groups, heads, q, k) whole attention matrices, (groups, q, k) -> (B, heads), in pixels.

    Prefix tokens and padding are removed, as those who look and as those who are seen; what remains of each row is
    scaled to sum to 1 again. Rows that look at these alone have no distance and are left out.
    """
    return _ratio(_sums(weights, distances))


def _centres(place: Layout, tokens: Tensor) -> Tensor:
    """(groups, n, 2), NaN for what is no patch."""
    table = torch.cat([torch.full((place.num_prefix, 2), torch.nan), place.centres_px()])
    return table[tokens].where(tokens[..., None] >= 0, torch.nan)


def _sums(weights: Tensor, distances: Tensor) -> Tensor:
    """(B, heads, 2): the sum of the rows' mean distances, and how many rows have one."""
    counts = ~distances.isnan()[:, None]
    patches = weights * counts
    totals = patches.sum(dim=-1)
    means = (patches * distances.nan_to_num()[:, None].to(patches.dtype)).sum(dim=-1)
    means = means / totals.clamp_min(torch.finfo(totals.dtype).tiny)
    counted, wide = totals > 0, widest(totals.device)
    sums = torch.stack([(means * counted).to(wide), counted.to(wide)], dim=-1)  # (B, groups, heads, r, 2)
    return sums.sum(dim=(1, 3))


def _ratio(sums: Tensor) -> Tensor:
    return sums[..., 0] / sums[..., 1]


def _even(distances: Tensor) -> Tensor:
    return mean_distance(torch.ones_like(distances)[None, :, None], distances)[0, 0]


def _batches(images: Tensor | Iterable[Tensor], num: int) -> Iterable[Tensor]:
    """The first `num` pictures, few at a time."""
    for batch in [images] if isinstance(images, Tensor) else images:
        for start in range(0, min(len(batch), num), BATCH_SIZE):
            yield batch[start : min(start + BATCH_SIZE, num)]
        num -= len(batch)
        if num <= 0:
            return
