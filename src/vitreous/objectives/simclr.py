"""SimCLR (Chen et al. 2020): among all pictures of a batch, find the other view of the same one.

The encoder and a small projector are trained, and the projector is discarded: features before it are better (section
4.2).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models.base import Encoder
from vitreous.nn.gather import gather, world
from vitreous.objectives.base import Objective
from vitreous.objectives.collapse import collapsed, spread
from vitreous.objectives.heads import projector


@dataclass(frozen=True, kw_only=True)
class SimCLRSettings:
    hidden: int = 2048  # width of the projector's hidden layers
    layers: int = 2  # of the projector; SimCLR v2 has three (Chen et al. 2020, "Big self-supervised models")
    out: int = 128  # width of the vectors that are compared
    temperature: float = 0.1  # what similarities are divided by: the lower, the more the nearest pictures count

    def build(self, encoder: Encoder, classes: tuple[str, ...]) -> "SimCLR":
        check_widths(self.hidden, self.out)
        check_temperature(self.temperature)
        if self.layers < 1:
            raise UserError(f"layers is {self.layers}: the projector needs at least one")
        widths = (encoder.width, *(self.hidden,) * (self.layers - 1), self.out)
        return SimCLR(encoder, projector(*widths), self.temperature)


class SimCLR(Objective):
    across_samples = True

    def __init__(self, encoder: Encoder, head: nn.Module, temperature: float) -> None:
        super().__init__()
        self.encoder, self.projector, self.temperature = encoder, head, temperature

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        features = self.encoder(two_views(batch, "SimCLR")).pooled  # (2 B, D)
        loss = nt_xent(self.projector(features), self.temperature)
        return {"loss": loss} | spread(features[: len(batch)])

    def concern(self, numbers: Mapping[str, float]) -> str | None:
        return collapsed(
            numbers, "a learning rate that is too high, a temperature that is too high, or batches of few pictures"
        )


def nt_xent(projected: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of finding a view's partner among all other views of all ranks (equation 1). projected: (2 B, D),
    the first views of all pictures, then the second."""
    views = F.normalize(projected.float(), dim=1)
    logits = products(views, gather(views)) / temperature  # (2 B, ranks x 2 B)
    places = torch.arange(len(views), device=views.device)
    first = world()[0] * len(views)  # index of this rank's first view among all
    itself = (first + places)[:, None] == torch.arange(logits.shape[1], device=views.device)
    partner = first + places.roll(len(views) // 2)
    return F.cross_entropy(logits.masked_fill(itself, float("-inf")), partner)


# ---- What MoCo and BYOL need too


def two_views(batch: Batch, who: str) -> Tensor:
    """(2 B, C, h, w): the first view of every picture, then the second, so that the encoder runs once."""
    sizes = [f"{view.shape[-2]} x {view.shape[-1]}" for view in batch.views]
    if len(sizes) != 2 or sizes[0] != sizes[1]:
        raise UserError(
            f"{who} compares two views of the same size, but gets {', '.join(sizes)}: add one view of the model's own "
            "size to the augmentation (more_views)"
        )
    return torch.cat(batch.views)


def products(rows: Tensor, columns: Tensor) -> Tensor:
    """(N, D) and (M, D) -> (N, M), in float32 even under autocast: a temperature magnifies small differences."""
    with torch.autocast(rows.device.type, enabled=False):
        return rows @ columns.T


def check_widths(*widths: int) -> None:
    if min(widths) < 1:
        raise UserError(f"the heads of the objective have widths {', '.join(map(str, widths))}: all must be at least 1")


def check_temperature(temperature: float) -> None:
    if not temperature > 0:
        raise UserError(f"objective.temperature is {temperature}: it must be above 0")


def check_momentum(momentum: float) -> None:
    if not 0 <= momentum <= 1:
        raise UserError(f"objective.momentum is {momentum}: it must be from 0 to 1")
