"""From raw logits to a class per pixel of the picture as it was given: the NumPy way, against torch's interpolation."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitreous.data.placement import Placement, placed
from vitreous.prediction import pixels
from vitreous.prediction.pixels import classified, windows


def logits(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) * 3


@pytest.mark.parametrize(("grid", "size"), [((4, 5), (33, 47)), ((1, 3), (8, 9)), ((6, 6), (6, 6)), ((8, 8), (5, 3))])
def test_squashed_pictures_against_torch(grid, size, monkeypatch):
    monkeypatch.setattr(pixels, "STRIP_VALUES", 300)  # several strips
    values = logits(7, *grid)
    found = classified(values, Placement(size, 0, 0, 64, 96, (64, 96)), temperature=1.7)
    large = F.interpolate(torch.from_numpy(values)[None], size, mode="bilinear", align_corners=False)[0]
    confidence, labels = (large / 1.7).softmax(dim=0).max(dim=0)
    assert found.labels.shape == found.confidence.shape == size and found.labels.dtype == np.uint8
    clear = large.topk(2, dim=0).values.diff(dim=0)[0].abs().numpy() > 1e-4
    assert (found.labels == labels.numpy())[clear].all() and clear.mean() > 0.9
    np.testing.assert_allclose(found.confidence, confidence.numpy(), atol=1e-5)


@pytest.mark.parametrize("fit", ["squash", "letterbox", "centre", "squash-centre"])
def test_where_the_pixels_went_the_labels_come_back(fit):
    """A picture of two halves, as the model sees it in every way of fitting; its edge comes back where it was."""
    place = placed((32, 48), fit, 0.875, (60, 70))
    canvas = np.full((1, 32, 48), np.nan, np.float32)
    edge = place.left + 30 * place.wide / 70  # the middle of the canvas' pixels, in px of the canvas
    canvas[0] = np.arange(48) + 0.5 - edge
    found = classified(np.concatenate([-canvas, canvas]), place)
    assert (found.labels[:, :30] == 0).all() and (found.labels[:, 30:] == 1).all()


def test_many_classes_have_larger_numbers():
    values = np.zeros((300, 2, 2), np.float32)
    values[299] = 1
    found = classified(values, Placement((3, 3), 0, 0, 8, 8, (8, 8)))
    assert found.labels.dtype == np.uint16 and (found.labels == 299).all()


@pytest.mark.parametrize("picture_px", [(32, 48), (100, 60), (33, 400), (5, 7), (16, 9000)])
@pytest.mark.parametrize("overlap", [0.0, 0.5])
def test_windows_cover_pictures_of_any_size(picture_px, overlap):
    plan = windows(picture_px, (32, 48), (8, 16), overlap)
    picture = np.random.default_rng(0).integers(0, 256, (*picture_px, 3), dtype=np.uint8)
    cut = list(plan.cut(picture))
    assert len(cut) == len(plan.corners) and all(one.shape == (32, 48, 3) for one in cut)
    # A "model" that says of every cell how bright it is: the joined windows are what it says of the whole at once.
    said = [one.mean(axis=2).reshape(4, 8, 3, 16).mean(axis=(1, 3)).astype(np.float32)[None] for one in cut]
    joined = plan.joined(said)
    resized = np.zeros((*plan.canvas, 3), np.uint8)
    for (row, column), one in zip(plan.corners, cut, strict=True):
        resized[row * 8 : row * 8 + 32, column * 16 : column * 16 + 48] = one
    height, width = plan.canvas
    whole = resized.mean(axis=2).reshape(height // 8, 8, width // 16, 16).mean(axis=(1, 3))
    np.testing.assert_allclose(joined[0], whole, rtol=1e-5)
    assert classified(np.concatenate([joined, -joined]), plan.placement).labels.shape == picture_px


def test_a_picture_of_the_models_proportions_is_one_window():
    assert windows((64, 96), (32, 48), (8, 16), 0.5).corners == ((0, 0),)


def test_windows_that_overlap_share_at_least_that_much():
    plan = windows((32, 400), (32, 48), (8, 8), 0.5)
    columns = [column for _, column in plan.corners]
    assert max(np.diff(columns)) <= 3 and columns[0] == 0 and columns[-1] * 8 + 48 == plan.canvas[1]
