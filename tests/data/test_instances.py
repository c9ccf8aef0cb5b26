"""Shapes of objects: read, packed, kept, and moved exactly as pixels are; torchvision as peer."""

import json

import numpy as np
import pytest
import torch

from data.boxed_made import coco_json, write_coco, write_pictures
from vitreous import keys as K
from vitreous.batch import IGNORED
from vitreous.data.augmentation import Augmentation, CropSettings
from vitreous.data.base import Source, with_classes
from vitreous.data.fingerprint import names_digest
from vitreous.data.loader import EvalLoader, TrainLoader
from vitreous.data.memory import InMemory
from vitreous.data.names import Layout, LayoutSettings
from vitreous.data.objects import Outlines, checked
from vitreous.data.sources import DataSettings, open_sources
from vitreous.data.targets import Instances
from vitreous.data.targets.instances import box_shape, packed, shown, unpacked
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError

CANVAS = (30, 44)


class Blobs(Outlines):
    """Discs around the middles of boxes."""

    def __init__(self, boxes, lacking=()):
        self.boxes, self.lacking = boxes, lacking

    def are_known(self, numbers):
        return ~np.isin(numbers, self.lacking)

    def mask(self, number, height, width):
        if number in self.lacking:
            return None
        x0, y0, x1, y1 = self.boxes[number]
        rows, columns = np.ogrid[:height, :width]
        return ((columns + 0.5 - (x0 + x1) / 2) / (x1 - x0)) ** 2 + (
            (rows + 0.5 - (y0 + y1) / 2) / (y1 - y0)
        ) ** 2 < 0.25


class Discs(Source):
    """Up to 11 discs in a picture, more than a byte holds; the first channel shows those of the first bit."""

    def __init__(self, num=12, shape=None, lacking=()):
        rng = np.random.default_rng(4)
        self.name, self.classes = "discs", ("a", "b", "c")
        sizes = np.array([shape or rng.integers(30, 60, 2) for _ in range(num)])
        owner = np.repeat(np.arange(num), rng.integers(0, 12, num))
        low = rng.uniform(0, 0.6, (len(owner), 2))
        sides = np.tile(sizes[owner][:, ::-1], 2)
        boxes = np.concatenate([low, low + rng.uniform(0.15, 0.39, low.shape)], axis=1) * sides
        objects = checked(owner, boxes, rng.integers(0, 3, len(owner)), rng.random(len(owner)) < 0.1, sizes)
        self.targets = Instances(objects, sizes, Blobs(boxes, lacking))

    def read(self, index):
        height, width = self.targets.sizes[index]
        picture = np.zeros((height, width, 3), dtype=np.uint8)
        shapes = self.targets.shapes(index)
        picture[..., 0] = 255 * shapes[0] if shapes else 0
        return picture

    def where(self, index):
        return f"discs {index}"


def test_bits_hold_any_number_of_shapes():
    shapes = [np.random.default_rng(seed).random((7, 9)) < 0.4 for seed in range(19)]
    bits = packed(shapes, (7, 9))
    assert bits.shape == (7, 9, 3) and bits.dtype == np.uint8
    assert all(np.array_equal(one, other) for one, other in zip(shapes, unpacked(bits, 19), strict=True))
    assert packed([], (7, 9)).shape == (7, 9, 1)


def test_objects_that_are_shown():
    shapes = [np.random.default_rng(seed).random((10, 9)) < 0.05 * (seed % 3) for seed in range(11)]
    found = shown(torch.tensor(packed(shapes, (10, 9)))[None])
    assert found[0, :11].tolist() == [shape.any() for shape in shapes] and not found[0, 11:].any()


def test_of_what_only_a_box_is_known_that_is_the_shape():
    source = Discs(6, lacking=(0, 2))
    boxes, shapes = source.targets.of(0).boxes, source.targets.shapes(0)
    assert np.array_equal(shapes[0], box_shape(boxes[0], *source.targets.sizes[0]))
    assert 0 < shapes[1].sum() < box_shape(boxes[1], *source.targets.sizes[0]).sum()
    assert box_shape((3.1, 2.2, 3.2, 2.3), 5, 6).sum() == 1  # thinner than a pixel
    assert np.argwhere(box_shape((1, 0, 3, 2), 5, 6)).tolist() == [[0, 1], [0, 2], [1, 1], [1, 2]]


# ---- Moved


