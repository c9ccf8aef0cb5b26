"""Cropping, resizing, shifting and flipping, against torchvision."""

import pytest
import torch

from vitreous import keys as K
from vitreous.data import resample

v2 = pytest.importorskip("torchvision.transforms.v2")
TF = v2.functional


def photos(num: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    """Smooth colours with noise and hard edges on top."""
    generator = torch.Generator().manual_seed(seed)
    smooth = torch.rand(num, 3, 4, 4, generator=generator) * 255
    smooth = torch.nn.functional.interpolate(smooth, (height, width), mode="bilinear")
    noise = torch.randn(num, 3, height, width, generator=generator) * 20
    images = (smooth + noise).clamp(0, 255).to(torch.uint8)
    images[..., height // 3 : height // 2, width // 4 : width // 2] = 255
    return images


def levels_apart(a: torch.Tensor, b: torch.Tensor) -> int:
    assert a.shape == b.shape
    assert a.dtype == b.dtype == torch.uint8
    return int((a.int() - b.int()).abs().max())


BOXES = torch.tensor(
    [[0, 0, 40, 50], [3, 7, 20, 11], [39, 49, 1, 1], [10, 0, 30, 50], [5, 5, 13, 17], [0, 20, 2, 30], [0, 9, 40, 1]]
)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("size", [(16, 16), (13, 29), (64, 48)])
def test_resized_crop_is_torchvisions(interpolation: resample.Interpolation, size: tuple[int, int]):
    images, mode = photos(len(BOXES), 40, 50), v2.InterpolationMode(interpolation)
    ours = resample.resized_crop(images, BOXES, size, interpolation)
    for picture, box, answer in zip(images, BOXES.tolist(), ours, strict=True):
        theirs = TF.resized_crop(picture, *box, list(size), interpolation=mode, antialias=True)
        assert levels_apart(answer, theirs) <= (0 if interpolation == "nearest" else 1)
        assert (answer == theirs).double().mean() > 0.99


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_batched_weights_are_those_of_the_cpu_kernel(interpolation: resample.Interpolation):
    """In floating point, where little hides behind rounding."""
    x = torch.rand(1, 1, 37, 5)
    for out in (11, 37, 80):
        zero = torch.zeros(1)
        ours = resample.resize_weights(zero, zero + 37, 37, out, interpolation) @ x[0, 0]
        theirs = torch.nn.functional.interpolate(x, (out, 5), mode=interpolation, antialias=True)[0, 0]
        torch.testing.assert_close(ours[0], theirs, atol=1e-4, rtol=0)  # weights have 16 bits


@pytest.mark.parametrize("shape", [(40, 50), (50, 40), (32, 32), (200, 17), (256, 341)])
def test_centre_crop_is_torchvisions(shape: tuple[int, int]):
    images = photos(2, *shape)
    size, fraction = (28, 28), 0.875
    theirs = TF.center_crop(TF.resize(images, [32], antialias=True), list(size))
    (resized, (top, left)) = resample.cover(size, fraction, *shape)
    by_kernel = resample.resize(images, resized, "bilinear")[..., top : top + 28, left : left + 28]
    assert torch.equal(by_kernel, theirs)
    assert levels_apart(resample.cover_crop(images, size, fraction, "bilinear"), theirs) <= 1


@pytest.mark.parametrize("shape", [(40, 50), (21, 99), (7, 7)])
def test_cover_reaches_all_of_a_size_that_is_not_square(shape: tuple[int, int]):
    (tall, wide), (top, left) = resample.cover((24, 36), 1.0, *shape)
    assert (tall >= 24, wide >= 36, top >= 0, left >= 0) == (True,) * 4
    assert tall == 24 or wide == 36
    assert abs(tall / wide - shape[0] / shape[1]) < 0.05


def test_squash_is_torchvisions_resize():
    images = photos(2, 40, 50)
    theirs = TF.resize(images, [20, 33], antialias=True)
    assert levels_apart(resample.cover_crop(images, (20, 33), None, "bilinear"), theirs) <= 1


def test_the_right_size_passes_untouched():
    images = photos(2, 28, 28)
    assert resample.cover_crop(images, (28, 28), 0.5, "bicubic") is images
    assert resample.resize(images, (28, 28), "bicubic") is images


def sides(keys: torch.Tensor, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full_like(keys, height), torch.full_like(keys, width)


def test_boxes_are_distributed_as_asked():
    keys = K.sample_keys(0, 0, torch.arange(4000))
    boxes = resample.draw_boxes(resample.draw_crops(keys, "a"), *sides(keys, 300, 400), (0.1, 0.5), (0.5, 2.0))
    top, left, height, width = boxes.double().unbind(1)
    assert (boxes[:, :2] >= 0).all()
    assert (top + height <= 300).all()
    assert (left + width <= 400).all()
    share, ratio = height * width / 120_000, width / height
    assert 0.098 < share.min() < 0.11
    assert 0.49 < share.max() < 0.502
    assert abs(share.mean() - 0.3) < 0.01
    assert ratio.min() > 0.49
    assert ratio.max() < 2.05
    assert abs(ratio.log().mean()) < 0.03
    assert abs((top / (300 - height).clamp(min=1)).mean() - 0.5) < 0.02
    assert abs((left / (400 - width).clamp(min=1)).mean() - 0.5) < 0.02


def test_boxes_match_torchvisions_distribution():
    """Of a picture so long that many tries fail; compared by the mean sides."""
    torch.manual_seed(0)
    crop = v2.RandomResizedCrop(8)
    picture = torch.zeros(3, 40, 100)
    theirs = torch.tensor([[p["height"], p["width"]] for p in (crop.make_params([picture]) for _ in range(1500))])
    keys = K.sample_keys(0, 0, torch.arange(1500))
    ours = resample.draw_boxes(resample.draw_crops(keys, "a"), *sides(keys, 40, 100), (0.08, 1.0), (3 / 4, 4 / 3))
    torch.testing.assert_close(ours[:, 2:].double().mean(0), theirs.double().mean(0), atol=0.6, rtol=0)


@pytest.mark.parametrize(("shape", "box"), [((10, 100), (0, 43, 10, 13)), ((100, 10), (43, 0, 13, 10))])
def test_fallback_is_the_largest_centred_box(shape: tuple[int, int], box: tuple[int, ...]):
    keys = K.sample_keys(0, 0, torch.arange(5))
    boxes = resample.draw_boxes(resample.draw_crops(keys, "a"), *sides(keys, *shape), (1.0, 1.0), (3 / 4, 4 / 3))
    assert boxes.tolist() == [list(box)] * 5


def test_a_box_depends_on_its_own_sample_alone():
    keys = K.sample_keys(0, 0, torch.arange(20))
    height, width = torch.arange(20) * 7 + 5, torch.arange(20) * 3 + 9
    draws = resample.draw_crops(keys, "a")
    whole = resample.draw_boxes(draws, height, width, (0.08, 1), (0.75, 1.33))
    one = resample.draw_boxes(resample.draw_crops(keys[7:8], "a"), height[7:8], width[7:8], (0.08, 1), (0.75, 1.33))
    assert torch.equal(whole[7:8], one)


@pytest.mark.parametrize(("padding", "mode"), [("zero", "constant"), ("reflect", "reflect")])
def test_pad_crop_is_torchvisions(padding, mode):
    images = photos(5, 12, 17)
    shifts = torch.tensor([[0, 0], [4, 4], [8, 8], [3, 7], [8, 0]])
    ours = resample.pad_crop(images, shifts, 4, padding)
    for picture, (top, left), answer in zip(images, shifts.tolist(), ours, strict=True):
        theirs = TF.crop(TF.pad(picture, [4], padding_mode=mode), top, left, 12, 17)
        assert torch.equal(answer, theirs)


def test_shifts_reach_every_place():
    shifts = resample.draw_shifts(K.sample_keys(0, 0, torch.arange(2000)), "a", 2)
    assert torch.bincount(shifts[:, 0] * 5 + shifts[:, 1], minlength=25).min() > 40
    assert shifts.max() == 4


def test_flip_is_torchvisions():
    images = photos(3, 5, 7)
    ours = resample.flip(images, torch.tensor([True, False, True]))
    assert torch.equal(ours[1], images[1])
    assert torch.equal(ours[::2], TF.horizontal_flip(images[::2]))


def test_chances():
    keys = K.sample_keys(0, 0, torch.arange(5000))
    assert abs(resample.draw_chances(keys, "a", 0.3).double().mean() - 0.3) < 0.02
    assert resample.draw_chances(keys, "a", 1.0).all()
    assert not resample.draw_chances(keys, "a", 0.0).any()
