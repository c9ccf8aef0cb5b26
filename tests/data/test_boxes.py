"""Boxes: taken, renamed, hashed, scaled and moved with their pictures; what is wrong with them; torchvision as peer."""

import hashlib

import numpy as np
import pytest
import torch

from vitreous import keys as K
from vitreous.batch import IGNORED
from vitreous.data.augmentation import Augmentation, ColourSettings, CropSettings, MixSettings, WarpSettings
from vitreous.data.base import Source, with_classes
from vitreous.data.geometry import Geometry
from vitreous.data.loader import EvalLoader, TrainLoader
from vitreous.data.memory import InMemory
from vitreous.data.objects import Fault, checked
from vitreous.data.splits import carve
from vitreous.data.targets import Boxes
from vitreous.data.targets.boxes import LARGE_SHARE, LEAST_PX, SEEN_SHARE
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError

KEYS = K.sample_keys(0, 0, torch.arange(24))
CANVAS = (48, 40)


def made(boxes, classes=None, sizes=((40, 52),), owner=None, crowd=None):
    owner = [0] * len(boxes) if owner is None else owner
    classes = [0] * len(boxes) if classes is None else classes
    crowd = [False] * len(boxes) if crowd is None else crowd
    boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    return Boxes(checked(owner, boxes, classes, crowd, np.asarray(sizes)), np.asarray(sizes))


def some_boxes(num, height, width, seed=0):
    """(num, M, 4) inside of a picture."""
    draws = np.random.default_rng(seed).random((num, 9, 4)) * (width, height, width, height)
    return np.concatenate([np.minimum(draws[..., :2], draws[..., 2:]), np.maximum(draws[..., :2], draws[..., 2:])], -1)


class Painted(Source):
    """A bright box of its own colour per object, on black: the pixels tell where the boxes are."""

    def __init__(self, num=12, shape=None):
        self.name, self.classes = "painted", ("a", "b", "c")
        sizes = np.array([shape or (40 + 2 * i, 88 - 2 * i) for i in range(num)])
        rng, owner, boxes = np.random.default_rng(0), [], []
        for index, (height, width) in enumerate(sizes):
            for _ in range(index % 4):
                x, y = rng.integers(0, width - 20), rng.integers(0, height - 20)
                owner.append(index)
                boxes.append((x, y, x + rng.integers(10, 20), y + rng.integers(10, 20)))
        self.targets = made(boxes, np.arange(len(boxes)) % 3, sizes, owner)

    def read(self, index):
        picture = np.zeros((*self.targets.sizes[index], 3), dtype=np.uint8)
        for x0, y0, x1, y1 in self.targets.of(index).boxes.astype(int):
            picture[y0:y1, x0:x1] = 255
        return picture

    def where(self, index):
        return f"painted {index}"


def digest(targets):
    found = hashlib.sha256()
    targets.update(found)
    return found.hexdigest()


# ---- Faults


@pytest.mark.parametrize(
    ("box", "fault", "fixed"),
    [
        ((2, 3, 10, 12), Fault.NONE, (2, 3, 10, 12)),
        ((10, 3, 2, 12), Fault.SWAPPED, (2, 3, 10, 12)),
        ((-9, 3, 10, 12), Fault.CUT, (0, 3, 10, 12)),
        ((2, 3, 52.6, 40.9), Fault.NONE, (2, 3, 52, 40)),  # by less than a pixel
        ((2, 3, 60, 40), Fault.CUT, (2, 3, 52, 40)),
        ((60, 3, 70, 12), Fault.OUTSIDE, None),
        ((2, 3, 2, 12), Fault.EMPTY, None),
        ((20, 3, 20 + 1e-8, 12), Fault.EMPTY, None),
        ((2, 3, float("nan"), 12), Fault.EMPTY, None),
        ((-1e300, -1e30, 1e300, 1e39), Fault.CUT, (0, 0, 52, 40)),
    ],
)
def test_what_is_wrong_with_a_box(box, fault, fixed):
    targets = made([box])
    assert targets.objects.faults.tolist() == [fault]
    assert targets.of(0).boxes.tolist() == ([] if fixed is None else [pytest.approx(fixed)])
    assert (targets.small()["classes"][0, 0] == IGNORED) == (fixed is None)


