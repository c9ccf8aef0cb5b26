"""Standardised convolution."""

import pytest
import torch
import torch.nn.functional as F

from vitreous.nn.convolution import StandardizedConv, group_norm, pad_same


def test_filters_are_standardised():
    conv, x = StandardizedConv(4, 6, 3).double(), torch.randn(2, 4, 7, 7, dtype=torch.float64)
    weight = torch.stack([(w - w.mean()) / w.std(correction=0) for w in conv.weight])
    torch.testing.assert_close(conv(x), F.conv2d(x, weight, padding=1), atol=1e-6, rtol=0)
    with torch.no_grad():
        before = conv(x)
        conv.weight.mul_(3).add_(5)
    torch.testing.assert_close(conv(x), before, atol=1e-6, rtol=1e-5)


def test_what_epsilon_is_added_to():
    torch.manual_seed(0)
    kinds = [StandardizedConv(4, 6, 3, epsilon=1e-3, standardisation=kind) for kind in ("variance", "deviation")]
    with torch.no_grad():
        for conv in kinds:
            conv.double().weight.copy_(torch.linspace(-1e-3, 2e-3, 216).view(6, 4, 3, 3))
    weight = kinds[0].weight
    centred, deviation = (
        weight - weight.mean((1, 2, 3), keepdim=True),
        weight.std((1, 2, 3), correction=0, keepdim=True),
    )
    torch.testing.assert_close(kinds[0].filters(), centred / (deviation**2 + 1e-3).sqrt())
    torch.testing.assert_close(kinds[1].filters(), centred / (deviation + 1e-3))


@pytest.mark.parametrize("size", [5, 8, 9])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 2), (3, 1), (3, 2), (7, 2)])
def test_same_padding_gives_the_ceiling(size, kernel, stride):
    padded = pad_same(torch.ones(1, 1, size, size + 1), kernel, stride)
    out = F.max_pool2d(padded, kernel, stride)
    assert out.shape[2:] == (-(-size // stride), -(-(size + 1) // stride))


def test_odd_padding_goes_to_the_far_side():
    assert pad_same(torch.ones(1, 1, 4, 4), 3, 2)[0, 0, -1].tolist() == [0] * 5
    assert pad_same(torch.ones(1, 1, 4, 4), 3, 2)[0, 0, 0].tolist() == [1, 1, 1, 1, 0]


def test_groups_fit_shrunken_widths():
    assert [group_norm(width, 1e-5).num_groups for width in (64, 48, 8)] == [32, 16, 8]