def theirs(mask, geometry, place):
    """One picture's masks cut by torchvision, step by step: crop, resize, pad, crop, flip."""
    F = pytest.importorskip("torchvision.transforms.v2").functional
    tv = pytest.importorskip("torchvision.tv_tensors")
    cropped = F.crop(tv.Mask(mask), *geometry.box[place].tolist())
    to_y, to_x, tall, wide = geometry.placed[place].tolist()
    seen_y, seen_x, rows, columns = geometry.seen[place].tolist()
    around = [to_x, to_y, geometry.canvas[1] - to_x - wide, geometry.canvas[0] - to_y - tall]
    exact = F.InterpolationMode.NEAREST_EXACT
    resized = tv.Mask(F.resize_image(torch.as_tensor(cropped), [tall, wide], interpolation=exact))
    padded = F.pad(resized, [max(side, 0) for side in around])
    shown = F.crop(padded, seen_y + max(-to_y, 0), seen_x + max(-to_x, 0), rows, columns)
    left, top = seen_x, seen_y
    whole = F.pad(shown, [left, top, geometry.canvas[1] - left - columns, geometry.canvas[0] - top - rows])
    mirror = int(geometry.mirror[place])
    flipped = F.horizontal_flip(tv.Mask(whole[..., :mirror])) if mirror else whole[..., :0]
    return torch.cat([torch.as_tensor(flipped), torch.as_tensor(whole)[..., mirror:]], dim=-1)