def test_the_same_box_twice_is_one_unless_its_class_or_picture_is_another():
    box = (2, 3, 10, 12)
    targets = made([box, box, box, box], [0, 0, 1, 0], [(40, 52), (40, 52)], [0, 0, 0, 1])
    assert targets.objects.faults.tolist() == [Fault.NONE, Fault.REPEATED, Fault.NONE, Fault.NONE]
    assert targets.small()["classes"].tolist() == [[0, 1], [0, IGNORED]]


# ---- As targets


def test_objects_are_padded_to_the_most_that_a_picture_has():
    source = Painted()
    small = source.targets.small()
    assert small["boxes"].shape == (12, 3, 4) and small["boxes"].dtype == torch.float32
    assert small["classes"].dtype == torch.int64 and small["crowd"].dtype == torch.bool
    assert (small["classes"] != IGNORED).sum(1).tolist() == [index % 4 for index in range(12)]
    assert (small["boxes"][small["classes"] == IGNORED] == 0).all()
    assert made([], sizes=[(4, 4)] * 2).small()["boxes"].shape == (2, 1, 4)  # no object at all


def test_taken_in_any_order_and_more_than_once():
    source = Painted()
    taken, whole = source.targets.take(np.array([7, 0, 3, 7])), source.targets.small()
    for name, part in taken.small().items():
        assert torch.equal(part, whole[name][[7, 0, 3, 7]])
    assert taken.ids.tolist() == [8, 1, 4, 8] and taken.sizes.tolist() == source.targets.sizes[[7, 0, 3, 7]].tolist()
    assert taken.described(0, source.classes) == source.described(7)
    assert source.described(0) == "no objects"
    assert len(source.targets.take(np.arange(0))) == 0


def test_renamed_and_counted_and_told_apart():
    source = Painted()
    renamed = with_classes(source, ("c", "x", "a", "b")).targets
    assert (
        renamed.counts(4).tolist()
        == [source.targets.counts(3)[k] for k in (2,)] + [0] + source.targets.counts(3)[:2].tolist()
    )
    assert digest(renamed) != digest(source.targets) == digest(Painted().targets)
    assert digest(source.targets.take(np.arange(11))) != digest(source.targets)
    with pytest.raises(UserError, match="has the class 'b'"):
        with_classes(source, ("a", "c"))


def test_splits_hold_pictures_with_and_without_objects():
    source = Painted(80, (64, 64))
    train, val = carve(source, 0.25, 0, "val")
    for part in (train, val):
        assert 0.2 < (np.diff(part.targets._starts) == 0).mean() < 0.3


def test_boxes_shrink_with_pictures_that_are_kept_small():
    source = Painted(8)
    small = InMemory(source, shrink_px=20)
    for index in range(8):
        height, width = small.read(index).shape[:2]
        assert min(height, width) == 20 and small.targets.sizes[index].tolist() == [height, width]
        factor = np.array([width, height, width, height]) / np.tile(source.targets.sizes[index][::-1], 2)
        np.testing.assert_allclose(small.targets.of(index).boxes, source.targets.of(index).boxes * factor, rtol=1e-6)


# ---- Moved


def theirs(boxes, geometry: Geometry, place, size):
    """One picture's boxes cut by torchvision, step by step: crop, resize, pad, crop, flip."""
    F = pytest.importorskip("torchvision.transforms.v2").functional
    tv = pytest.importorskip("torchvision.tv_tensors")
    found = tv.BoundingBoxes(torch.tensor(boxes), format="XYXY", canvas_size=size)
    cropped = F.crop(found, *geometry.box[place].tolist())
    to_y, to_x, tall, wide = geometry.placed[place].tolist()
    seen_y, seen_x, rows, columns = geometry.seen[place].tolist()
    around = [to_x, to_y, geometry.canvas[1] - to_x - wide, geometry.canvas[0] - to_y - tall]
    padded = F.pad(F.resize(cropped, [tall, wide]), [max(side, 0) for side in around])
    shown = F.crop(padded, seen_y + max(-to_y, 0), seen_x + max(-to_x, 0), rows, columns)
    cut = tv.BoundingBoxes(shown + torch.tensor([seen_x, seen_y] * 2), format="XYXY", canvas_size=geometry.canvas)
    mirror = int(geometry.mirror[place])
    if mirror:
        cut = F.horizontal_flip(tv.BoundingBoxes(cut, format="XYXY", canvas_size=(geometry.canvas[0], mirror)))
    scale = tall / geometry.box[place, 2] * (wide / geometry.box[place, 3])
    return torch.as_tensor(cut), area(torch.tensor(boxes)) * scale


