"""Logistic regression on pixels: the bar that a model has to clear on small pictures."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import UserError

MOST_STEPS = 2000  # of L-BFGS
PENALTIES = (3e-4, 1e-3, 3e-3)  # of the mean loss; the best lies inside on the embedded set


class NotConvergedError(UserError):
    """A fit that its steps did not bring to the optimum."""


@dataclass(frozen=True)
class Baseline:
    accuracy: float  # on the test part, with the penalty below, fitted on train alone
    penalty: float
    val_accuracies: tuple[tuple[float, float], ...]  # by penalty


def logistic_regression(train: "Pixels", val: "Pixels", test: "Pixels") -> Baseline:
    """The penalty is chosen on `val`; `test` is read once."""
    weights, scores = {}, {}
    start = None
    for penalty in sorted(PENALTIES, reverse=True):  # from strong to weak: each fit starts from the one before
        start = weights[penalty] = fit(train, penalty, start)
        scores[penalty] = accuracy(weights[penalty], val)
    best = max(scores, key=lambda penalty: scores[penalty])
    return Baseline(accuracy(weights[best], test), best, tuple(scores.items()))


@dataclass(frozen=True)
class Pixels:
    values: Tensor  # (N, pixels) in 0..1
    labels: Tensor  # (N,)

    @classmethod
    def of(cls, pictures: np.ndarray, labels: np.ndarray) -> "Pixels":
        """(N, H, W, 3) uint8. Grey pictures (three equal channels) count once."""
        grey = bool((pictures == pictures[..., :1]).all())
        chosen = pictures[..., :1] if grey else pictures
        values = torch.from_numpy(np.ascontiguousarray(chosen)).flatten(1).to(torch.float64) / 255
        return cls(values, torch.from_numpy(labels))


def fit(
    data: Pixels,
    penalty: float,
    start: Tensor | None = None,
    tolerance: float = 1e-5,
    num_classes: int | None = None,  # None: as many as the labels name
) -> Tensor:
    """(pixels + 1, K) weights that minimise mean cross-entropy + penalty / 2 * |weights|^2 (the bias is free)."""
    num_classes = num_classes or int(data.labels.max()) + 1
    values = torch.cat([data.values, data.values.new_ones(len(data.values), 1)], dim=1)
    weights = values.new_zeros(values.shape[1], num_classes) if start is None else start
    if not values.isfinite().all():
        raise UserError("logistic regression: some features are not finite; has the model diverged?")
    # Features that go together make a long narrow valley, along which L-BFGS crawls. Steps are taken in other
    # coordinates, weights = turn @ moved, in which the curvature's upper bound (Boehning 1992) is round.
    identity = torch.eye(values.shape[1]).to(values)
    bound = values.T @ values / (4 * len(values)) + penalty * identity
    root = torch.linalg.cholesky(bound)
    turn: Tensor = torch.linalg.solve_triangular(root.T, identity, upper=True)
    turned = (turn.T @ values.T).T  # columns lie together, as the gradient reads them
    moved: Tensor = (root.T @ weights).requires_grad_()
    # The largest gradient entry below `tolerance` means converged; the objective is convex, so that is the optimum.
    # Back in the coordinates of the weights, a gradient is longer by at most the root of the bound's norm.
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
        value = F.cross_entropy(turned @ moved, data.labels) + penalty / 2 * (turn[:-1] @ moved).square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    solver.step(loss)  # type: ignore[no-untyped-call]
    loss()
    assert moved.grad is not None
    if not float((root @ moved.grad).abs().max()) <= tolerance:
        raise NotConvergedError(f"logistic regression with penalty {penalty:g} has not converged; try a larger one")
    return turn @ moved.detach()


def accuracy(weights: Tensor, data: Pixels) -> float:
    answers = (data.values @ weights[:-1] + weights[-1]).argmax(dim=1)
    return float((answers == data.labels).double().mean())
