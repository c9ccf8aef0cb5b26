"""The effective receptive field (Luo et al. 2016): which pixels a place of a map depends on, by gradients.

It is asked of every family alike, with attention or without: of the place in the middle of each map along the way, how
much would it change if a pixel did? What is seen in principle may be the whole picture; this is what counts in fact.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitreous import keys as K
from vitreous.errors import UserError
from vitreous.inspection.attention import evaluating
from vitreous.inspection.layout import plain

NUM_PICTURES = 16
BATCH_SIZE = 8


@dataclass(frozen=True, kw_only=True)
class ReceptiveField:
    name: str  # of the map: "stage 2", "layer 6"
    cell: tuple[int, int]  # of the map, whose field this is: row, column
    field: Tensor  # (H, W) float64: the gradient at each pixel, relative to the largest

    @property
    def centre_px(self) -> tuple[float, float]:
        """Of the field, in the picture: down, right. Where kernels overlap it is not that of the cell's own square. By
        squares, so that the little which falls everywhere does not draw it to the middle of the picture."""
        energy = self.field.square()
        down, right = (
            float((energy.sum(dim=1 - axis) * (torch.arange(side) + 0.5)).sum() / energy.sum().clamp_min(1e-300))
            for axis, side in enumerate(self.field.shape)
        )
        return down, right

    def side_px(self, share: float = 0.5) -> int:
        """Of the smallest square around the centre that holds this share of the gradient; it may reach over an edge."""
        away = [
            (torch.arange(side) + 0.5 - at).abs() for side, at in zip(self.field.shape, self.centre_px, strict=True)
        ]
        reach = torch.maximum(away[0][:, None], away[1]).flatten()
        order = reach.argsort(stable=True)
        held = self.field.flatten()[order].cumsum(dim=0)
        first = int(torch.searchsorted(held, share * held[-1]))
        return round(2 * float(reach[order[min(first, len(order) - 1)]]) + 1)  # to the far edge of the pixel


@dataclass(frozen=True, kw_only=True)
class ReceptiveFields:
    fields: tuple[ReceptiveField, ...]  # shallow to deep
    num_pictures: int


def receptive_fields(encoder: nn.Module, images: Tensor, num: int = NUM_PICTURES) -> ReceptiveFields:
    """Of the middle of every map along the way, over the first `num` of (P, C, H, W) pictures."""
    if not len(images):
        raise UserError("there are no pictures to compute gradients for")
    images = images[:num]
    energies: dict[str, Tensor] = {}
    cells: dict[str, tuple[int, int]] = {}
    with torch.inference_mode(False), torch.enable_grad(), evaluating(encoder):
        for start in range(0, len(images), BATCH_SIZE):
            numbers = torch.arange(start, min(start + BATCH_SIZE, len(images)))
            for name, (cell, energy) in _energies(encoder, images[numbers], numbers).items():
                energies[name] = energies.get(name, torch.zeros(())) + energy
                cells[name] = cell
    fields = {name: energy.sqrt() for name, energy in energies.items()}
    found = [
        ReceptiveField(name=name, cell=cells[name], field=field / field.max().clamp_min(1e-300))
        for name, field in fields.items()
    ]
    return ReceptiveFields(fields=tuple(found), num_pictures=len(images))


def _energies(encoder: nn.Module, images: Tensor, numbers: Tensor) -> dict[str, tuple[tuple[int, int], Tensor]]:
    """Of each map, the cell in its middle, and (H, W): squared gradients, summed over colours and pictures.

    A map has many channels. Their sum would not do: after a norm it is a constant. A random sign for each makes the
    expected square that of all channels together; every picture draws its own.
    """
    like = next(encoder.parameters(), images)
    pixels = images.detach().clone().to(like.device, like.dtype).requires_grad_()
    found = {}
    for name, each in plain(encoder).depth_maps(pixels).items():
        row, column = (side // 2 for side in each.shape[-2:])
        middle = each[:, :, row, column]
        chances = K.uniform(K.sample_keys(0, 0, numbers), f"receptive.{name}", middle.shape[1])
        signs = (chances < 0.5).to(middle.device, middle.dtype) * 2 - 1
        slope = _gradient((middle * signs).sum(), pixels)
        found[name] = (row, column), slope.cpu().double().square().sum(dim=(0, 1))
    return found


def _gradient(asked: Tensor, pixels: Tensor) -> Tensor:
    slope: Tensor | None = None
    if asked.requires_grad:
        (slope,) = torch.autograd.grad(asked, [pixels], retain_graph=True, allow_unused=True)
    if slope is None:
        raise UserError("this model reads colours as words: no gradient reaches its pixels")
    return slope


def widths(found: Sequence[ReceptiveField], share: float = 0.5) -> str:
    """In words: how much of the picture each map depends on."""
    return ", ".join(f"{one.name}: {one.side_px(share)} px" for one in found)
