"""What a source knows beside the pixels: it is taken, renamed, hashed and moved with its pictures."""

import hashlib

import numpy as np
import pytest
import torch

from vitreous.batch import IGNORED
from vitreous.data.augmentation import Augmentation, CropSettings, MixSettings, WarpSettings
from vitreous.data.base import Source, Subset, with_classes
from vitreous.data.images import BadPicture
from vitreous.data.loader import EvalLoader, TrainLoader
from vitreous.data.memory import InMemory
from vitreous.data.splits import carve
from vitreous.data.targets import ClassLabels, ManyLabels, NoTargets, PixelLabels
from vitreous.data.targets.pixels import HeldMasks, Masks
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError

SIZE = Preprocessing(size_px=(12, 14))
LEVELS = 40  # levels per class: a pixel's colour tells its class


def digest(targets):
    found = hashlib.sha256()
    targets.update(found)
    return found.hexdigest()


class Coloured(Masks):
    """Masks that the pictures of `Scenes` tell, made anew each time."""

    def __init__(self, source: "Scenes") -> None:
        self.source = source

    def __len__(self) -> int:
        return self.source.num

    def read(self, index: int) -> np.ndarray:
        if index in self.source.bad_masks:
            raise BadPicture("no mask")
        mask = (self.source.read(index)[..., 0] // LEVELS).astype(np.int16)
        return mask[1:] if index in self.source.short_masks else mask

    def update(self, index: int, digest) -> None:
        digest.update(b"%d" % index)


class Scenes(Source):
    """Large squares of plain colours, so that nearest pixels and smooth ones mostly agree."""

    def __init__(self, num: int, shape=None, bad_masks=(), short_masks=()) -> None:
        self.name, self.classes, self.num, self.shape = "scenes", ("a", "b", "c", "d"), num, shape
        self.bad_masks, self.short_masks = bad_masks, short_masks
        self.targets = PixelLabels(Coloured(self))

    def read(self, index: int) -> np.ndarray:
        generator = np.random.default_rng(index)
        height, width = self.shape or generator.integers(16, 40, 2)
        coarse = generator.integers(0, 4, (3, 3)) * LEVELS + LEVELS // 2
        pixels = np.kron(coarse, np.ones((14, 14)))[:height, :width, None].repeat(3, axis=2)
        return pixels.astype(np.uint8)

    def where(self, index: int) -> str:
        return f"scenes/{index}"


def classes_shown(images):
    """What the pixels themselves say, as class numbers; plain colours only."""
    levels = (images[:, 0] * 0.5 + 0.5) * 255
    return (levels / LEVELS).floor().long()


# ---- each kind


@pytest.mark.parametrize(
    "targets",
    [
        NoTargets(5),
        ClassLabels([0, 1, 0, 2, 1]),
        ManyLabels(np.eye(5, 3)),
        PixelLabels(HeldMasks([np.full((2, 3), n) for n in range(5)])),
    ],
)
def test_some_are_taken_in_any_order_and_told_apart_by_their_hash(targets):
    some = targets.take(np.array([3, 1]))
    assert len(targets) == 5 and len(some) == 2
    assert digest(some) == digest(targets.take(np.array([4, 3, 1])).take(np.array([1, 2]))) != digest(targets)
    for name, tensor in targets.small().items():
        assert torch.equal(some.small()[name], tensor[[3, 1]])
    for one, place in enumerate((3, 1)):
        for name in targets.large:
            assert np.array_equal(some.read(one)[name], targets.read(place)[name])


def test_classes_are_called_anew():
    numbers = np.array([2, -1, 0])
    assert ClassLabels([0, 2, 2]).relabelled(numbers, 4).labels.tolist() == [2, 0, 0]
    many = ManyLabels([[1, 0, 1], [0, 0, 1]]).relabelled(numbers, 4)
    assert many.labels.tolist() == [[True, False, True, False], [True, False, False, False]]
    masks = PixelLabels(HeldMasks([np.array([[0, 2, IGNORED]])]))
    assert masks.relabelled(numbers, 4).read(0)["mask"].tolist() == [[2, 0, IGNORED]]
    twice = masks.relabelled(numbers, 4).relabelled(np.array([7, 8, 9, 9]), 10)
    assert twice.read(0)["mask"].tolist() == [[9, 7, IGNORED]]


def test_several_labels_split_by_the_rarest_and_none_is_a_group():
    targets = ManyLabels([[1, 1, 0], [1, 0, 0], [1, 0, 1], [0, 0, 0], [1, 1, 0]])
    assert targets.strata.tolist() == [1, 0, 2, 3, 1]
    assert targets.counts(3).tolist() == [4, 2, 1]
    assert [targets.described(place, ("x", "y", "z")) for place in (0, 3)] == ["x, y", ""]


def test_one_label_per_picture_is_asked_for_by_name():
    with pytest.raises(UserError, match="scenes: its pictures do not have one label each"):
        _ = Scenes(3).labels


# ---- with their pictures


def batches(source, augmentation=None, steps=4, **options):
    view = (augmentation or Augmentation()).build(SIZE)
    return list(TrainLoader(source, [view], **{"batch_size": 8, "seed": 3, **options}).batches(0, steps))


@pytest.mark.parametrize("crop", ["random-resized", "zoom", "pad", "squash", "centre"])
@pytest.mark.parametrize("shape", [None, (24, 30)])
def test_masks_go_where_the_pixels_go(crop, shape):
    source = Scenes(24, shape)
    source = InMemory(source) if shape else source
    for batch in batches(source, Augmentation(crop=CropSettings(method=crop, pad_px=3))):
        mask = batch.targets["mask"]
        assert mask.shape == (8, 12, 14) and mask.dtype == torch.int64
        assert (batch.extent is not None) == (crop == "zoom")
        shown = classes_shown(batch.images)
        inside = mask != IGNORED
        assert inside.float().mean() > (0.6 if crop in ("pad", "zoom") else 0.999)
        if batch.extent is not None:
            rows, columns = batch.extent.T[:, :, None, None]
            seen = (torch.arange(12)[:, None] < rows) & (torch.arange(14) < columns)
            assert torch.equal(inside, seen)
            assert batch.images.movedim(1, -1)[~seen].abs().max() < 1 / 128  # the mean colour
        assert (mask == shown)[inside].float().mean() > 0.85  # not at the borders between squares, which are smooth
        sizes = [source.read(index).shape[:2] for index in batch.ids.tolist()]
        assert batch.size.tolist() == [list(size) for size in sizes]


@pytest.mark.parametrize("shape", [None, (24, 30)])
def test_workers_and_memory_make_the_same_masks(shape):
    source, zoom = Scenes(24, shape, bad_masks=(5,)), Augmentation(crop=CropSettings(method="zoom"))
    alone, helped = batches(source, zoom), batches(source, zoom, workers=2)
    for a, b in zip(alone, helped, strict=True):
        assert torch.equal(a.targets["mask"], b.targets["mask"]) and torch.equal(a.images, b.images)
        assert torch.equal(a.size, b.size) and torch.equal(a.ids, b.ids) and torch.equal(a.extent, b.extent)
    assert 5 not in torch.cat([batch.ids for batch in alone])
    if shape:
        held, read = batches(InMemory(Scenes(24, shape)), zoom), batches(Scenes(24, shape), zoom)
        for a, b in zip(held, read, strict=True):
            assert torch.equal(a.targets["mask"], b.targets["mask"]) and torch.equal(a.extent, b.extent)
            assert (a.images - b.images).abs().max() <= 2 / 255 + 1e-6  # one level, normalised by a std of a half


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"warp": WarpSettings(ops=1)}, "places, which RandAugment would move: set --augmentation.warp.ops 0"),
        ({"mix": MixSettings(cutmix=1.0)}, "places and cannot be mixed"),
    ],
)
def test_what_masks_cannot_follow_is_refused(change, message):
    with pytest.raises(UserError, match=f"scenes: its targets have {message}"):
        batches(Scenes(24), Augmentation(**change))


