"""Where pixels go and come from: masks against torchvision's, points there and back, predictions back."""

import numpy as np
import pytest
import torch
from torch import Tensor

from vitreous import keys as K
from vitreous.data.geometry import IGNORED, Geometry, of_placement, resized_boxes
from vitreous.data.placement import placed
from vitreous.data.transforms import Augmentation, Preprocessing

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


@pytest.mark.parametrize("crop", ["random-resized", "pad", "squash", "centre"])
@pytest.mark.parametrize("shape", [(40, 52), (31, 17), (9, 60)])
def test_masks_move_as_torchvisions(crop, shape):
    view = Augmentation(crop=crop, pad_px=3).build(Preprocessing(size_px=(24, 20)))
    given, geometry = masks(*shape), view.geometry(KEYS, *shape)
    moved = geometry.labels(given)
    assert moved.dtype == given.dtype and moved.shape == (24, 24, 20)
    for place in range(24):
        assert torch.equal(moved[place], theirs(given, geometry, place))
    assert 0 < (geometry.mirror > 0).sum() < 24


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
    view = Augmentation(crop="random-resized").build(Preprocessing(size_px=(24, 20)))
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
