"""Where pixels go and come from: masks against torchvision's, points there and back, predictions back."""

import numpy as np
import pytest
import torch
from torch import Tensor

from vitreous import keys as K
from vitreous.batch import IGNORED
from vitreous.data.augmentation import Augmentation, CropSettings
from vitreous.data.geometry import Geometry, of_placement, resized_boxes
from vitreous.data.placement import placed
from vitreous.data.transforms import Preprocessing

KEYS = K.sample_keys(0, 0, torch.arange(24))


def masks(height: int, width: int, num: int = 24) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 9, (num, height, width), generator=generator, dtype=torch.int16)


def theirs(mask: Tensor, geometry: Geometry, place: int) -> Tensor:
    """One mask moved by torchvision, step by step: crop, resize, pad, crop, flip."""
    v2 = pytest.importorskip("torchvision.transforms.v2")
    TF, Mask = v2.functional, pytest.importorskip("torchvision.tv_tensors").Mask
    top, left, height, width = geometry.box[place].tolist()
    cropped = TF.crop(Mask(mask[place]), top, left, height, width)
    to_y, to_x, tall, wide = geometry.placed[place].tolist()
    # Masks are resized by "nearest" there, which takes the pixel at a corner; ours is at the middle.
    resized = TF.resize_image(cropped[None], [tall, wide], interpolation=v2.InterpolationMode.NEAREST_EXACT)[0]
    canvas_h, canvas_w = geometry.canvas
    around = [to_x, to_y, canvas_w - to_x - wide, canvas_h - to_y - tall]
    padded = TF.pad(Mask(resized), [max(side, 0) for side in around], fill=IGNORED)
    cut = TF.crop(padded, max(-to_y, 0), max(-to_x, 0), canvas_h, canvas_w)
    seen_y, seen_x, rows, columns = geometry.seen[place].tolist()
    visible = torch.full_like(cut, IGNORED)
    visible[seen_y : seen_y + rows, seen_x : seen_x + columns] = cut[seen_y : seen_y + rows, seen_x : seen_x + columns]
    mirror = int(geometry.mirror[place])
    visible[:, :mirror] = TF.horizontal_flip(Mask(visible[:, :mirror].clone()))
    return visible


def on_border(geometry: Geometry, place: int, axis: int) -> Tensor:
    """Of the rows or columns of the canvas: whose middle lies between two pixels, so that rounding decides."""
    at = torch.arange(geometry.canvas[axis])
    mirror = int(geometry.mirror[place]) if axis == 1 else 0
    at = torch.where(at < mirror, mirror - 1 - at, at) - geometry.placed[place, axis]
    return (2 * at + 1) * geometry.box[place, axis + 2] % (2 * geometry.placed[place, axis + 2]) == 0


@pytest.mark.parametrize("crop", ["random-resized", "zoom", "pad", "squash", "centre"])
@pytest.mark.parametrize("shape", [(40, 52), (31, 17), (9, 60)])
def test_masks_move_as_torchvisions(crop, shape):
    view = Augmentation(crop=CropSettings(method=crop, pad_px=3)).build(Preprocessing(size_px=(24, 20)))
    given, geometry = masks(*shape), view.geometry(KEYS, *shape)
    moved = geometry.labels(given)
    assert moved.dtype == given.dtype and moved.shape == (24, 24, 20)
    num_sure = 0
    for place in range(24):
        sure = ~(on_border(geometry, place, 0)[:, None] | on_border(geometry, place, 1))
        assert torch.equal(moved[place][sure], theirs(given, geometry, place)[sure])
        num_sure += int(sure.sum())
    assert num_sure > 0.7 * moved.numel()
    assert 0 < (geometry.mirror > 0).sum() < 24


def test_zoomed_pictures_fill_the_canvas_or_leave_room_below_and_to_the_right():
    view = Augmentation(crop=CropSettings(method="zoom", zoom=(0.5, 2.0))).build(Preprocessing(size_px=(24, 20)))
    keys = K.sample_keys(0, 0, torch.arange(2000))
    geometry = view.geometry(keys, 40, 30)
    top, left, tall, wide = geometry.placed.unbind(1)
    assert (int(tall.min()), int(tall.max()), int(wide.min()), int(wide.max())) == (13, 52, 10, 40)  # 1 is 26 x 20
    assert (top <= 0).all() and (top + tall >= torch.minimum(tall, torch.tensor(24))).all()
    assert (left <= 0).all() and (left + wide >= torch.minimum(wide, torch.tensor(20))).all()
    assert torch.equal(geometry.extent, torch.stack([tall.clamp(max=24), wide.clamp(max=20)], dim=1))
    assert torch.equal(geometry.mirror, torch.where(geometry.mirror > 0, geometry.extent[:, 1], 0))
    shares = -top[tall > 24] / (tall - 24)[tall > 24]  # anywhere alike
    assert abs(shares.mean() - 0.5) < 0.03 and shares.min() == 0 and shares.max() == 1


