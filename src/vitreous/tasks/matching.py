"""Function matching (Beyer et al. 2022): a student learns to give its teacher's output for any view of any picture.

The teacher may be a classifier of other classes than the student's, or only an encoder, so pictures need no labels; if
they have some, a share of the loss can come from them. Both see the same view, cropped, flipped and mixed in the same
way ("consistent"), for many epochs ("patient"). The heads are discarded, and the encoder remains.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.batch import UNLABELLED, Batch
from vitreous.models.base import Encoder, Features
from vitreous.objectives.base import Objective
from vitreous.objectives.checks import check_positive, check_shares
from vitreous.objectives.taught import TaughtSettings
from vitreous.tasks.classify import softmax_loss
from vitreous.tasks.distill import teacher_loss


@dataclass(frozen=True, kw_only=True)
class FunctionMatchingSettings(TaughtSettings):
    match: Literal["logits", "features"] = "logits"  # as probabilities (divergence), or as directions (cosine)
    temperature: float = 2.0  # logits: those of both are divided by it
    label_share: float = 0.0  # share of the loss that comes from the labels
    label_smoothing: float = 0.1  # of the labels
    student_px: tuple[int, ...] = ()  # sides at which the student sees every view; none: only the view's own

    def build(self, encoder: Encoder, classes: tuple[str, ...], teacher: nn.Module) -> "FunctionMatching":
        """`teacher`: views in, logits (B, K) or Features out."""
        check_shares(self, "label_share")
        check_positive(self, "temperature")
        return FunctionMatching(encoder, teacher, classes, self)


class FunctionMatching(Objective):
    class_weights: Tensor

    def __init__(
        self, encoder: Encoder, teacher: nn.Module, classes: tuple[str, ...], settings: FunctionMatchingSettings
    ) -> None:
        super().__init__()
        self.encoder, self.teacher, self.settings = encoder, teacher, settings
        with torch.no_grad():
            shown = torch.zeros(1, encoder.channels, *encoder.picture_px, device=next(encoder.parameters()).device)
            width = outputs(teacher(shown)).shape[1]
        self.match_head = nn.Linear(encoder.width, width)
        self.label_head = nn.Linear(encoder.width, len(classes)) if settings.label_share else None
        # Unlabelled pictures learn from the teacher alone.
        weights = torch.tensor([float(name != UNLABELLED) for name in classes])
        self.register_buffer("class_weights", weights, persistent=False)

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        taught = outputs(self.teacher(batch.images))
        pooled = [self.encoder.features(view).pooled for view in self._sizes(batch.images)]
        matched = torch.stack([self._distance(self.match_head(some), taught) for some in pooled]).mean()
        if self.label_head is None:
            return {"loss": matched}
        labelled = torch.stack([self._label_loss(self.label_head(some), batch) for some in pooled]).mean()
        share = self.settings.label_share
        return {
            "loss": (1 - share) * matched + share * labelled,
            "teacher_loss": matched.detach(),
            "label_loss": labelled.detach(),
        }

    def _sizes(self, view: Tensor) -> list[Tensor]:
        """The view at every size at which the student sees it."""
        sizes = self.settings.student_px or (view.shape[-1],)
        return [
            view if view.shape[-2:] == (px, px) else F.interpolate(view, (px, px), mode="bilinear", antialias=True)
            for px in sizes
        ]

    def _distance(self, ours: Tensor, theirs: Tensor) -> Tensor:
        if self.settings.match == "logits":
            return teacher_loss(ours.float(), theirs.float(), self.settings.temperature).mean()
        return (1 - F.cosine_similarity(ours.float(), theirs.float(), dim=1)).mean()

    def _label_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        losses = softmax_loss(logits.float(), batch.targets, self.settings.label_smoothing, self.class_weights)
        return losses.mean()


def outputs(found: Tensor | Features) -> Tensor:
    """(B, D): the output of a teacher that is matched."""
    return found.pooled if isinstance(found, Features) else found
