"""Mixup (Zhang et al. 2017) and CutMix (Yun et al. 2019): every picture is mixed with the next one of its batch.

The order of samples is itself random, so the next one is a random one, and a rank needs only one sample beyond
its own slice of the batch. Each sample draws its own kind and weight from its own key.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitreous import keys as K
from vitreous.data.erasing import inside
from vitreous.platforms import widest

KNOTS = 4097


def beta_quantiles(alpha: float) -> np.ndarray:
    """(KNOTS,) float64: the quantile function of Beta(alpha, alpha) at evenly spaced probabilities."""
    # The density (s (1 - s))^(alpha - 1) has a pole at 0 where alpha < 1; over t = s^alpha it has none, since
    # s^(alpha - 1) ds is dt / alpha. Integrated over the lower half; the upper one is its mirror image.
    power = min(alpha, 1.0)
    t = np.linspace(0.0, 0.5**power, 200_001)
    s = t ** (1 / power)
    density = (1 - s) ** (alpha - 1) * s ** (alpha - power)
    cdf = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    half = np.linspace(0.0, 0.5, KNOTS // 2 + 1)
    lower = np.interp(half, cdf * (0.5 / cdf[-1]), t) ** (1 / power)
    return np.concatenate([lower, 1 - lower[-2::-1]])


def quantile(table: Tensor, probability: Tensor) -> Tensor:
    """float32: linear in the table between its knots; float64 inside, so that every device rounds to the same."""
    place = probability.to(table.dtype) * (KNOTS - 1)
    knot = place.to(torch.int64).clamp(max=KNOTS - 2)
    low, high = table[knot], table[knot + 1]
    return (low + (place - knot) * (high - low)).to(torch.float32)


@dataclass(frozen=True)
class Mix:
    """What was drawn for a batch."""

    weight: Tensor  # (B,) float32: the share of the first picture
    boxes: Tensor  # (B, 4) int64: where CutMix shows the partner; no area elsewhere
    blend: Tensor  # (B,) float32: Mixup's weight; 1 elsewhere


class Mixer:
    def __init__(
        self, mixup: float, cutmix: float, probability: float, switch: float, device: torch.device | str = "cpu"
    ) -> None:
        self.mixup, self.cutmix = mixup, cutmix
        self.probability = probability
        self.switch = switch if mixup > 0 and cutmix > 0 else float(cutmix > 0)
        # A table of its own for each kind; a kind that is off keeps a stand-in that is never chosen.
        self.wide = widest(torch.device(device))
        tables = (torch.from_numpy(beta_quantiles(alpha or 1.0)) for alpha in (mixup, cutmix))
        self.tables = [table.to(device, self.wide) for table in tables]

    @property
    def active(self) -> bool:
        return (self.mixup > 0 or self.cutmix > 0) and self.probability > 0

    def draw(self, keys: Tensor, size: tuple[int, int]) -> Mix:
        height, width = size
        mixed, switched, probability, y, x = K.uniform(keys, "mix", 5).unbind(1)
        mixed_, cut = mixed < self.probability, switched < self.switch
        blend = torch.where(mixed_ & ~cut, quantile(self.tables[0], probability), 1.0)
        # CutMix: sides in proportion to the root of the partner's share, a centre anywhere, clipped to the picture.
        side = 0.5 * (1 - quantile(self.tables[1], probability).to(self.wide)).sqrt()
        half_h, half_w = ((side * length).to(torch.int64) for length in (height, width))
        row, column = ((z.to(self.wide) * side).to(torch.int64) for z, side in ((y, height), (x, width)))
        top, left = (row - half_h).clamp(min=0), (column - half_w).clamp(min=0)
        tall, wide = (row + half_h).clamp(max=height) - top, (column + half_w).clamp(max=width) - left
        boxes = torch.where((mixed_ & cut)[:, None], torch.stack([top, left, tall, wide], dim=1), 0)
        area = (boxes[:, 2] * boxes[:, 3]).to(torch.float32) / (height * width)
        return Mix(weight=torch.where(cut, 1 - area, blend), boxes=boxes, blend=blend)

    @staticmethod
    def images(mix: Mix, images: Tensor, partners: Tensor) -> Tensor:
        share = mix.blend[:, None, None, None]
        blended = images * share + partners * (1 - share)
        return torch.where(inside(mix.boxes, *images.shape[-2:]), partners, blended)

    @staticmethod
    def targets(mix: Mix, targets: dict[str, Tensor], partners: dict[str, Tensor]) -> dict[str, Tensor]:
        """One label gains `partner` and `weight`; several labels, or probabilities, (B, K) are mixed in place."""
        mixed = dict(targets)
        if "label" in targets:
            mixed |= {"partner": partners["label"], "weight": mix.weight}
        share = mix.weight[:, None]
        for name in ("labels", "probabilities"):
            if name in targets:
                mixed[name] = targets[name] * share + partners[name] * (1 - share)
        return mixed