def area(boxes):
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)


@pytest.mark.parametrize("crop", ["random-resized", "zoom", "pad", "squash"])
@pytest.mark.parametrize("shape", [(40, 52), (61, 37)])
def test_boxes_move_and_are_dropped_as_the_rule_says(crop, shape):
    fit = "squash" if crop == "pad" else "letterbox"
    settings = CropSettings(method=crop, pad_px=9, zoom=(0.3, 2.0), scale=(0.2, 1.0))
    view = Augmentation(crop=settings).build(Preprocessing(size_px=CANVAS, crop=fit))
    given, geometry = some_boxes(24, *shape), view.geometry(KEYS, *shape)
    small = {
        "boxes": torch.tensor(given, dtype=torch.float32),
        "classes": torch.arange(9).expand(24, 9),
        "crowd": torch.zeros(24, 9, dtype=torch.bool),
    }
    moved = made([]).moved(small, geometry)
    num_dropped = 0
    for place in range(24):
        cut, whole = theirs(given[place], geometry, place, shape)
        left, shown = area(cut), geometry.seen[place, 2:].prod()
        stays = (left / whole >= SEEN_SHARE) | (left >= LARGE_SHARE * shown)
        stays &= (cut[:, 2:] - cut[:, :2] >= LEAST_PX).all(-1)
        assert torch.equal(moved["classes"][place] != IGNORED, stays)
        torch.testing.assert_close(moved["boxes"][place][stays].double(), cut[stays], atol=1e-4, rtol=1e-5)
        assert (moved["boxes"][place][~stays] == 0).all()
        num_dropped += int((~stays).sum())
    assert num_dropped > (0 if crop == "squash" else 10)
    assert 0 < (geometry.mirror > 0).sum() < 24


@pytest.mark.parametrize("crop", ["random-resized", "zoom", "squash"])
def test_pixels_are_where_the_boxes_say(crop):
    """Bright boxes on black: in the view, all that is bright lies in a box, and whole boxes are bright."""
    settings = CropSettings(method=crop, zoom=(0.7, 1.6), scale=(0.5, 1.0))
    view = Augmentation(crop=settings).build(Preprocessing(size_px=CANVAS, crop="letterbox", mean=(0.0, 0.0, 0.0)))
    source = Painted(24)
    loader = TrainLoader(source, [view], batch_size=12, seed=0)
    num = 0
    for batch in loader.batches(0, 4):
        pixels = batch.images[:, 0] * 0.5  # 0 to 1, as std is a half
        for at in range(len(batch)):
            boxes = batch.targets["boxes"][at][batch.targets["classes"][at] != IGNORED]
            for x0, y0, x1, y1 in boxes.tolist():
                inner = pixels[at, round(y0) + 1 : round(y1) - 1, round(x0) + 1 : round(x1) - 1]
                assert inner.numel() == 0 or inner.min() > 0.9
                num += inner.numel() > 0
    assert num > 20


def test_the_way_back():
    view = Augmentation(crop=CropSettings(method="zoom")).build(Preprocessing(size_px=CANVAS, crop="letterbox"))
    geometry = view.geometry(KEYS, 40, 52)
    given = torch.tensor(some_boxes(24, 40, 52))
    corners = geometry.points(given.reshape(24, -1, 2)).reshape(24, 9, 4)  # uncut, and flipped ones swapped
    torch.testing.assert_close(geometry.boxes_back(corners), given)


def test_letterboxed_boxes_come_back_from_prediction():
    way = Preprocessing(size_px=CANVAS, crop="letterbox")
    geometry = way.geometry(KEYS, 40, 52)
    given = torch.tensor(some_boxes(24, 40, 52))
    there, share = geometry.boxes(given)
    assert (share > 1 - 1e-9).all() and there[..., 3].max() <= way.placement(40, 52).extent[0]
    torch.testing.assert_close(geometry.boxes_back(there), given)


# ---- Batches


