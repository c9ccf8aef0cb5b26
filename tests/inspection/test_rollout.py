"""Rollout by hand, and against the product of whole matrices."""

import pytest
import torch

from vitreous.inspection import attention as blocks
from vitreous.inspection.attention import attention
from vitreous.inspection.layout import layout
from vitreous.inspection.rollout import Product, rollout
from vitreous.models import ViTSettings

TINY = {"picture_px": (16, 24), "patch": 8, "width": 16, "depth": 3, "heads": 2}


def rolled(matrices, residual=True):
    product = Product(residual)
    for matrix in matrices:
        product.add(matrix)
    return product.value


def test_the_plain_product_follows_the_way_back_by_hand():
    # Layer 2: token 0 looks at token 1 alone. Layer 1: token 1 looks at tokens 1 and 2 evenly.
    first = torch.tensor([[1.0, 0, 0], [0, 0.5, 0.5], [0, 0, 1]])
    second = torch.tensor([[0.0, 1, 0], [0, 1, 0], [0, 0, 1]])
    assert rolled([first, second], residual=False)[0].tolist() == [0, 0.5, 0.5]
    assert rolled([second, first], residual=False)[0].tolist() == [0, 1, 0]  # the order matters


def test_half_of_every_layer_passes_by():
    even = torch.full((2, 2), 0.5)
    # (A + I) / 2 = [[3/4, 1/4], [1/4, 3/4]]; its square is [[10, 6], [6, 10]] / 16.
    torch.testing.assert_close(rolled([even, even]), torch.tensor([[10.0, 6], [6, 10]]) / 16)
    assert torch.equal(rolled([torch.eye(3)] * 4), torch.eye(3))
    swap = torch.tensor([[0.0, 1], [1, 0]])
    torch.testing.assert_close(rolled([swap]), torch.full((2, 2), 0.5))


def tiny(**changes):
    torch.manual_seed(0)
    encoder = ViTSettings.of(**TINY, **changes).build().eval()
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return encoder, torch.randn(2, 3, 16, 24)


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("token", [None, 1, (1, 2)])
def test_equal_to_the_product_of_whole_matrices(residual, token, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_VALUES", 100)  # several blocks of rows
    encoder, images = tiny(num_prefix=2)
    product = torch.eye(8)
    for weights in attention(encoder, images, rows=range(8)).weights:
        mean = weights.mean(dim=1)
        product = ((mean + torch.eye(8)) / 2 if residual else mean) @ product
    row = {None: 0, 1: 1, (1, 2): 2 + 5}[token]
    found = rollout(encoder, images, token, residual=residual)
    torch.testing.assert_close(found, product[:, row])
    torch.testing.assert_close(found.sum(dim=1), torch.ones(2))
    assert layout(encoder).as_map(found).shape == (2, 2, 3)


def test_pooling_by_the_mean_takes_the_mean_of_the_patches():
    encoder, images = tiny(pool="mean")
    rows = [rollout(encoder, images, (i, j)) for i in range(2) for j in range(3)]
    torch.testing.assert_close(rollout(encoder, images), torch.stack(rows).mean(dim=0))


def test_under_autocast_it_still_sums_to_one():
    encoder, images = tiny()
    with torch.autocast("cpu", torch.bfloat16):
        found = rollout(encoder, images)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(dim=1), torch.ones(2))
    torch.testing.assert_close(found, rollout(encoder, images), atol=0.05, rtol=0)


def test_some_layers():
    encoder, images = tiny()
    last = attention(encoder, images, layers=[-1]).of(-1).mean(dim=1)[:, 0]
    torch.testing.assert_close(rollout(encoder, images, residual=False, layers=[-1]), last)
