"""LabelledLogits with known properties."""

import torch

from vitreous.evaluation.features import FeatureSet
from vitreous.evaluation.logits import LabelledLogits


def simulated(
    num: int, num_classes: int = 10, seed: int = 0, sharpness: float = 1.0, noise: float = 1.5
) -> LabelledLogits:
    """Labels drawn from the softmax of the logits: calibrated at sharpness 1, over-confident above it."""
    generator = torch.Generator().manual_seed(seed)
    logits = noise * torch.randn(num, num_classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=generator)[:, 0]
    names = tuple(f"class {number}" for number in range(num_classes))
    return LabelledLogits((sharpness * logits).float(), labels, torch.arange(num), names)


def blobs(num: int, width: int = 12, num_classes: int = 4, seed: int = 0, spread: float = 1.0) -> FeatureSet:
    """Classes around fixed centres, which overlap."""
    centres = torch.randn(num_classes, width, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num) % num_classes
    values = centres[labels] + spread * torch.randn(num, width, generator=generator)
    return FeatureSet(values, labels, torch.arange(num))
