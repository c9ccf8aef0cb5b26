"""Sets of classes that contain the right one with a chosen probability, for any model (split conformal prediction).

A set holds all classes of at least some probability (LAC; Sadinle, Lei and Wasserman 2019): of all sets with the
guarantee P(right class in set) >= coverage, for pictures like the validation pictures, these are the smallest on
average. They need no random numbers, and `predict` applies them with one comparison. If the model is right more often
than the coverage requires, sets of uncertain pictures are empty, which means "none is likely".

The temperature, one number, is usually fitted on the same validation pictures, which weakens the guarantee by about one
picture.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous import settings
from vitreous.errors import UserError
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.metrics import Estimate, mean_estimate, wilson

COVERAGES = (0.9, 0.95, 0.99)
SLACK = 1e-6  # share by which a threshold is relaxed, so that float32 on another device gives the same sets


@dataclass(frozen=True)
class Sets:
    """Measured on test pictures."""

    coverage: float  # as requested
    threshold: float  # least probability of a class in the set
    measured: Estimate  # share of the sets that contain the right class; Wilson's interval
    expected_low: float  # 95 % of such measurements are between these, given the numbers of pictures
    expected_high: float
    mean_size: Estimate  # classes in a set; normal approximation
    empty: Estimate  # share of sets without a class; Wilson's interval
    sizes: tuple[int, ...]  # how many sets have 0, 1, 2 ... classes, up to the largest

    @property
    def holds(self) -> bool:
        """Whether coverage is not below what chance explains. More is fine: equal probabilities or tiny validation sets
        cause it."""
        return self.measured.value >= self.expected_low

    def to_json(self) -> Any:
        return settings.to_json(self)


def check_coverage(coverage: float) -> None:
    if not 0 < coverage < 1:
        raise UserError(f"coverage is {coverage}: it must be between 0 and 1, such as 0.9")


def fit_threshold(val: LabelledLogits, coverage: float, temperature: float = 1.0) -> float:
    """The threshold for sets of this coverage, with the correction for n pictures: the ceil((n + 1) coverage)-th best.

    If there are too few validation pictures for the coverage, every class belongs to the set.
    """
    check_coverage(coverage)
    right = val.probabilities(temperature).gather(1, val.one_label()[:, None])[:, 0]
    rank = math.ceil((len(val) + 1) * coverage - 1e-9)  # 10 * 0.9 is 9, which floating point exceeds by a hair
    if rank > len(val):
        return 0.0
    return float(right.sort(descending=True).values[rank - 1]) * (1 - SLACK)


def prediction_sets(found: LabelledLogits, threshold: float, temperature: float = 1.0) -> Tensor:
    """(N, K) bool: the classes in the set of every picture."""
    return found.probabilities(temperature) >= threshold


def measure_sets(val: LabelledLogits, test: LabelledLogits, coverage: float = 0.9, temperature: float = 1.0) -> Sets:
    """The threshold from validation pictures, and its result on test pictures."""
    labels = test.one_label()
    if not len(test):
        raise UserError("there are no pictures to score")
    threshold = fit_threshold(val, coverage, temperature)
    chosen = prediction_sets(test, threshold, temperature)
    sizes = chosen.sum(dim=1)
    low, high = expected_range(len(val), len(test), coverage)
    return Sets(
        coverage=coverage,
        threshold=threshold,
        measured=wilson(int(chosen.gather(1, labels[:, None]).sum()), len(test)),
        expected_low=low,
        expected_high=high,
        mean_size=mean_estimate(sizes, highest=float(chosen.shape[1])),
        empty=wilson(int((sizes == 0).sum()), len(test)),
        sizes=tuple(sizes.bincount().tolist()),
    )


def expected_range(num_val: int, num_test: int, coverage: float) -> tuple[float, float]:
    """The range of 95 % of measured coverages. The share of all pictures covered by sets from n validation pictures is
    Beta(r, n + 1 - r), r being the rank of the threshold, so the covered number of test pictures is beta-binomial."""
    rank = math.ceil((num_val + 1) * coverage - 1e-9)
    if rank > num_val:
        return 1.0, 1.0
    a, b = torch.tensor(rank, dtype=torch.float64), torch.tensor(num_val + 1 - rank, dtype=torch.float64)
    hits = torch.arange(num_test + 1, dtype=torch.float64)
    misses = num_test - hits
    chances = (
        (
            torch.lgamma(torch.tensor(num_test + 1.0, dtype=torch.float64))
            - torch.lgamma(hits + 1)
            - torch.lgamma(misses + 1)
        )
        + _log_beta(a + hits, b + misses)
        - _log_beta(a, b)
    )
    below = chances.exp().cumsum(dim=0)
    low, high = (int(torch.searchsorted(below, level)) for level in (0.025, 0.975))
    return low / num_test, min(high, num_test) / num_test


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