def test_masks_have_one_view():
    view = Augmentation().build(SIZE)
    with pytest.raises(UserError, match="scenes: its targets have places in the pictures, which allows only one view"):
        TrainLoader(Scenes(24), [view, view], batch_size=8, seed=3)


def test_padding_is_for_pictures_without_masks_too():
    source = Scenes(16)
    source.targets = ClassLabels(np.arange(16) % 4)
    (batch,) = batches(source, Augmentation(crop=CropSettings(method="zoom")), steps=1)
    assert batch.targets.keys() == {"label"} and (batch.extent < 12).any()
    with pytest.raises(UserError, match="zoom leaves padding, which cannot be mixed"):
        Augmentation(crop=CropSettings(method="zoom"), mix=MixSettings(mixup=0.8)).build(SIZE)


def test_a_step_with_masks_traces_without_breaks():
    view = Augmentation(crop=CropSettings(method="zoom")).build(SIZE)
    for source in (InMemory(Scenes(24, (24, 30))), Scenes(24)):
        loader = TrainLoader(source, [view], batch_size=8, seed=3)
        compiled = torch.compile(loader.prepare, backend="aot_eager", fullgraph=True)
        for inputs in loader.inputs(0, 2):
            plain, traced = loader.prepare(*inputs), compiled(*inputs)
            torch.testing.assert_close(traced.images, plain.images)
            assert torch.equal(traced.targets["mask"], plain.targets["mask"])


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_gives_masks_in_the_pictures_own_pixels(workers):
    source = Scenes(11)
    for batch in EvalLoader(source, SIZE, 4, workers=workers):
        for index, mask, (height, width) in zip(batch.ids.tolist(), batch.targets["mask"], batch.size, strict=True):
            own = source.targets.read(index)["mask"]
            assert own.shape == (height, width)
            assert torch.equal(mask[:height, :width], torch.from_numpy(own).long())
            assert (mask[height:] == IGNORED).all() and (mask[:, width:] == IGNORED).all()


