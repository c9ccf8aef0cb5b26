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
from vitreous.models.base import Encoder
from vitreous.nn.gather import gather, world
from vitreous.objectives.base import Objective
from vitreous.objectives.checks import check_counts, check_positive
from vitreous.objectives.collapse import collapsed, spread
from vitreous.objectives.contrast import products
from vitreous.objectives.heads import projector
from vitreous.objectives.two_views import two_views


@dataclass(frozen=True, kw_only=True)
class SimCLRSettings:
    hidden: int = 2048  # width of the projector's hidden layers
    layers: int = 2  # of the projector; SimCLR v2 has three (Chen et al. 2020, "Big self-supervised models")
    out: int = 128  # width of the vectors that are compared
    temperature: float = 0.1  # what similarities are divided by: the lower, the more the nearest pictures count

    def build(self, encoder: Encoder, classes: tuple[str, ...]) -> "SimCLR":
        check_counts(self, "hidden", "layers", "out")
        check_positive(self, "temperature")
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
