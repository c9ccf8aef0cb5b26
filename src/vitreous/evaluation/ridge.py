"""Regularised least squares in closed form, for any number of penalties at the cost of one.

Minimises |X W + b - Y|^2 + penalty |W|^2, summed over pictures, b free. One decomposition serves all penalties, and
gives the exact errors of leaving out one picture at a time (Allen 1974): the residual over 1 - leverage.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Linear:
    weights: Tensor  # (D, K) float64
    bias: Tensor  # (K,)

    def __call__(self, values: Tensor) -> Tensor:
        """(N, D) -> (N, K)."""
        return values.to(self.weights.dtype) @ self.weights + self.bias


class LeastSquares:
    """A decomposed problem: `fit` and `left_out` are then cheap for any penalty."""

    def __init__(self, values: Tensor, targets: Tensor) -> None:
        """values (N, D), targets (N, K)."""
        values, self.targets = values.double(), targets.double()
        self.centre = values.mean(dim=0)
        self.level = self.targets.mean(dim=0)
        values, wanted = values - self.centre, self.targets - self.level
        # Both ways give X = U S V^T. For many pictures X^T X is far cheaper to decompose, and exact enough: rounding
        # loses about 1e-16 of its largest square, well below any sensible penalty.
        if values.shape[0] > values.shape[1]:
            squares, right = torch.linalg.eigh(values.T @ values)  # rising
        else:
            _, sizes, right = torch.linalg.svd(values, full_matrices=False)  # falling
            squares, right = sizes.square(), right.T
        self.squares, self.right = squares.clamp(min=0), right  # S^2 (r,), V (D, r)
        self.rotated = values @ self.right  # U S (N, r)
        self.squared = self.rotated.square()
        self.seen = self.rotated.T @ wanted  # (r, K)

    @property
    def scale(self) -> float:
        """Mean squared length of a picture's features, centred: penalties as shares of it suit features of any size."""
        return float(self.squares.sum()) / len(self.targets)

    def fit(self, penalty: float) -> Linear:
        weights = self.right @ self._shrunk(penalty)
        return Linear(weights, self.level - self.centre @ weights)

    def left_out(self, penalty: float) -> Tensor:
        """(N, K): the prediction for each picture by the fit to all others."""
        residuals = self.targets - self.level - self.rotated @ self._shrunk(penalty)
        leverage = self.squared @ (1 / (self.squares + penalty)) + 1 / len(self.targets)  # the bias is fitted too
        found: Tensor = self.targets - residuals / (1 - leverage)[:, None]
        return found

    def _shrunk(self, penalty: float) -> Tensor:
        shrunk: Tensor = self.seen / (self.squares + penalty)[:, None]
        return shrunk
