"""Logistic regression to the optimum, for probes, heads on frozen features, and the baseline on pixels."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.base import Source, Subset
from vitreous.data.splits import strata
from vitreous.errors import UserError

MOST_STEPS = 2000  # of L-BFGS


class NotConvergedError(UserError):
    """A fit that did not reach the optimum within its steps."""


def spread_out(source: Source, most: int) -> Source:
    """At most `most` pictures, spread evenly over each class."""
    if len(source) <= most:
        return source
    order = np.argsort(strata(source), kind="stable")
    return Subset(source, np.sort(order[np.linspace(0, len(order) - 1, most).round().astype(np.int64)]))


@dataclass(frozen=True)
class Pixels:
    values: Tensor  # (N, pixels), or other features
    labels: Tensor  # (N,); with several labels per picture (N, K), 1 for those that it has


def fit(
    data: Pixels,
    penalty: float,
    start: Tensor | None = None,
    tolerance: float = 1e-5,
    num_classes: int | None = None,  # None: as many as the labels name
    *,
    class_weights: Tensor | None = None,  # (K,) factors on the losses of the pictures of each class
) -> Tensor:
    """(pixels + 1, K) weights that minimise mean cross-entropy + penalty / 2 * |weights|^2 (the bias is free).
    Of several labels per picture, binary cross-entropies are summed over the classes."""
    num_classes = num_classes or int(data.labels.max()) + 1
    values = torch.cat([data.values, data.values.new_ones(len(data.values), 1)], dim=1)
    weights = values.new_zeros(values.shape[1], num_classes) if start is None else start
    if not values.isfinite().all():
        raise UserError("logistic regression: some features are not finite; has the model diverged?")
    # Correlated features make a long narrow valley, along which L-BFGS crawls. Steps are taken in other coordinates,
    # weights = turn @ moved, in which the curvature's upper bound (Boehning 1992) is isotropic.
    identity = torch.eye(values.shape[1]).to(values)
    counts = values.new_ones(len(values)) if class_weights is None else class_weights.to(values)[data.labels]
    bound = (values.T * counts) @ values / (4 * len(values)) + penalty * identity
    root = torch.linalg.cholesky(bound)
    turn: Tensor = torch.linalg.solve_triangular(root.T, identity, upper=True)
    turned = (turn.T @ values.T).T  # columns are contiguous, as the gradient reads them
    moved: Tensor = (root.T @ weights).requires_grad_()
    # The largest gradient entry below `tolerance` means converged; the objective is convex, so that is the optimum.
    # Back in the coordinates of the weights, a gradient is larger by at most the root of the bound's norm.
    longer = float(bound.abs().sum(dim=0).max().sqrt())
    solver = torch.optim.LBFGS(
        [moved],
        max_iter=MOST_STEPS,
        max_eval=2 * MOST_STEPS,
        history_size=20,
        tolerance_grad=tolerance / max(1.0, longer),
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        solver.zero_grad()
        losses = _losses(turned @ moved, data.labels)
        value = (counts * losses).mean() + penalty / 2 * (turn[:-1] @ moved).square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    solver.step(loss)  # type: ignore[no-untyped-call]
    loss()
    assert moved.grad is not None
    if not float((root @ moved.grad).abs().max()) <= tolerance:
        raise NotConvergedError(f"logistic regression with penalty {penalty:g} has not converged; try a larger one")
    return turn @ moved.detach()


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """(N,)"""
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels, reduction="none")
    return F.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none").sum(dim=1)
