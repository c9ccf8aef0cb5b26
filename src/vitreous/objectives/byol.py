"""BYOL (Grill et al. 2020): predict the output of a slow copy of oneself for another view. No picture is pushed away.

Nothing in the loss prevents all pictures from getting the same output; the predictor, the slow copy and the batch norms
do (section 3.2 and appendix F). So it is watched for.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.batch import Batch
from vitreous.models.base import Encoder
from vitreous.objectives.base import Objective
from vitreous.objectives.checks import check_counts, check_shares
from vitreous.objectives.collapse import collapsed, spread
from vitreous.objectives.heads import projector
from vitreous.objectives.momentum import Momentum, ramp
from vitreous.objectives.two_views import two_views


@dataclass(frozen=True, kw_only=True)
class BYOLSettings:
    hidden: int = 4096  # width of the hidden layers of projector and predictor
    out: int = 256  # width of the predicted vectors
    momentum: float = 0.996  # share of its weights that the slow copy keeps per step at the start; it rises to 1

    def build(self, encoder: Encoder, classes: tuple[str, ...]) -> "BYOL":
        check_counts(self, "hidden", "out")
        check_shares(self, "momentum")
        head = projector(encoder.width, self.hidden, self.out)
        predictor = projector(self.out, self.hidden, self.out)
        return BYOL(encoder, head, predictor, self.momentum)


class BYOL(Objective):
    """The encoder that remains is the learner's (the paper's online network), not its slow copy's (the target)."""

    across_samples = True  # through the batch norms

    def __init__(self, encoder: Encoder, head: nn.Module, predictor: nn.Module, momentum: float) -> None:
        super().__init__()
        self.encoder, self.projector, self.predictor = encoder, head, predictor
        self.target_encoder, self.target_projector = Momentum(encoder), Momentum(head)
        self.momentum = momentum

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        views = two_views(batch, "BYOL")
        features = self.encoder(views).pooled  # (2 B, D)
        # The heads see one view at a time: their batch norms are over the pictures.
        projected = [self.projector(view) for view in features.chunk(2)]
        predicted = [self.predictor(view) for view in projected]
        targets = [self.target_projector(view) for view in self.target_encoder(views).pooled.chunk(2)]
        first, second = (distance(f, t) for f, t in zip(predicted, reversed(targets), strict=True))
        numbers = spread(features[: len(batch)]) | {"projected_std": spread(projected[0])["feature_std"]}
        return {"loss": first + second} | numbers

    def after_step(self, progress: Tensor) -> None:
        keep = ramp(self.momentum, 1.0, progress)
        self.target_encoder.follow(self.encoder, keep)
        self.target_projector.follow(self.projector, keep)

    def concern(self, numbers: Mapping[str, float]) -> str | None:
        causes = (
            "a learning rate that is too high, a target that follows too fast (raise objective.momentum), or batches "
            "of few pictures"
        )
        # All projections may be equal while the encoder, which then learns nothing, still tells pictures apart.
        projected = {"feature_std": numbers.get("projected_std", 1.0)}
        return collapsed(numbers, causes) or collapsed(projected, causes)


def distance(predicted: Tensor, targets: Tensor) -> Tensor:
    """The mean squared distance of the unit vectors (B, D), which is 2 - 2 cos (equation 2)."""
    return (2 - 2 * F.cosine_similarity(predicted.float(), targets.float(), dim=1)).mean()
