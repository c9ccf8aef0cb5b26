"""RandAugment's draws, and each of its operations against torchvision's own dispatch."""

import pytest
import torch
from torch import Tensor

from vitreous import keys as K
from vitreous.data import randaugment

v2 = pytest.importorskip("torchvision.transforms.v2")

THEIR_NAMES = {"saturation": "Color", "autocontrast": "AutoContrast"}
GEOMETRY = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")


def their_name(name: str) -> str:
    return THEIR_NAMES.get(name, name.title().replace("_", ""))


def theirs(image: Tensor, name: str, level: int, sign: int, fill: tuple[int, int, int] | None) -> Tensor:
    transform = v2.RandAugment(fill=list(fill) if fill else None)
    magnitudes, signed = transform._AUGMENTATION_SPACE[their_name(name)]
    table = magnitudes(31, *image.shape[-2:])
    magnitude = 0.0 if table is None else float(table[level]) * (sign if signed else 1)
    return transform._apply_image_or_video_transform(
        image, their_name(name), magnitude, interpolation=transform.interpolation, fill=transform._fill
    )


@pytest.fixture
def images() -> Tensor:
    generator = torch.Generator().manual_seed(2)
    images = torch.rand(6, 3, 5, 5, generator=generator) * 255
    return torch.nn.functional.interpolate(images, (32, 40), mode="bicubic").clamp(0, 255).to(torch.uint8)


LEVELS = torch.tensor([0, 3, 9, 17, 24, 30])
SIGNS = torch.tensor([1, -1, 1, -1, 1, -1])


def test_the_operations_are_torchvisions():
    assert {their_name(name) for name in randaugment.OPERATIONS} == set(v2.RandAugment._AUGMENTATION_SPACE)


@pytest.mark.parametrize("name", randaugment.OPERATIONS)
@pytest.mark.parametrize("flip", [1, -1])
def test_operation_is_torchvisions(images: Tensor, name: str, flip: int):
    number = torch.full((6,), randaugment.OPERATIONS.index(name))
    fill = (10, 20, 200) if name in GEOMETRY and flip > 0 else None
    ours = randaugment.apply(images, number, LEVELS, SIGNS * flip, fill or (0, 0, 0))
    for image, level, sign, answer in zip(images, LEVELS.tolist(), (SIGNS * flip).tolist(), ours, strict=True):
        expected = theirs(image, name, level, sign, fill)
        apart = (answer.int() - expected.int()).abs()
        if name in GEOMETRY:
            # Where two pixels are equally near, rounding decides, and torchvision rounds in float32.
            assert (apart > 0).double().mean() < (0.03 if name.startswith("shear") else 0.002)
        elif name == "solarize":
            # A threshold of a whole level is exact here and off by a rounding error there.
            assert (apart > 0).double().mean() < 0.03
        else:
            assert apart.max() <= 1


def test_each_picture_has_its_own_operation(images: Tensor):
    operations = torch.tensor([1, 5, 7, 9, 11, 13])
    together = randaugment.apply(images, operations, LEVELS, SIGNS)
    for index in range(6):
        one = slice(index, index + 1)
        alone = randaugment.apply(images[one], operations[one], LEVELS[one], SIGNS[one])
        assert torch.equal(together[one], alone)


def test_draws():
    keys = K.sample_keys(0, 0, torch.arange(5000))
    operation, level, sign = randaugment.draw(keys, "a", 2, 9, spread=False)
    assert operation.shape == level.shape == sign.shape == (5000, 2)
    assert (torch.bincount(operation.flatten(), minlength=14) / 10_000 - 1 / 14).abs().max() < 0.012
    assert (level == 9).all()
    assert set(sign.unique().tolist()) == {-1, 1}
    assert abs(sign.double().mean()) < 0.04
    assert abs(torch.corrcoef(torch.stack([operation[:, 0], operation[:, 1], sign[:, 0]]).double())[0, 1]) < 0.05


def test_spread_draws_the_level_too():
    keys = K.sample_keys(0, 0, torch.arange(5000))
    _, level, _ = randaugment.draw(keys, "a", 1, 30, spread=True)
    assert torch.bincount(level[:, 0], minlength=31).min() > 100
    assert level.max() == 30
