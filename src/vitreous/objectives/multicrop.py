"""What DINO and SwAV share: crops of several sizes through one encoder, prototypes, and a loss between the crops.

Multi-crop is SwAV's (Caron et al. 2020, section 3.3): two large, global crops of every picture, and some small, local
ones that cost little. The global ones give the targets; all crops must predict them.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.models.base import Encoder

GLOBAL = 2  # crops that give targets; they come first in a batch
EVEN = 0.99  # share of the largest possible entropy, above which targets say nothing


def pooled(encoder: Encoder, views: Sequence[Tensor]) -> Tensor:
    """(V x B, D): crop after crop. Consecutive crops of one size go through the encoder together."""
    if len(views) < GLOBAL or views[1].shape != views[0].shape:
        found = ", ".join(f"{height} x {width}" for height, width in (view.shape[-2:] for view in views))
        raise UserError(
            f"the views of a picture are {found}, but two of the model's own size must come first, then small crops: "
            "set them with --more_views"
        )
    encoder.check(views[0])
    groups: list[list[Tensor]] = []
    for view in views:
        if groups and groups[-1][0].shape == view.shape:
            groups[-1].append(view)
        else:
            groups.append([view])
    return torch.cat([encoder.features(torch.cat(group)).pooled for group in groups])


class Prototypes(nn.Module):
    """Cosines of features with learned directions. In float32: at a temperature of 0.04, a difference of 0.01
    matters."""

    def __init__(self, width: int, num: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num, width))
        nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, features: Tensor, frozen: Tensor | None = None) -> Tensor:
        """(B, D) -> (B, K). While the 0-d flag `frozen` is set, the directions learn nothing."""
        weight = self.weight if frozen is None else torch.where(frozen, self.weight.detach(), self.weight)
        with torch.autocast(features.device.type, enabled=False):
            return F.linear(F.normalize(features.float(), dim=1), F.normalize(weight.float(), dim=1))


def crossed(targets: Tensor, logits: Tensor) -> Tensor:
    """The mean cross-entropy over all pairs of a global crop's targets (2, B, K) and another crop's logits (V, B, K).
    No crop is compared with itself."""
    predicted = F.log_softmax(logits.float(), dim=-1)
    # A global crop learns from the other one, a local crop from both.
    both = targets.sum(dim=0, keepdim=True)
    wanted = torch.cat([targets.flip(0), both.expand(len(logits) - GLOBAL, -1, -1)])
    num_pairs = GLOBAL * (len(logits) - 1)
    return -(wanted * predicted).sum() / (num_pairs * logits.shape[1])
