"""Attention by whichever way is the fastest: all are the same attention."""

import pytest
import torch
import torch.nn.functional as F

from vitreous.nn import attend as module
from vitreous.nn.attend import attend


@pytest.mark.parametrize("tokens", [5, 2 * 197])
@pytest.mark.parametrize("biased", [False, True])
def test_in_bfloat16_it_is_the_same_attention(tokens, biased):
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, tokens, 16, generator=generator).bfloat16()
    added = torch.randn(1, 3, tokens, tokens, generator=generator).bfloat16() if biased else None
    given = [one.clone().requires_grad_() for one in (q, k, v)]
    found = attend(*given, added)
    found.float().square().sum().backward()
    exact = [one.double().requires_grad_() for one in (q, k, v)]
    out = F.scaled_dot_product_attention(*exact, None if added is None else added.double())
    out.square().sum().backward()
    pairs = zip([found, *(one.grad for one in given)], [out, *(one.grad for one in exact)], strict=True)
    for ours, truth in pairs:
        assert ours.dtype == torch.bfloat16
        assert (ours - truth).norm() < 0.02 * truth.norm()


def test_where_all_pairs_would_take_too_much_memory_it_is_the_fused_kernel(monkeypatch):
    q, k, v = torch.randn(3, 1, 2, 8, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert not torch.equal(attend(q, k, v), F.scaled_dot_product_attention(q, k, v))
    monkeypatch.setattr(module, "MOST_PAIRS", 63)
    assert torch.equal(attend(q, k, v), F.scaled_dot_product_attention(q, k, v))
