"""Logistic regression on pixels: the bar that any model has to clear."""

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.base import Source, Subset
from vitreous.data.images import BadPicture
from vitreous.data.loader import EvalLoader
from vitreous.data.splits import strata
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError

MOST_STEPS = 2000  # of L-BFGS
PENALTIES = (1e-3, 3e-3, 1e-2, 3e-2)  # of the mean loss; the best lies inside on the embedded set
SIDE_PX = 32  # pictures are shrunk to this, as they are for a first look at any set
MOST_PICTURES = 4000  # that it is fitted to: bounded, as it is only a bar
ROUGHLY = 1e-3  # the largest entry of the gradient: accuracy stops changing long before it is 0
COMPONENTS = 192  # of the pixels that it is fitted to: those that change most


class NotConvergedError(UserError):
    """A fit that its steps did not bring to the optimum."""


@dataclass(frozen=True)
class Baseline:
    accuracy: float  # on the test part, with the penalty below, fitted on train alone
    penalty: float
    val_accuracies: tuple[tuple[float, float], ...]  # by penalty
    pictures: int = 0  # of train that it was fitted to
    px: int = SIDE_PX  # side of the pictures that it was shown


def logistic_regression(train: "Pixels", val: "Pixels", test: "Pixels") -> Baseline:
    """The penalty is chosen on `val`; `test` is read once."""
    fitted = FittedPixels.fit(train, val)
    return fitted.baseline(test)


class PixelRegression:
    """Logistic regression on small pictures of sources, within seconds for any number of pictures."""

    def __init__(self, train: Source, val: Source | None, *, most: int = MOST_PICTURES) -> None:
        self.px = min(SIDE_PX, _side(train))
        pixels = Pixels.read(spread_out(train, most), self.px)
        self.num_pictures = len(pixels.labels)
        self._turn = MainComponents(pixels.values, COMPONENTS)
        # Without a validation part its penalty goes by the pictures themselves, which favours it: it is the bar.
        judge = pixels if val is None else Pixels.read(spread_out(val, most), self.px)
        self._fitted = FittedPixels.fit(self._turn.of(pixels), self._turn.of(judge), ROUGHLY)
        self.val_accuracy = None if val is None else max(self._fitted.accuracies.values())

    def baseline(self, test: Source, *, most: int = MOST_PICTURES) -> Baseline:
        """Reads the test part."""
        found = self._fitted.baseline(self._turn.of(Pixels.read(spread_out(test, most), self.px)))
        return replace(found, pictures=self.num_pictures, px=self.px)


@dataclass(frozen=True)
class FittedPixels:
    weights: dict[float, Tensor]  # by penalty
    accuracies: dict[float, float]  # on validation pictures

    @classmethod
    def fit(cls, train: "Pixels", val: "Pixels", tolerance: float = 1e-5) -> "FittedPixels":
        weights: dict[float, Tensor] = {}
        start, num_classes = None, int(max(train.labels.max(), val.labels.max())) + 1
        for penalty in sorted(PENALTIES, reverse=True):  # from strong to weak: each fit starts from the one before
            start = weights[penalty] = fit(train, penalty, start, tolerance, num_classes)
        return cls(weights, {penalty: accuracy(found, val) for penalty, found in weights.items()})

    def baseline(self, test: "Pixels") -> Baseline:
        best = max(self.accuracies, key=lambda penalty: self.accuracies[penalty])
        return Baseline(accuracy(self.weights[best], test), best, tuple(self.accuracies.items()))


class MainComponents:
    """Of many pixels those combinations that change most: the rest costs time and tells little."""

    def __init__(self, values: Tensor, most: int) -> None:
        self.centre = values.mean(dim=0)
        self.components: Tensor | None = None
        if values.shape[1] > most:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                _, _, found = torch.svd_lowrank((values - self.centre).float(), q=min(most, len(values)), niter=2)
            self.components = found.double()

    def of(self, pixels: "Pixels") -> "Pixels":
        if self.components is None:
            return pixels
        return Pixels((pixels.values - self.centre) @ self.components, pixels.labels)


def _side(source: Source) -> int:
    """The shorter side of a picture of the source that can be read."""
    for index in range(len(source)):
        try:
            return int(min(source.read(index).shape[:2]))
        except BadPicture:
            continue
    return SIDE_PX


def spread_out(source: Source, most: int) -> Source:
    """So many pictures at most, evenly over each class."""
    if len(source) <= most:
        return source
    order = np.argsort(strata(source), kind="stable")
    return Subset(source, np.sort(order[np.linspace(0, len(order) - 1, most).round().astype(np.int64)]))


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

    @classmethod
    def read(cls, source: Source, px: int) -> "Pixels":
        """Those that can be read, in colour, squashed to a square."""
        preprocessing = Preprocessing(size_px=(px, px), crop="squash", mean=(0.0,) * 3, std=(1.0,) * 3)
        batches = list(EvalLoader(source, preprocessing, batch_size=512))
        values = torch.cat([batch.images.flatten(1) for batch in batches]).double()
        return cls(values, torch.cat([batch.targets["label"] for batch in batches]))


def fit(
    data: Pixels,
    penalty: float,
    start: Tensor | None = None,
    tolerance: float = 1e-5,
    num_classes: int | None = None,  # None: as many as the labels name
    *,
    class_weights: Tensor | None = None,  # (K,) factors on the losses of the pictures of each class
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
    counts = values.new_ones(len(values)) if class_weights is None else class_weights.to(values)[data.labels]
    bound = (values.T * counts) @ values / (4 * len(values)) + penalty * identity
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
        losses = F.cross_entropy(turned @ moved, data.labels, reduction="none")
        value = (counts * losses).mean() + penalty / 2 * (turn[:-1] @ moved).square().sum()
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