@pytest.mark.parametrize("crop", ["random-resized", "zoom", "pad", "squash"])
def test_shapes_move_as_torchvision_moves_masks(crop):
    fit = "squash" if crop == "pad" else "letterbox"
    settings = CropSettings(method=crop, pad_px=9, zoom=(0.3, 2.0), scale=(0.2, 1.0))
    view = Augmentation(crop=settings).build(Preprocessing(size_px=CANVAS, crop=fit))
    source = Discs(24, (40, 52))
    targets, geometry = source.targets, view.geometry(K.sample_keys(0, 0, torch.arange(24)), 40, 52)
    stacked = InMemory(source).targets.stacked()
    moved = targets.moved(stacked, geometry)["masks"]
    assert moved.shape == (24, *CANVAS, 2)
    different = 0
    for place in range(24):
        for number, shape in enumerate(targets.shapes(place)):
            ours = moved[place, ..., number // 8] >> (number % 8) & 1
            different += int((ours != theirs(torch.tensor(shape)[None].to(torch.uint8), geometry, place)[0]).sum())
    # They compute in 32-bit floats where a pixel's middle falls onto a border; we in whole numbers.
    assert different <= 1e-3 * moved.numel() * 8
    assert 0 < (geometry.mirror > 0).sum() < 24


def test_shapes_are_where_their_pixels_are():
    """The first object is drawn into the picture: in the view it is bright where its mask says so."""
    settings = CropSettings(method="zoom", zoom=(0.7, 1.6))
    flat = Preprocessing(size_px=(32, 40), crop="letterbox", mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    loader = TrainLoader(Discs(24), [Augmentation(crop=settings).build(flat)], batch_size=12, seed=0)
    num = 0
    for batch in loader.batches(0, 4):
        seen = batch.targets["classes"][:, 0] != IGNORED
        assert ((batch.targets["masks"][seen, ..., 0] & 1) - batch.images[seen, 0]).abs().mean() < 0.03
        num += int(seen.sum())
    assert num > 10


def same(one, other):
    assert torch.equal(one.ids, other.ids) and one.targets.keys() == {"boxes", "classes", "crowd", "masks"}
    assert all(torch.equal(one.targets[name], other.targets[name]) for name in one.targets)


def test_the_same_batches_for_any_number_of_workers_and_in_memory():
    view = Augmentation(crop=CropSettings(method="zoom")).build(Preprocessing(size_px=CANVAS, crop="letterbox"))
    source = Discs(12, (48, 64))
    found = {
        name: list(TrainLoader(one, [view], batch_size=5, seed=3, workers=workers).batches(0, 2))
        for name, one, workers in (("none", source, 0), ("two", source, 2), ("memory", InMemory(source), 0))
    }
    for name in ("two", "memory"):
        for one, other in zip(found["none"], found[name], strict=True):
            same(one, other)
    batch = found["none"][0]
    assert batch.targets["masks"].shape == (5, *CANVAS, 2)
    known = batch.targets["classes"] != IGNORED
    assert known.any() and not (known & ~shown(batch.targets["masks"])[:, : source.targets.most]).any()


def test_a_whole_step_of_the_loader_is_one_graph():
    view = Augmentation(crop=CropSettings(method="zoom")).build(Preprocessing(size_px=(16, 16), crop="letterbox"))
    loader = TrainLoader(InMemory(Discs(4, (48, 64))), [view], batch_size=2, seed=0)
    (inputs,) = loader.inputs(0, 1)
    same(loader.prepare(*inputs), torch.compile(loader.prepare, backend="eager", fullgraph=True)(*inputs))


@pytest.mark.parametrize("shape", [None, (48, 64)])
def test_evaluation_has_the_shapes_at_the_pictures_own_size(shape):
    source = Discs(7, shape)
    held = InMemory(source) if shape else source
    way, at = Preprocessing(size_px=(16, 16), crop="letterbox"), 0
    for batch in EvalLoader(held, way, 3):
        for bits, (height, width) in zip(batch.targets["masks"].numpy(), batch.size.tolist(), strict=True):
            shapes = source.targets.shapes(at)
            own = unpacked(bits[:height, :width], len(shapes))
            assert all(np.array_equal(one, other) for one, other in zip(own, shapes, strict=True))
            assert not bits[height:].any() and not bits[:, width:].any()
            at += 1
    assert at == 7


# ---- Kept


def test_kept_smaller_taken_and_renamed():
    source = Discs(8)
    small = InMemory(source, shrink_px=20)
    for index in (0, 5):
        for one, other in zip(small.targets.shapes(index), source.targets.shapes(index), strict=True):
            assert one.shape == small.read(index).shape[:2]
            assert abs(one.mean() - other.mean()) < 0.02
    again = with_classes(small, ("c", "a", "b")).targets.take(np.array([5, 0]))
    assert np.array_equal(again.shapes(0)[0], small.targets.shapes(5)[0]) and isinstance(again, Instances)
    kept = InMemory(Discs(8, (40, 40)))
    assert kept.targets.stacked()["masks"].shape == (8, 40, 40, 2)
    few = kept.targets.take(np.flatnonzero(np.diff(kept.targets._starts) < 8))
    assert few.stacked()["masks"].shape[-1] == 1
    assert np.array_equal(few.shapes(0)[0], few.take(np.array([0])).shapes(0)[0])


def test_other_shapes_of_the_same_boxes_are_other_data(tmp_path):
    square, corner = [[5, 6, 25, 6, 25, 30, 5, 30]], [[5, 6, 25, 6, 25, 30]]
    digests = []
    for number, outline in enumerate((square, corner)):
        document = coco_json([0])
        document["annotations"][0]["segmentation"] = outline
        root = write_coco(tmp_path / str(number), [0], annotations=document["annotations"])
        for kind in ("boxes", "instances"):
            (source,) = open_sources(str(root), Layout(targets=kind)).values()
            digests.append(names_digest(source))
    assert digests[0] == digests[2] != digests[1] != digests[3]


# ---- Read


def test_shapes_are_read_where_they_are_asked_for(tmp_path):
    annotations = coco_json()["annotations"]
    annotations[0]["segmentation"] = [[5, 6, 25, 6, 25, 30]]
    root = write_coco(tmp_path / "some", annotations=annotations)
    (plain,) = open_sources(str(root)).values()
    assert plain.targets.task == "detect" and not plain.targets.large
    (source,) = open_sources(str(root), Layout(targets="instances")).values()
    assert source.targets.task == "instances"
    assert any("whose box is used as their shape: 5 of 6" in note for note in source.notes)
    assert [shape.sum() for shape in source.targets.shapes(0)] == [240, 30 * 38]
    with pytest.raises(UserError, match="no outlines"):
        open_sources(str(write_coco(tmp_path / "none")), Layout(targets="instances"))
    with pytest.raises(UserError, match="no boxes in it"):
        open_sources(str(write_pictures(tmp_path / "bare" / "cat").parent), Layout(targets="instances"))
    with pytest.raises(UserError, match="have no objects"):
        open_sources("rendered:segment", Layout(targets="instances"))


def test_polygons_of_yolo(tmp_path):
    write_pictures(tmp_path / "images", [0, 1])
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_text("0 0.1 0.1 0.5 0.1 0.5 0.5\n1 0.5 0.5 0.4 0.4\n")
    (tmp_path / "data.yaml").write_text("train: images\nnames: [cat, dog]\n")
    (source,) = open_sources(str(tmp_path), Layout(targets="instances")).values()
    triangle, box = source.targets.shapes(0)
    assert triangle.sum() == pytest.approx(0.5 * 24 * 16, abs=12) and box.sum() == 24 * 16


def test_shapes_of_shared_and_rendered_sets(shared_data):
    found = DataSettings(where="coco_small", layout=LayoutSettings(targets="instances"), keep_gb=0.0).build()
    assert found.train.targets.most == 35 and found.train.targets.num_bytes == 5
    sample = found.train.sample(3)
    assert sample.large["masks"].shape[:2] == sample.picture.shape[:2]
    (scene, *_) = open_sources("rendered:objects", Layout(targets="instances")).values()
    index = int(np.flatnonzero(np.diff(scene.targets._starts) == 3)[0])
    for shape, box in zip(scene.targets.shapes(index), scene.targets.of(index).boxes, strict=True):
        rows, columns = (np.flatnonzero(shape.any(axis=axis)) for axis in (1, 0))
        ends = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
        assert np.abs(np.array(ends) - box).max() < 2.5


def test_a_broken_outline_is_a_bad_picture(tmp_path):
    annotations = coco_json()["annotations"]
    annotations[0]["segmentation"] = {"size": [40, 60], "counts": [1, 2]}
    root = write_coco(tmp_path, annotations=annotations)
    (source,) = open_sources(str(root), Layout(targets="instances")).values()
    (batch,) = EvalLoader(source, Preprocessing(size_px=(16, 16)), 8)
    assert len(batch) == 3 and "an outline of it cannot be read" in json.dumps(source.bad.reasons)
