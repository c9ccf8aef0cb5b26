import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitreous.inspection.pictures import brightness, enlarged, in_squares, lit, overlay, scale, upsampled


def test_bilinear_between_the_centres_of_patches():
    large = upsampled(torch.tensor([[0.0, 4.0]]), (1, 8))
    assert large[0].tolist() == [0, 0, 0.5, 1.5, 2.5, 3.5, 4, 4]
    assert upsampled(torch.rand(2, 5, 3, 4), (9, 8)).shape == (2, 5, 9, 8)


def test_a_map_that_is_larger_or_smaller_than_the_picture():
    padded = upsampled(torch.tensor([[0.0, 4.0]]), (1, 8), (1.0, 1.5))  # its last third lies beyond the edge
    assert padded[0].tolist() == pytest.approx([0, 0, 0, 1 / 3, 1, 5 / 3, 7 / 3, 3])
    assert in_squares(torch.tensor([[1.0, 4.0]]), (2, 4), (1.0, 1.5))[1].tolist() == [1, 1, 1, 4]
    assert in_squares(torch.tensor([[1.0, 4.0]]), (1, 8), (1.0, 0.5))[0].tolist() == [1, 1, 4, 4, 0, 0, 0, 0]
    maps = torch.rand(2, 5, 3, 4)
    expected = F.interpolate(maps, size=(9, 10), mode="bilinear", align_corners=False)
    torch.testing.assert_close(upsampled(maps, (9, 10)), expected)


def test_a_part_as_large_as_fits_into_the_whole():
    picture = np.arange(16, dtype=np.uint8).reshape(4, 4, 1).repeat(3, axis=2)
    assert enlarged(picture, (0, 2, 2, 4))[:, :, 0].tolist() == [[2, 2, 3, 3]] * 2 + [[6, 6, 7, 7]] * 2
    assert enlarged(picture[:2], (0, 0, 1, 1)).shape == (2, 2, 3)  # a square stays one in a wide picture
    assert enlarged(picture, (0, 0, 4, 4), (2, 2))[:, :, 1].tolist() == [[5, 7], [13, 15]]


def test_the_picture_times_the_map():
    picture = np.full((2, 4, 3), 200, dtype=np.uint8)
    shaded = overlay(picture, torch.tensor([[0.1, 0.2]]))
    assert shaded.dtype == np.uint8 and shaded.shape == (2, 4, 3)
    assert shaded[0, :, 0].tolist() == [100, 125, 175, 200]
    assert overlay(picture, torch.tensor([[0.1, 0.2]]), stretch=True)[1, :, 2].tolist() == [0, 50, 150, 200]


def test_maps_without_a_highest_place():
    assert brightness(torch.zeros(2, 3, 3)).tolist() == torch.zeros(2, 3, 3).tolist()
    assert not brightness(torch.full((2, 2), 0.3), stretch=True).any()


def test_what_is_nearly_even_looks_even():
    picture = np.full((8, 8, 3), 200, dtype=np.uint8)
    even = torch.full((4, 4), 0.0625)
    assert (lit(picture, even) == 100).all(), "half as bright"
    nearly, decided = even.clone(), even.clone()
    nearly[0, 0], decided[0, 0] = 0.079, 0.5
    assert 100 < lit(picture, nearly)[0, 0, 0] < 130, "not decisive"
    assert lit(picture, decided)[0, 0, 0] == 200 and scale(decided).startswith(
        "at most 50.0 % on a patch, evenly 9.0 %"
    )
