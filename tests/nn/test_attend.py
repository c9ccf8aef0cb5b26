"""Attention by whichever way is the fastest: all are the same attention."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitreous.nn import attend as module
from vitreous.nn.attend import attend


@pytest.mark.parametrize("tokens", [5, 2 * 197])
@pytest.mark.parametrize("mask", ["none", "added", "seen"])
def test_in_bfloat16_it_is_the_same_attention(tokens, mask):
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, tokens, 16, generator=generator).bfloat16()
    added = torch.randn(1, 3, tokens, tokens, generator=generator).bfloat16()
    assert_is_attention(q, k, v, {"none": None, "added": added, "seen": (added > 0) | torch.eye(tokens).bool()}[mask])


def assert_is_attention(q, k, v, mask):
    given = [one.clone().requires_grad_() for one in (q, k, v)]
    found = attend(*given, mask)
    found.float().square().sum().backward()
    exact = [one.double().requires_grad_() for one in (q, k, v)]
    precise = mask.double() if mask is not None and mask.is_floating_point() else mask
    with sdpa_kernel(SDPBackend.MATH):
        out = F.scaled_dot_product_attention(*exact, precise)
    out.square().sum().backward()
    pairs = zip([found, *(one.grad for one in given)], [out, *(one.grad for one in exact)], strict=True)
    for ours, truth in pairs:
        assert ours.dtype == torch.bfloat16
        assert (ours - truth).norm() < 0.02 * truth.norm()  # false for NaN


def test_where_all_pairs_would_take_too_much_memory_it_is_the_fused_kernel(monkeypatch):
    q, k, v = torch.randn(3, 1, 2, 8, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert not torch.equal(attend(q, k, v), F.scaled_dot_product_attention(q, k, v))
    monkeypatch.setattr(module, "MOST_PAIRS", 63)
    assert torch.equal(attend(q, k, v), F.scaled_dot_product_attention(q, k, v))


@pytest.mark.gpu
@pytest.mark.parametrize("most", [module.MOST_MASKED, 0])
def test_under_a_mask_gradients_are_finite_however_small_the_logits(monkeypatch, most):
    """576 keys leave 64 when divided by 128, and logits are near -120: cuDNN's kernel gives NaN."""
    monkeypatch.setattr(module, "MOST_MASKED", most)
    q, k, v = (torch.randn(3, 2, 3, 576, 64, generator=torch.Generator().manual_seed(0)) * 0.1).bfloat16().cuda()
    q[..., 0], k[..., 0] = 1.0, -120 * 8
    mask = torch.ones(1, 1, 576, 576, dtype=torch.bool, device="cuda").tril()
    assert_is_attention(q, k, v, mask)