def test_a_whole_step_of_the_loader_is_one_graph():
    augmentation = Augmentation(crop=CropSettings(method="zoom"), colour=ColourSettings(brightness=0.4))
    view = augmentation.build(Preprocessing(size_px=(16, 16), crop="letterbox"))
    loader = TrainLoader(InMemory(Painted(4, (48, 64))), [view], batch_size=2, seed=0)
    (inputs,) = loader.inputs(0, 1)
    same(loader.prepare(*inputs), torch.compile(loader.prepare, backend="eager", fullgraph=True)(*inputs))


def test_zoom_on_a_letterbox_is_scale_jitter():
    """Torchvision's transform for LSJ: a factor of the size that fits into the canvas, in the picture's proportions."""
    v2 = pytest.importorskip("torchvision.transforms.v2")
    tv = pytest.importorskip("torchvision.tv_tensors")
    keys = K.sample_keys(0, 0, torch.arange(200))
    for factor in (0.3, 1.0, 1.7):
        crop = CropSettings(method="zoom", zoom=(factor, factor))
        view = Augmentation(crop=crop).build(Preprocessing(size_px=(48, 48), crop="letterbox"))
        for size in ((40, 52), (97, 31)):
            picture = tv.Image(torch.zeros(3, *size, dtype=torch.uint8))
            theirs = v2.ScaleJitter((48, 48), scale_range=(factor, factor))(picture).shape[-2:]
            found = view.geometry(keys, *size)
            assert (found.placed[:, 2:] - torch.tensor(theirs)).abs().max() <= 1  # they round down
            assert torch.equal(found.extent, found.placed[:, 2:].clamp(max=48))


def same(one, other):
    assert torch.equal(one.images, other.images) and torch.equal(one.ids, other.ids)
    assert one.targets.keys() == other.targets.keys() == {"boxes", "classes", "crowd"}
    assert all(torch.equal(one.targets[name], other.targets[name]) for name in one.targets)
    assert (one.extent is None) == (other.extent is None)
    assert one.extent is None or torch.equal(one.extent, other.extent)


@pytest.mark.parametrize("crop", ["zoom", "random-resized"])
def test_the_same_batches_for_any_number_of_workers_and_in_memory(crop):
    augmentation = Augmentation(crop=CropSettings(method=crop), colour=ColourSettings(brightness=0.4, hue=0.1))
    view = augmentation.build(Preprocessing(size_px=CANVAS, crop="letterbox"))
    source = Painted(12, (48, 64))
    found = {
        name: list(TrainLoader(one, [view], batch_size=5, seed=3, workers=workers).batches(0, 3))
        for name, one, workers in (
            ("none", source, 0),
            ("one", source, 1),
            ("two", source, 2),
            ("memory", InMemory(source), 0),
        )
    }
    for name in ("one", "two", "memory"):
        for one, other in zip(found["none"], found[name], strict=True):
            same(one, other)
    assert (found["none"][0].extent is not None) == (crop == "zoom")


@pytest.mark.parametrize("fit", ["letterbox", "squash"])
@pytest.mark.parametrize("shape", [None, (48, 64)])
def test_evaluation_has_all_boxes_in_pixels_of_the_canvas(fit, shape):
    source = Painted(shape=shape)
    source = InMemory(source) if shape else source
    way = Preprocessing(size_px=(4, 6), crop=fit)  # so small that training would drop some
    batches, whole = list(EvalLoader(source, way, 5)), source.targets.small()
    boxes = torch.cat([batch.targets["boxes"] for batch in batches])
    size = torch.cat([batch.size for batch in batches])
    assert size.tolist() == source.targets.sizes.tolist()
    extent = torch.tensor([way.placement(*one).extent for one in size.tolist()])
    assert (batches[0].extent is None) == (fit == "squash")
    factor = (extent / size).flip(1).repeat(1, 2)[:, None]
    torch.testing.assert_close(boxes, whole["boxes"] * factor)
    assert torch.equal(torch.cat([batch.targets["classes"] for batch in batches]), whole["classes"])


@pytest.mark.parametrize(
    ("augmentation", "message"),
    [
        (Augmentation(warp=WarpSettings(ops=2)), "RandAugment would move"),
        (Augmentation(mix=MixSettings(mixup=0.2)), "cannot be mixed"),
    ],
)
def test_what_boxes_cannot_follow_is_refused(augmentation, message):
    with pytest.raises(UserError, match=message):
        TrainLoader(Painted(), [augmentation.build(Preprocessing(size_px=CANVAS))], batch_size=4, seed=0)
