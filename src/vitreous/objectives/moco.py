"""MoCo v3 (Chen, Xie and He 2021): the queries of a learner find their keys, which a slow copy of it computes.

Unlike earlier versions, it has no queue: the keys of a large batch are enough (section 3).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.batch import Batch
from vitreous.models.base import Encoder
from vitreous.nn.gather import gather, world
from vitreous.nn.tokens import PatchEmbedding
from vitreous.objectives.base import Objective
from vitreous.objectives.checks import check_counts, check_positive, check_shares
from vitreous.objectives.collapse import collapsed, spread
from vitreous.objectives.contrast import products
from vitreous.objectives.heads import projector
from vitreous.objectives.momentum import Momentum, ramp
from vitreous.objectives.two_views import two_views


@dataclass(frozen=True, kw_only=True)
class MoCoV3Settings:
    hidden: int = 4096  # width of the hidden layers of projector and predictor
    out: int = 256  # width of queries and keys
    temperature: float = 0.2  # what similarities are divided by: the lower, the more the nearest pictures count
    momentum: float = 0.99  # share of its weights that the slow copy keeps per step at the start; it rises to 1
    freeze_patches: bool = True  # keep a ViT's patch embedding as initialised: training is more stable (section 4.2)

    def build(self, encoder: Encoder, classes: tuple[str, ...]) -> "MoCoV3":
        check_counts(self, "hidden", "out")
        check_positive(self, "temperature")
        check_shares(self, "momentum")
        if self.freeze_patches:
            freeze_patches(encoder)
        # Section 4.1: every layer of both has batch norm, including the last.
        head = projector(encoder.width, self.hidden, self.hidden, self.out, norm_last=True)
        predictor = projector(self.out, self.hidden, self.out, norm_last=True)
        return MoCoV3(encoder, head, predictor, self.temperature, self.momentum)


def freeze_patches(encoder: Encoder) -> None:
    """Freezes the patch embedding, which is in the first stage. A hybrid embeds patches of a map, later, and a ResNet
    has none: nothing of these is frozen."""
    for part in encoder.stages()[0].modules():
        if isinstance(part, PatchEmbedding):
            part.requires_grad_(False)


class MoCoV3(Objective):
    """The encoder that remains is the learner's, as in the paper, not that of its slow copy."""

    across_samples = True

    def __init__(
        self, encoder: Encoder, head: nn.Module, predictor: nn.Module, temperature: float, momentum: float
    ) -> None:
        super().__init__()
        self.encoder, self.projector, self.predictor = encoder, head, predictor
        self.key_encoder, self.key_projector = Momentum(encoder), Momentum(head)
        self.temperature, self.momentum = temperature, momentum

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        views = two_views(batch, "MoCo v3")
        features = self.encoder(views).pooled  # (2 B, D)
        # The heads see one view at a time: their batch norms are over the pictures, as in the paper's pseudocode.
        queries = [self.predictor(self.projector(view)) for view in features.chunk(2)]
        keys = [self.key_projector(view) for view in self.key_encoder(views).pooled.chunk(2)]
        first, second = (info_nce(q, k, self.temperature) for q, k in zip(queries, reversed(keys), strict=True))
        # Algorithm 1: times 2 tau, so that the gradient hardly depends on the temperature.
        return {"loss": 2 * self.temperature * (first + second)} | spread(features[: len(batch)])

    def after_step(self, progress: Tensor) -> None:
        keep = ramp(self.momentum, 1.0, progress)
        self.key_encoder.follow(self.encoder, keep)
        self.key_projector.follow(self.projector, keep)

    def concern(self, numbers: Mapping[str, float]) -> str | None:
        return collapsed(
            numbers,
            "a learning rate that is too high, a warm-up that is too short, patches that are not frozen "
            "(objective.freeze_patches), or batches of few pictures",
        )


def info_nce(queries: Tensor, keys: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of finding each query's key among the keys of all ranks (equation 1). Both: (B, D)."""
    wanted, offered = (F.normalize(x.float(), dim=1) for x in (queries, keys))
    logits = products(wanted, gather(offered)) / temperature  # (B, ranks x B)
    own = world()[0] * len(queries) + torch.arange(len(queries), device=queries.device)
    return F.cross_entropy(logits, own)
