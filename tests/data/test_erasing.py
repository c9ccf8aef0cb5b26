"""Random erasing against torchvision."""

import pytest
import torch

from vitreous import keys as K
from vitreous.data import erasing

SETTINGS = {"scale": (0.02, 0.33), "ratio": (0.3, 3.3)}


def test_erase_is_torchvisions():
    TF = pytest.importorskip("torchvision.transforms.v2.functional")
    images = torch.randn(3, 3, 10, 12)
    boxes = torch.tensor([[0, 0, 10, 12], [2, 3, 4, 5], [9, 11, 1, 1]])
    noise = torch.randn(3, 3, 10, 12)
    for fill in (0.0, noise):
        answer = erasing.erase(images, boxes, fill)
        for index, (i, j, h, w) in enumerate(boxes.tolist()):
            value = torch.zeros(3, 1, 1) if fill is not noise else noise[index, :, i : i + h, j : j + w]
            assert torch.equal(answer[index], TF.erase(images[index], i, j, h, w, value))


def test_an_empty_box_erases_nothing():
    images = torch.randn(2, 3, 5, 5)
    assert torch.equal(erasing.erase(images, torch.zeros(2, 4, dtype=torch.int64)), images)


def test_boxes_are_distributed_as_asked():
    keys = K.sample_keys(0, 0, torch.arange(4000))
    boxes = erasing.draw(keys, "a", (100, 120), probability=0.25, **SETTINGS)
    erased = boxes[boxes[:, 2] > 0].double()
    assert abs(len(erased) / 4000 - 0.25) < 0.02
    top, left, height, width = erased.unbind(1)
    assert (top + height <= 100).all()
    assert (left + width <= 120).all()
    share = height * width / 12_000
    assert share.min() > 0.018
    assert share.max() < 0.34
    assert (height / width).min() > 0.28
    assert (height / width).max() < 3.5


def test_noise_differs_between_samples_and_is_normal():
    noise = erasing.noise(K.sample_keys(0, 0, torch.arange(4)), "a", (16, 16))
    assert noise.shape == (4, 3, 16, 16)
    assert not torch.equal(noise[0], noise[1])
    assert abs(noise.std() - 1) < 0.05
