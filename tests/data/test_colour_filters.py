"""Grey, blur and solarize, as the views of contrastive learning have them, against torchvision."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from vitreous import keys as K
from vitreous.data.augmentation import Augmentation, CropSettings
from vitreous.data.transforms import Preprocessing

TF = pytest.importorskip("torchvision.transforms.v2.functional")

PLAIN = Augmentation(crop=CropSettings(method="squash"), flip=0.0)
KEYS = K.sample_keys(3, 0, torch.arange(5))


def coloured(start: Augmentation = PLAIN, **changes) -> Augmentation:
    return replace(start, colour=replace(start.colour, **changes))


@pytest.fixture
def images() -> Tensor:
    images = torch.randint(0, 256, (5, 3, 24, 20), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images[1] = images[1] // 8 + 120  # around the threshold of solarize
    images[2] = 200  # one level
    images[3, :, :, 9:] = 0  # an edge
    images[4] = images[4, :1]  # grey already
    return images


def seen(augmentation: Augmentation, images: Tensor, keys: Tensor = KEYS, name: str = "view0") -> Tensor:
    """Whole levels, before the normalisation."""
    preprocessing = Preprocessing(size_px=tuple(images.shape[-2:]), mean=(0, 0, 0), std=(1, 1, 1))
    view = augmentation.build(preprocessing, name)
    return (view.augment(view.cut(images, keys), keys) * 255).round().to(torch.uint8)


def near(ours: Tensor, theirs: Tensor) -> bool:
    return int((ours.int() - theirs.int()).abs().max()) <= 1


def test_grey(images):
    answer = seen(coloured(grey=1.0), images)
    assert near(answer, TF.rgb_to_grayscale(images, num_output_channels=3))
    assert not near(answer, images)


@pytest.mark.parametrize("sigma", [0.1, 0.6, 1.3, 2.0])
def test_blur(images, sigma):
    answer = seen(coloured(blur=1.0, blur_sigma=(sigma, sigma)), images)
    size = 2 * math.ceil(4 * sigma) + 1
    assert near(answer, TF.gaussian_blur(images, [size, size], [sigma, sigma]))
    assert near(answer, images) == (sigma == 0.1)


def test_every_picture_has_its_own_blur(images):
    """A width drawn between the two; the widest decides how far all of them look."""
    alike, low, high = images[:1].expand(5, -1, -1, -1), 0.5, 2.0
    answer = seen(coloured(blur=1.0, blur_sigma=(low, high)), alike)
    drawn = low + (high - low) * K.uniform(KEYS, "view0.sigma", 1)[:, 0]
    for picture, result, sigma in zip(alike, answer, drawn.tolist(), strict=True):
        assert near(result, TF.gaussian_blur(picture, [17, 17], [sigma, sigma]))


def test_blur_of_a_picture_smaller_than_its_reach():
    small = torch.randint(0, 256, (5, 3, 6, 9), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    answer = seen(coloured(blur=1.0, blur_sigma=(2.0, 2.0)), small)
    assert near(answer, TF.gaussian_blur(small, [11, 11], [2.0, 2.0]))


def test_solarize(images):
    answer = seen(coloured(solarize=1.0), images)
    assert torch.equal(answer, TF.solarize(images, 128))


def test_in_this_order(images):
    answer = seen(coloured(grey=1.0, blur=1.0, blur_sigma=(1.0, 1.0), solarize=1.0), images)
    softened = TF.gaussian_blur(TF.rgb_to_grayscale(images, num_output_channels=3), [9, 9], [1.0, 1.0])
    # A level at the threshold may be inverted by the one and not by the other: both are then next to its middle.
    differing = (answer.int() - TF.solarize(softened, 128).int()).abs()
    middle = (softened.int() - 128).abs() <= 1
    assert differing[~middle].max() <= 1
    assert middle.double().mean() < 0.1


MANY = K.sample_keys(0, 0, torch.arange(4000))


def changed(augmentation: Augmentation, keys: Tensor = MANY, name: str = "view0") -> Tensor:
    """Which of many equal pictures are. Every filter changes them."""
    levels = torch.tensor([250, 10, 10, 90, 30, 200], dtype=torch.uint8)
    images = levels.view(1, 3, 1, 2).expand(len(keys), -1, 4, -1)
    return (seen(augmentation, images, keys, name) != images).flatten(1).any(dim=1)


@pytest.mark.parametrize("filtered", ["grey", "blur", "solarize"])
def test_by_chance(filtered):
    """As often as was said, and by the sample's key and the view's name alone."""
    third = coloured(**{filtered: 0.3}, blur_sigma=(1.0, 1.0))
    found = changed(third)
    assert abs(found.double().mean() - 0.3) < 0.03  # four standard deviations
    assert torch.equal(changed(third), found)
    assert torch.equal(changed(third, MANY[:100]), found[:100])
    other = changed(third, name="view1")
    assert abs((other & found).double().mean() - 0.09) < 0.02  # another view draws for itself
    assert not changed(coloured(**{filtered: 0.0}, start=third)).any()


def test_filters_are_chosen_one_by_one():
    alone = [coloured(**{name: 0.5}) for name in ("grey", "blur", "solarize")]
    chosen = torch.stack([changed(one) for one in alone]).double()
    assert (torch.corrcoef(chosen) - torch.eye(3)).abs().max() < 0.07


def test_jitter_by_chance():
    keys = K.sample_keys(0, 0, torch.arange(4000))
    images = torch.full((4000, 3, 2, 2), 100, dtype=torch.uint8)
    often = coloured(brightness=0.5, probability=0.8)
    kept = (seen(often, images, keys) == images).flatten(1).all(dim=1)
    always = (seen(coloured(probability=1.0, start=often), images, keys) == images).flatten(1).all(dim=1)
    # A change may be too small to reach the next level.
    assert abs((kept & ~always).double().sum() / (~always).double().sum() - 0.2) < 0.03