@pytest.mark.parametrize("fit", ["centre", "squash", "squash-centre", "letterbox"])
@pytest.mark.parametrize("shape", [(40, 52), (24, 20), (9, 60)])
def test_preprocessing_says_where_pixels_go(fit, shape):
    """Every source pixel a class of its own: what lands in the picture is what lands in the mask."""
    rows, columns = np.indices(shape).astype(np.uint8)
    picture = np.stack([rows * 4, columns * 4, np.full(shape, 200)], axis=2).astype(np.uint8)
    way = Preprocessing(size_px=(24, 20), crop=fit, mean=(0.0, 0.0, 0.0), interpolation="bilinear")
    shown = way.resized(picture).int()
    geometry = way.geometry(torch.zeros(1, dtype=torch.int64), *shape)
    for channel, mask in enumerate((rows, columns)):
        moved = geometry.labels(torch.from_numpy(mask.astype(np.int16))[None])[0]
        assert torch.equal(moved == IGNORED, shown[2] == 0)
        scale = max(1.0, shape[channel] / int(geometry.placed[0, 2 + channel]))
        assert ((4 * moved - shown[channel]).abs()[moved != IGNORED] <= 4 * scale + 3).all()
    extent = way.placement(*shape).extent
    assert geometry.extent[0].tolist() == list(extent)
    assert (shown[2, : extent[0], : extent[1]] == 200).all() and (shown[2] == 200).sum() == extent[0] * extent[1]


def test_points_go_with_the_pixels_and_come_back():
    view = Augmentation(crop=CropSettings(method="random-resized")).build(Preprocessing(size_px=(24, 20)))
    geometry = view.geometry(KEYS, 40, 52)
    boxes = geometry.box.double()
    corners = torch.stack([boxes[:, [1, 0]], boxes[:, [1, 0]] + boxes[:, [3, 2]]], dim=1)  # (B, 2, 2) as (x, y)
    flipped = (geometry.mirror > 0)[:, None]
    moved = geometry.points(corners)
    assert torch.equal(moved[..., 1], torch.tensor([0.0, 24.0]).double().expand(24, 2))
    across = torch.tensor([0.0, 20.0]).double().expand(24, 2)
    torch.testing.assert_close(moved[..., 0], torch.where(flipped, 20 - across, across))
    torch.testing.assert_close(geometry.points_back(moved), corners)


@pytest.mark.parametrize("fit", ["squash", "letterbox", "centre"])
@pytest.mark.parametrize("shape", [(40, 52), (11, 9)])
def test_predictions_come_back_to_the_picture(fit, shape):
    """A slope over the picture, taken to the canvas by pixel middles, comes back as it was where it is shown."""
    place = placed((24, 20), fit, 0.875, shape)
    y = (np.arange(24) + 0.5 - place.top) / place.tall
    x = (np.arange(20) + 0.5 - place.left) / place.wide
    canvas = np.stack([np.broadcast_to(y[:, None], (24, 20)), np.broadcast_to(x, (24, 20))]).astype(np.float32)
    back = place.restored(canvas, outside=np.nan)
    assert back.shape == (2, *shape)
    wanted = np.stack(np.meshgrid(*((np.arange(side) + 0.5) / side for side in shape), indexing="ij"))
    shown = ~np.isnan(back)
    assert shown.all() == (fit != "centre")
    pixel = 1 / min(place.tall, place.wide)  # at the very edge there is nothing to be linear between
    assert np.abs(back - wanted)[shown].max() <= 0.5 * pixel + 1e-6
    inner = np.s_[:, shape[0] // 3 : -shape[0] // 3, shape[1] // 3 : -shape[1] // 3]
    np.testing.assert_allclose(back[inner], wanted[inner], atol=1e-6)


def test_in_one_tensor_and_back():
    geometry = of_placement(placed((24, 20), "letterbox", 1.0, (40, 52)), KEYS)
    again = Geometry.unpacked(geometry.packed(), geometry.canvas)
    assert all(
        torch.equal(getattr(again, name), getattr(geometry, name)) for name in ("box", "placed", "seen", "mirror")
    )
    assert torch.equal(resized_boxes(geometry.box, (4, 4)).extent, torch.full((24, 2), 4))
