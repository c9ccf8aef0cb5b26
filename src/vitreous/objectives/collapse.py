"""Collapse, which many objectives without labels reward: every picture gets the same output. How to notice it."""

from collections.abc import Mapping

import torch
from torch import Tensor

LEAST_STD = 0.1  # relative to features spread evenly over the sphere
LEAST_RANK = 1.2  # untrained ViTs start at 2 to 3, and healthy runs have been seen at 1.6


@torch.no_grad()
def spread(features: Tensor) -> dict[str, Tensor]:
    """How far the features (B, D) of a batch are from all being equal.

    feature_std: the standard deviation of the unit vectors' entries, times the root of D: about 1 if they are spread
    evenly, 0 if all are equal (Chen and He 2020, section 4.1). feature_rank: the effective number of directions, (sum
    of variances)^2 / sum of squared variances along the principal axes, computed without a decomposition, which would
    hold up the device.
    """
    unit = torch.nn.functional.normalize(features.detach().float(), dim=1)
    centred = unit - unit.mean(dim=0)
    # The smaller of D x D and B x B: both products have the same eigenvalues.
    with torch.autocast(centred.device.type, enabled=False):
        products = centred.T @ centred if centred.shape[1] <= centred.shape[0] else centred @ centred.T
    total, squares = products.diagonal().sum(), products.square().sum()
    return {
        "feature_std": (total / len(unit)).sqrt(),
        "feature_rank": total.square() / squares.clamp(min=torch.finfo(squares.dtype).tiny),
    }


def collapsed(numbers: Mapping[str, float], causes: str) -> str | None:
    """What to tell the user if the logged spread is too small. `causes`: the usual ones for the objective."""
    std, rank = numbers.get("feature_std", 1.0), numbers.get("feature_rank", float("inf"))
    if std < LEAST_STD:
        what = f"all pictures get almost the same features (their spread is {std:.3f}, where 1 is even)"
    elif rank < LEAST_RANK:
        what = f"the features use only {rank:.1f} directions"
    else:
        return None
    return f"the features are collapsing: {what}. Usual causes: {causes}"
