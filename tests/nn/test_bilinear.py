"""Bilinear resizing by matrix products, against torch's own."""

import pytest
import torch
import torch.nn.functional as F

from vitreous.nn.bilinear import resized_maps


@pytest.mark.parametrize("size", [(4, 6), (8, 12), (7, 19), (1, 1), (64, 33)])
def test_enlarges_as_torch_does(size):
    maps = torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(0), requires_grad=True)
    ours = resized_maps(maps, size)
    theirs = F.interpolate(maps, size, mode="bilinear", align_corners=False)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    weights = torch.randn_like(ours)
    (ours_back,) = torch.autograd.grad((ours * weights).sum(), maps)
    (theirs_back,) = torch.autograd.grad((theirs * weights).sum(), maps)
    torch.testing.assert_close(ours_back, theirs_back, atol=1e-4, rtol=1e-4)


def test_a_share_is_the_upper_left_part():
    maps = torch.randn(1, 2, 10, 8, generator=torch.Generator().manual_seed(0))
    part = F.interpolate(maps[:, :, :6, :4], (13, 9), mode="bilinear", align_corners=False)
    torch.testing.assert_close(resized_maps(maps, (13, 9), (0.6, 0.5)), part, atol=1e-5, rtol=1e-5)


def test_float32_under_autocast():
    maps = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        found = resized_maps(maps, (9, 9))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, resized_maps(maps, (9, 9)), atol=0, rtol=0)
