"""The settings and their composition."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from vitreous import keys as K
from vitreous import settings
from vitreous.data import erasing
from vitreous.data.augmentation import (
    Augmentation,
    ColourSettings,
    CropSettings,
    EraseSettings,
    MixSettings,
    WarpSettings,
)
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError

KEYS = K.sample_keys(0, 0, torch.arange(12))
EVERYTHING = Augmentation(
    warp=WarpSettings(ops=2, spread=True, fill=(9, 8, 7)),
    colour=ColourSettings(brightness=0.3, contrast=0.3, saturation=0.3, hue=0.1),
    erase=EraseSettings(probability=0.5, fill="noise"),
    mix=MixSettings(mixup=0.2, cutmix=1.0),
)


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3)).astype(np.uint8)
    return np.kron(coarse, np.ones((height // 5 + 1, width // 5 + 1, 1), dtype=np.uint8))[:height, :width].copy()


# ---- Preprocessing


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("shape", [(60, 45), (45, 60), (20, 300), (10, 8)])
def test_one_picture_is_torchvisions(interpolation, shape):
    v2 = pytest.importorskip("torchvision.transforms.v2")
    TF, mode = v2.functional, v2.InterpolationMode(interpolation)
    image = torch.from_numpy(picture(*shape)).permute(2, 0, 1)
    preprocessing = Preprocessing(size_px=(28, 28), interpolation=interpolation)
    theirs = TF.center_crop(TF.resize(image, [32], interpolation=mode, antialias=True), [28, 28])
    assert (preprocessing.resized(picture(*shape)).int() - theirs.int()).abs().max() <= 1
    squash = dataclasses.replace(preprocessing, crop="squash", size_px=(28, 30))
    theirs = TF.resize(image, [28, 30], interpolation=mode, antialias=True)
    assert (squash.resized(picture(*shape)).int() - theirs.int()).abs().max() <= 1


def test_the_right_size_passes_untouched():
    array = picture(28, 36)
    answer = Preprocessing(size_px=(28, 36), crop_fraction=0.5).resized(array)
    assert torch.equal(answer, torch.from_numpy(array).permute(2, 0, 1))


def test_a_picture_is_resized_the_same_alone_and_in_a_batch():
    pictures = np.stack([picture(31, 23, seed) for seed in range(3)])
    preprocessing = Preprocessing(size_px=(16, 20))
    together = preprocessing.resized(pictures)
    assert together.shape == (3, 3, 16, 20)
    for array, answer in zip(pictures, together, strict=True):
        assert torch.equal(preprocessing.resized(array), answer)


def test_read_only_pictures_are_taken():
    array = picture(20, 20)
    array.setflags(write=False)
    assert Preprocessing(size_px=(8, 8)).resized(array).shape == (3, 8, 8)


def test_normalise_is_torchvisions():
    TF = pytest.importorskip("torchvision.transforms.v2.functional")
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    images = torch.randint(0, 256, (2, 3, 5, 6), dtype=torch.uint8)
    theirs = TF.normalize(TF.to_dtype(images, torch.float32, scale=True), list(mean), list(std))
    ours = Preprocessing(mean=mean, std=std).normalised(images)
    torch.testing.assert_close(ours, theirs)
    assert torch.equal(Preprocessing(mean=mean, std=std).normalised(images[0]), ours[0])


@pytest.mark.parametrize("value", [Preprocessing(size_px=(7, 9)), EVERYTHING])
def test_settings_survive_json(value):
    assert settings.from_json(type(value), settings.to_json(value)) == value


@pytest.mark.parametrize("cls", [Preprocessing, Augmentation])
def test_every_setting_has_a_help_line(cls):
    assert [field.name for field in settings.fields(cls()) if not field.help] == []


@pytest.mark.parametrize(
    ("cls", "changes", "named"),
    [
        (Preprocessing, {"size_px": (0, 5)}, "size_px"),
        (Preprocessing, {"crop_fraction": 1.5}, "crop_fraction"),
        (Preprocessing, {"std": (0.0, 1.0, 1.0)}, "std"),
        (Augmentation, {"flip": 1.2}, "flip"),
        (CropSettings, {"scale": (0.9, 0.1)}, "scale"),
        (CropSettings, {"scale": (0.9, 1.1)}, "scale"),
        (CropSettings, {"zoom": (0.0, 1.1)}, "zoom"),
        (ColourSettings, {"hue": 0.6}, "hue"),
        (MixSettings, {"mixup": -1.0}, "mixup"),
        (WarpSettings, {"magnitude": 31}, "magnitude"),
    ],
)
def test_impossible_settings_are_refused(cls, changes, named):
    with pytest.raises(UserError, match=named):
        cls(**changes)


# ---- Views


@pytest.mark.parametrize("crop", ["random-resized", "zoom", "pad", "squash", "centre"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("shape", [(40, 50), (40, 3)])
def test_pictures_are_cut_the_same_one_by_one_and_batched(crop, interpolation, shape):
    view = Augmentation(crop=CropSettings(method=crop)).build(
        Preprocessing(size_px=(16, 20), interpolation=interpolation)
    )
    pictures = [picture(*shape, seed=seed) for seed in range(12)]
    out = torch.empty(12, 3, 16, 20, dtype=torch.uint8)
    view.cut_pictures(pictures, KEYS, out)
    batch = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
    apart = (out.int() - view.cut(batch, KEYS).int()).abs()
    if crop == "zoom":  # what is padding is filled in once all is batched
        apart *= erasing.inside(torch.nn.functional.pad(view.geometry(KEYS, *shape).extent, (2, 0)), 16, 20)
    assert apart.max() <= (0 if interpolation == "nearest" else 1)


@pytest.mark.parametrize("crop", ["squash", "centre"])
def test_fixed_crops_are_those_of_evaluation(crop):
    preprocessing = Preprocessing(size_px=(16, 20), crop=crop)
    view = Augmentation(crop=CropSettings(method=crop), flip=0.0).build(preprocessing)
    out = torch.empty(1, 3, 16, 20, dtype=torch.uint8)
    view.cut_pictures([picture(33, 70)], KEYS[:1], out)
    expected = preprocessing.resized(picture(33, 70))[None]
    assert torch.equal(out, expected)
    assert torch.equal(view.augment(out, KEYS[:1]), preprocessing.normalised(expected))


def random_images(num: int = 12) -> Tensor:
    return torch.randint(0, 256, (num, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_flip_and_shift_are_drawn_per_sample():
    view = Augmentation(crop=CropSettings(method="pad", pad_px=2)).build(Preprocessing(size_px=(16, 16)))
    images = random_images(1).expand(400, -1, -1, -1)
    shown = view.augment(images, K.sample_keys(0, 0, torch.arange(400)))
    assert len(shown.flatten(1).unique(dim=0)) == 50  # 5 x 5 shifts, flipped or not


def test_views_draw_apart_unless_they_share_a_crop():
    preprocessing, images = Preprocessing(size_px=(16, 16)), random_images()
    first, second, reused = (
        Augmentation().build(preprocessing, name, crop_name)
        for name, crop_name in (("view0", None), ("view1", None), ("view2", "view0"))
    )
    assert not torch.equal(first.cut(images, KEYS), second.cut(images, KEYS))
    assert torch.equal(first.cut(images, KEYS), reused.cut(images, KEYS))


def test_a_sample_does_not_depend_on_its_batch():
    view = EVERYTHING.build(Preprocessing(size_px=(12, 12)))
    images = random_images()
    together = view.augment(view.cut(images, KEYS), KEYS)
    part = slice(5, 7)
    torch.testing.assert_close(view.augment(view.cut(images[part], KEYS[part]), KEYS[part]), together[part])


def test_colours_change_within_their_bounds():
    view = Augmentation(crop=CropSettings(method="squash"), flip=0, colour=ColourSettings(brightness=0.4)).build(
        Preprocessing(size_px=(16, 16))
    )
    keys = K.sample_keys(0, 0, torch.arange(500))
    grey = torch.full((500, 3, 16, 16), 100, dtype=torch.uint8)
    levels = ((view.augment(grey, keys) * 0.5 + 0.5) * 255).round()[:, 0, 0, 0]
    assert 59 <= levels.min() <= 62
    assert 138 <= levels.max() <= 140
    assert abs(levels.mean() - 100) < 3


def test_erased_boxes_show_the_mean():
    view = Augmentation(crop=CropSettings(method="squash"), flip=0, erase=EraseSettings(probability=1.0)).build(
        Preprocessing(size_px=(16, 16), mean=(0.1, 0.2, 0.3))
    )
    shown = view.augment(torch.full((12, 3, 16, 16), 250, dtype=torch.uint8), KEYS)
    assert ((shown == 0).all(1).flatten(1).sum(1) > 0).all()


def test_everything_traces_without_breaks():
    view = EVERYTHING.build(Preprocessing(size_px=(12, 12)))
    images = random_images(4)

    def run(images: Tensor, keys: Tensor) -> Tensor:
        return view.augment(view.cut(images, keys), keys)

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images, KEYS[:4]), run(images, KEYS[:4]))
