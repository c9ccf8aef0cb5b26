import pytest
import torch

from vitreous.nn.pyramid import SCALES, SimplePyramid


def test_maps_of_several_strides_from_one():
    pyramid = SimplePyramid(8, 6)
    maps = pyramid(torch.randn(2, 8, 5, 4))
    assert [tuple(one.shape) for one in maps] == [(2, 6, 20, 16), (2, 6, 10, 8), (2, 6, 5, 4), (2, 6, 3, 2)]
    sum(one.square().sum() for one in maps).backward()
    assert all(p.grad is not None for p in pyramid.parameters())
    assert len(SCALES) == len(maps)


def test_channels_of_a_place_are_normed():
    (one,) = SimplePyramid(8, 6, scales=(2.0,))(torch.randn(1, 8, 3, 3))
    torch.testing.assert_close(one.mean(dim=1), torch.zeros(1, 6, 6), atol=1e-5, rtol=0)


def test_other_scales_are_none():
    with pytest.raises(ValueError, match="not 3"):
        SimplePyramid(8, 6, scales=(3.0,))