@pytest.mark.parametrize("shape", [None, (24, 30)])
def test_evaluation_says_how_much_of_a_letterbox_is_picture(shape):
    source = Scenes(11, shape)
    way = Preprocessing(size_px=(12, 14), crop="letterbox")
    for batch in EvalLoader(InMemory(source) if shape else source, way, 4, workers=0 if shape else 2):
        for image, (height, width), (rows, columns) in zip(batch.images, batch.size, batch.extent, strict=True):
            assert (rows == 12 or columns == 14) and abs(height / width - rows / columns) < 0.1
            assert image[:, rows:].abs().sum() + image[:, :, columns:].abs().sum() < 12 * 14 * 3 / 128
            assert image[:, :rows, :columns].abs().mean() > 0.1
    assert next(iter(EvalLoader(source, SIZE, 4))).extent is None


def test_a_mask_of_another_size_is_a_bad_picture():
    source = Scenes(300, (20, 30), short_masks=(2, 7))
    with pytest.raises(BadPicture, match="its mask has 30 x 19 px, the picture 30 x 20 px"):
        source.sample(2)
    held = InMemory(source)
    assert len(held) == 298 and "scenes/7" in source.bad.reasons


def test_parts_and_copies_in_memory_keep_masks_beside_their_pictures():
    source = Scenes(20, (24, 30))
    train, val = carve(source, 0.2, 0, "val")
    for part in (train, val, InMemory(val), Subset(InMemory(train), [3, 1]), with_classes(val, ("d", "c", "b", "a"))):
        for index in range(len(part)):
            picture, large = part.sample(index)
            shown = picture[..., 0] // LEVELS
            assert np.array_equal(large["mask"], 3 - shown if part.classes[0] == "d" else shown)
    small = InMemory(source, shrink_px=12)
    assert small.pictures.shape[1:3] == (12, 15) == small.targets.stacked()["mask"].shape[1:]
    assert (small.pictures[..., 0] // LEVELS == small.targets.stacked()["mask"].numpy()).mean() > 0.9


def test_pictures_without_targets_have_none_in_their_batches():
    source = Scenes(16)
    source.targets = NoTargets(16)
    assert batches(source, steps=1)[0].targets == {}
