"""Mean attention distance: how far, in pixels of the picture, a head looks (paper, Figure 7 right)."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.inspection.attention import Seen, evaluating, numbered_layers, reading
from vitreous.inspection.layout import Layout, layout, transformer
from vitreous.platforms import widest

NUM_PICTURES = 128
BATCH_SIZE = 16


@dataclass(frozen=True, kw_only=True)
class AttentionDistances:
    layers: tuple[int, ...]  # 1 = the first block
    per_picture: Tensor  # (P, layers, heads) float64, in pixels, on the CPU

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
    vit, place, layers = transformer(encoder), layout(encoder), numbered_layers(encoder, None)
    if place.grid.cells < 2:
        raise UserError("this model sees its picture as a single patch: there is no distance to attend over")
    device = next(vit.parameters()).device
    distances = patch_distances(place).to(device)
    found: dict[int, Tensor] = {}
    parts: list[Tensor] = []

    def read(seen: Seen) -> None:
        sums = [torch.zeros(len(seen.x), seen.module.heads, 2, device=device, dtype=widest(device))]
        start = 0
        for block in seen.row_blocks(place.patch_rows):
            stop = start + block.shape[2]
            sums.append(_sums(block[..., place.num_prefix :], distances[start:stop]))
            start = stop
        found[seen.layer] = _ratio(torch.stack(sums).sum(dim=0))

    with evaluating(encoder), torch.no_grad(), reading(encoder, read):
        for batch in _batches(images, num):
            vit.forward(batch.to(device))
            parts.append(torch.stack([found[layer] for layer in layers], dim=1).cpu())  # (B, layers, heads)
    if not parts:
        raise UserError("there is not one picture to measure attention distances on")
    return AttentionDistances(layers=layers, per_picture=torch.cat(parts))


def mean_distance(weights: Tensor, place: Layout) -> Tensor:
    """(B, heads, N, N) whole attention matrices -> (B, heads), in pixels.

    Prefix tokens are removed, as those who look and as those who are seen; what remains of each row is scaled to sum
    to 1 again. Rows that look at prefix tokens alone have no distance and are left out.
    """
    patches = weights[..., place.num_prefix :, place.num_prefix :]
    return _ratio(_sums(patches, patch_distances(place).to(weights.device)))


def patch_distances(place: Layout) -> Tensor:
    """(n, n): between the centres of patches, in pixels of the picture."""
    centres = place.centres_px()
    return torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")


def _sums(patches: Tensor, distances: Tensor) -> Tensor:
    """(B, heads, r, n), (r, n) -> (B, heads, 2): the sum of the rows' mean distances, and how many rows have one."""
    totals = patches.sum(dim=-1)
    means = (patches * distances.to(patches.dtype)).sum(dim=-1) / totals.clamp_min(torch.finfo(totals.dtype).tiny)
    counted, wide = totals > 0, widest(totals.device)
    return torch.stack([(means * counted).to(wide).sum(dim=-1), counted.to(wide).sum(dim=-1)], dim=-1)


def _ratio(sums: Tensor) -> Tensor:
    return sums[..., 0] / sums[..., 1]


def _batches(images: Tensor | Iterable[Tensor], num: int) -> Iterable[Tensor]:
    """The first `num` pictures, few at a time."""
    for batch in [images] if isinstance(images, Tensor) else images:
        for start in range(0, min(len(batch), num), BATCH_SIZE):
            yield batch[start : min(start + BATCH_SIZE, num)]
        num -= len(batch)
        if num <= 0:
            return
