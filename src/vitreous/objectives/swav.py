"""SwAV: crops of a picture predict each other's prototypes, over which all pictures are spread evenly (Caron et al.
2020)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models.base import Encoder
from vitreous.nn.gather import gather, world
from vitreous.objectives.base import Objective
from vitreous.objectives.checks import check_counts, check_positive, check_shares
from vitreous.objectives.collapse import collapsed, spread
from vitreous.objectives.heads import projector
from vitreous.objectives.multicrop import EVEN, GLOBAL, Prototypes, crossed, pooled

CAUSES = (
    "an epsilon that is too large (try 0.03; a loss that stays at the logarithm of the number of prototypes shows the "
    "same), a learning rate that is too high, more prototypes than pictures in a batch (give --objective.queue)"
)


@dataclass(frozen=True, kw_only=True)
class SwAVSettings:
    prototypes: int = 3000  # clusters; a few hundred suffice for small sets
    hidden: int = 2048  # width of the projection's hidden layer
    projection: int = 128  # width of the projection, in which pictures are compared with prototypes
    temperature: float = 0.1
    epsilon: float = 0.05  # softness of the codes; a larger one makes them more even
    iterations: int = 3  # of the Sinkhorn-Knopp algorithm
    queue: int = 0  # earlier pictures that also share the prototypes; for small batches (3840 in the paper)
    queue_fraction: float = 0.075  # share of the run after which the queue is used: 15 epochs of 200
    freeze_fraction: float = 0.01  # share of the run during which the prototypes are frozen: one epoch of 100

    def build(self, encoder: Encoder, classes: tuple[str, ...]) -> "SwAV":
        check_counts(self, "prototypes", "hidden", "projection", "iterations")
        check_positive(self, "temperature", "epsilon")
        check_shares(self, "queue_fraction", "freeze_fraction")
        if self.queue < 0:
            raise UserError(f"queue is {self.queue}: give a number of pictures, or 0 for none")
        return SwAV(encoder, self)


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float, iterations: int, weights: Tensor | None = None) -> Tensor:
    """Cosines (B, K) -> codes (B, K): each sample's shares, which sum to 1, such that every prototype gets about the
    same share of the batch (section 3.1, equations 3 to 5). `weights` (B,): of the samples in that share."""
    # In logarithms: at a small epsilon, the exponentials exceed the range of float32.
    codes = scores.float() / epsilon
    for _ in range(iterations):
        counted = codes if weights is None else codes + weights.log()[:, None]
        codes = (codes - counted.logsumexp(dim=0)).log_softmax(dim=1)
    return codes.exp()


class SwAV(Objective):
    """All other crops of a picture must predict the code of a global crop (section 3.1, equation 2)."""

    across_samples = True  # codes depend on the whole batch, and the projection normalises over it
    queue: Tensor  # (2, Q, D): projections of earlier pictures, the newest first; zeros until there are any

    def __init__(self, encoder: Encoder, settings: SwAVSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = encoder
        self.projector = projector(encoder.width, settings.hidden, settings.projection)
        self.prototypes = Prototypes(settings.projection, settings.prototypes)
        self.register_buffer("queue", torch.zeros(GLOBAL, settings.queue, settings.projection))

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        features = pooled(self.encoder, batch.views)  # (V x B, D)
        projections = F.normalize(self.projector(features).float(), dim=1)
        scores = self.prototypes(projections, progress < self.settings.freeze_fraction)
        scores = scores.view(len(batch.views), len(batch), -1)  # (V, B, K)
        placed = projections.view(len(batch.views), len(batch), -1)[:GLOBAL]
        codes = self.codes(scores[:GLOBAL], placed, progress)
        loss = crossed(codes, scores / self.settings.temperature)
        return {
            "loss": loss,
            "code_entropy": torch.special.entr(codes).sum(dim=-1).mean(),
            **spread(features[: len(batch)]),
        }

    @torch.no_grad()
    def codes(self, scores: Tensor, projections: Tensor, progress: Tensor) -> Tensor:
        """(2, B, K) from the global crops' scores and projections, evened out over all ranks and the queue."""
        s, (rank, _), size = self.settings, world(), scores.shape[1]
        own = slice(rank * size, (rank + 1) * size)
        found = []
        for view in range(GLOBAL):
            queued = self.queue[view]
            # Entries that do not exist yet, or are not used yet, have weight 0, so that shapes are fixed.
            there = (queued.square().sum(dim=1) > 0) & (progress >= s.queue_fraction)
            everyone = gather(scores[view].detach())
            weights = torch.cat([torch.ones_like(everyone[:, 0]), there.float()]) if s.queue else None
            everyone = torch.cat([everyone, self.prototypes(queued)]) if s.queue else everyone
            found.append(sinkhorn(everyone, s.epsilon, s.iterations, weights)[own])
            if s.queue:
                self._remember(view, gather(projections[view].detach()))
        return torch.stack(found)

    def _remember(self, view: int, projections: Tensor) -> None:
        kept = self.settings.queue - len(projections)
        if kept < 0:
            raise UserError(
                f"queue is {self.settings.queue}, less than the {len(projections)} pictures of a batch: give --"
                "objective.queue several times that, or 0"
            )
        self.queue[view].copy_(torch.cat([projections, self.queue[view, :kept]]))

    def concern(self, numbers: Mapping[str, float]) -> str | None:
        """Features that are all alike, whose codes are even too; or even codes, whatever the features."""
        alike = collapsed(numbers, CAUSES)
        entropy, largest = numbers["code_entropy"], math.log(self.settings.prototypes)
        if alike is not None or entropy <= EVEN * largest:
            return alike
        return (
            f"the codes collapse: they are even over all prototypes (entropy {entropy:.2f} of at most {largest:.2f}). "
            f"Usual causes: {CAUSES}"
        )
