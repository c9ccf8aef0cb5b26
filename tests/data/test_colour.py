"""Colour operations against torchvision."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vitreous.data import colour

TF = pytest.importorskip("torchvision.transforms.v2.functional")

FACTORS = torch.tensor([0.0, 0.35, 1.0, 1.25, 1.9, 0.1])


@pytest.fixture
def images() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (6, 3, 19, 23), generator=generator, dtype=torch.uint8)
    images[1] = images[1] // 4 + 60  # low contrast
    images[2] = images[2, :1]  # grey
    images[3] = 77  # one level
    images[4, 0] = torch.where(images[4, 0] > 5, 200, 3)  # almost one level
    images[5, :, :9] = 0
    return images


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """As RandAugment, the only one that changes it, does."""
    return colour.blend(images, colour.blurred(images), factor)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (colour.brightness, TF.adjust_brightness),
        (colour.contrast, TF.adjust_contrast),
        (colour.saturation, TF.adjust_saturation),
        (sharpness, TF.adjust_sharpness),
    ],
)
def test_blends(images: Tensor, ours: Callable[..., Tensor], theirs: Callable[..., Tensor]):
    for turn in range(len(FACTORS)):
        factors = FACTORS.roll(turn)
        answer = ours(images, factors)
        expected = torch.stack([theirs(i, f) for i, f in zip(images, factors.tolist(), strict=True)])
        assert answer.dtype == torch.uint8
        assert (answer.int() - expected.int()).abs().max() <= 1
        assert (answer == expected).double().mean() > 0.95


def test_factor_one_changes_nothing(images: Tensor):
    for operation in (colour.brightness, colour.contrast, colour.saturation, sharpness):
        assert torch.equal(operation(images, torch.ones(6)), images)


def test_hue(images: Tensor):
    turns = torch.tensor([-0.5, -0.21, 0.0, 0.07, 0.33, 0.5])
    for shift in range(6):
        answer = colour.hue(images, turns.roll(shift))
        expected = torch.stack([TF.adjust_hue(i, t) for i, t in zip(images, turns.roll(shift).tolist(), strict=True)])
        assert (answer.int() - expected.int()).abs().max() <= 1
    assert torch.equal(colour.hue(images, torch.zeros(6)), images)


def test_posterize(images: Tensor):
    bits = torch.tensor([8, 7, 6, 5, 4, 1])
    answer = colour.look_up(images, colour.posterize_table(images, bits))
    expected = torch.stack([TF.posterize(i, b) for i, b in zip(images, bits.tolist(), strict=True)])
    assert torch.equal(answer, expected)


def test_solarize(images: Tensor):
    thresholds = torch.tensor([255.0, 0.0, 127.5, 200.0, 77.0, 8.5])
    answer = colour.look_up(images, colour.solarize_table(images, thresholds))
    expected = torch.stack([TF.solarize(i, t) for i, t in zip(images, thresholds.tolist(), strict=True)])
    assert torch.equal(answer, expected)


def test_autocontrast(images: Tensor):
    answer = colour.look_up(images, colour.autocontrast_table(images))
    assert (answer.int() - TF.autocontrast(images).int()).abs().max() <= 1
    assert torch.equal(answer[3], images[3])


def test_equalize(images: Tensor):
    answer = colour.look_up(images, colour.equalize_table(images))
    assert torch.equal(answer, TF.equalize(images))
    assert torch.equal(answer[3], images[3])
