"""Blocks: dropout and stochastic depth where the paper has them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitreous import keys as K
from vitreous.nn.attention import Attention
from vitreous.nn.blocks import Block, Draws, LayerScale, Mlp, StochasticDepth, SwiGlu, depth_rates


def block(**options):
    torch.manual_seed(0)
    return Block(Attention(8, 2), Mlp(8, 16), **options)


def test_block_is_pre_norm():
    module, x = block(norm_epsilon=0.1), torch.randn(2, 3, 8)
    y = x + module.attention(F.layer_norm(x, (8,), eps=0.1))
    y = y + module.mlp(F.layer_norm(y, (8,), eps=0.1))
    torch.testing.assert_close(module(x), y)


@pytest.mark.parametrize(("gelu", "approximate"), [("erf", "none"), ("tanh", "tanh")])
def test_mlp_uses_the_gelu_it_is_told(gelu, approximate):
    module, x = Mlp(4, 6, gelu), 2 * torch.randn(3, 4)
    expected = module.contract(F.gelu(module.expand(x), approximate=approximate))
    torch.testing.assert_close(module(x), expected, atol=0, rtol=0)


def test_quick_gelu():
    module, x = Mlp(4, 6, "quick"), 2 * torch.randn(3, 4)
    hidden = module.expand(x)
    torch.testing.assert_close(module(x), module.contract(hidden / (1 + torch.exp(-1.702 * hidden))))


def test_swiglu_has_its_gate_first():
    module, x = SwiGlu(4, 6), 2 * torch.randn(3, 4)
    gate = x @ module.expand.weight[:6].T + module.expand.bias[:6]
    value = x @ module.expand.weight[6:].T + module.expand.bias[6:]
    expected = module.contract(gate / (1 + torch.exp(-gate)) * value)
    torch.testing.assert_close(module(x), expected)
    for kernel in module.expand.weight.chunk(2):  # each is Xavier-uniform on its own
        assert kernel.abs().max() <= (6 / 10) ** 0.5 and kernel.abs().max() > (6 / 16) ** 0.5


def test_dropout_after_both_dense_layers_of_the_mlp():
    seen = []
    module = Mlp(4, 6, dropout=0.5)
    module.dropout.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[-1]))
    module(torch.randn(2, 4))
    assert seen == [6, 4]
    assert not [part for part in Mlp(4, 6).modules() if isinstance(part, nn.Dropout)]


def test_layer_scale_starts_where_told():
    module, x = block(layer_scale=1e-3), torch.randn(2, 3, 8)
    assert [part.factor.unique().tolist() for part in module.modules() if isinstance(part, LayerScale)] == [
        [pytest.approx(1e-3)]
    ] * 2
    plain = block()
    step, small_step = plain(x) - x, module(x) - x
    assert small_step.norm() < 0.01 * step.norm()


def test_stochastic_depth_drops_whole_samples_and_keeps_the_mean():
    torch.manual_seed(0)
    module = StochasticDepth(0.25)
    out = module(torch.ones(4000, 2, 3))
    assert torch.equal(out, out[:, :1, :1].expand_as(out))
    assert out.unique().tolist() == pytest.approx([0, 4 / 3])
    assert out.mean().item() == pytest.approx(1, abs=0.05)
    branch = torch.randn(4, 2, 3)
    assert module.eval()(branch) is branch


def test_stochastic_depth_goes_by_the_samples_keys():
    """Whichever samples share a batch, and for as long as it is theirs: a backward pass may compute it again."""
    network, keys = (
        nn.ModuleList(StochasticDepth(rate) for rate in (0.0, 0.5, 0.5)),
        K.sample_keys(0, 0, torch.arange(64)),
    )
    draws, ones = Draws(network), torch.ones(2 * 64, 3)
    with draws.of(keys, 2):
        whole = [layer(ones).view(2, 64, 3) for layer in network]
        assert torch.equal(network[1](ones).view(2, 64, 3), whole[1])
    assert whole[0].eq(1).all()
    views = [view[:, 0] > 0 for layer in whole[1:] for view in layer]
    assert len({tuple(kept.tolist()) for kept in views}) == 4  # every layer and every view draws anew
    assert all(15 < int(kept.sum()) < 49 for kept in views)
    with draws.of(keys[40:], 2):
        assert torch.equal(network[2](torch.ones(2 * 24, 3)).view(2, 24, 3), whole[2][:, 40:])
        assert torch.equal(network[2](torch.ones(24, 3)), whole[2][0, 40:])  # a pass with one view
    assert network[1](torch.ones(7, 3)).shape == (7, 3)  # of nobody's: from torch's generator


def test_blocks_of_all_rates_are_compiled_as_one():
    """Apart from the first, which leaves nothing out: a deep network would soon be too much for the compiler."""
    network, graphs = nn.ModuleList(block(stochastic_depth=rate) for rate in depth_rates(0.4, 5)), []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    draws, x = Draws(network), torch.randn(6, 3, 8)
    with draws.of(K.sample_keys(0, 0, torch.arange(6)), 1):
        for one in network:
            plain = one(x)
            one.forward = torch.compile(one.forward, backend=count, dynamic=False)
            assert torch.equal(one(x), plain)
    assert len(graphs) == 2


def test_depth_rates_grow_linearly():
    assert depth_rates(0.2, 5) == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
    assert depth_rates(0.2, 1) == [0]
