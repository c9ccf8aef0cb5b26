"""Attention against the formulas of the paper, written out."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vitreous.nn.attention import Attention
from vitreous.nn.relative import BiasTable, RelativePositions

WIDTH, HEADS, D = 12, 3, 4


@pytest.fixture
def x():
    return torch.randn(2, 5, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def attention(**options):
    torch.manual_seed(1)
    module = Attention(WIDTH, HEADS, **options).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def by_hand(module, x, offsets=None, biases=None):
    """Head by head, query by query: softmax(q k / sqrt(d) [+ q r / sqrt(d)]) v."""
    bias = module.project_in.bias
    if module.query_bias is not None:
        bias = torch.cat([module.query_bias, torch.zeros(WIDTH, dtype=x.dtype), module.value_bias])
    qkv = x @ module.project_in.weight.T + bias
    q, k, v = qkv.split(WIDTH, dim=-1)
    rows, outs = [], []
    for head in range(HEADS):
        part = slice(head * D, (head + 1) * D)
        logits = q[..., part] @ k[..., part].transpose(1, 2)
        if offsets is not None:
            for i in range(x.shape[1]):
                for j in range(x.shape[1]):
                    r = module.relative.table[i - j + module.relative.length - 1]
                    logits[:, i, j] = logits[:, i, j] + q[:, i, part] @ r
        logits = logits / D**0.5 + (0 if biases is None else biases[..., head])
        weights = logits.softmax(-1)
        rows.append(weights)
        outs.append(weights @ v[..., part])
    return torch.stack(rows, 1), torch.cat(outs, -1) @ module.project_out.weight.T + module.project_out.bias


def test_forward_and_weights_are_the_formula(x):
    module = attention()
    weights, out = by_hand(module, x)
    torch.testing.assert_close(module(x), out, atol=1e-12, rtol=0)
    torch.testing.assert_close(module.weights(x), weights, atol=1e-12, rtol=0)


def test_weights_of_chosen_rows(x):
    module = attention()
    chosen = module.weights(x, rows=torch.tensor([3, 0]))
    assert chosen.shape == (2, HEADS, 2, 5)
    torch.testing.assert_close(chosen, module.weights(x)[:, :, [3, 0]])


def test_relative_positions_meet_the_query(x):
    module = attention(relative=RelativePositions(5, D))
    offsets = module.relative.offsets(torch.arange(5))
    weights, out = by_hand(module, x, offsets)
    torch.testing.assert_close(module(x, offsets), out, atol=1e-12, rtol=0)
    torch.testing.assert_close(module.weights(x, None, offsets), weights, atol=1e-12, rtol=0)
    rows = torch.tensor([4, 1])
    torch.testing.assert_close(module.weights(x, rows, offsets), weights[:, :, rows], atol=1e-12, rtol=0)
    assert not torch.allclose(module(x), out)


def test_relative_offsets_may_differ_by_sample(x):
    module = attention(relative=RelativePositions(9, D))
    places = torch.tensor([[0, 1, 2, 3, 4], [0, 8, 5, 2, 6]])
    both = module(x, module.relative.offsets(places))
    for i in range(2):
        alone = module(x[i : i + 1], module.relative.offsets(places[i]))
        torch.testing.assert_close(both[i : i + 1], alone)


def test_keys_without_a_bias(x):
    module = attention(bias="no-key")
    assert module.project_in.bias is None
    weights, out = by_hand(module, x)
    torch.testing.assert_close(module(x), out, atol=1e-12, rtol=0)
    torch.testing.assert_close(module.weights(x), weights, atol=1e-12, rtol=0)


def test_a_table_of_biases(x):
    module = attention(bias_table=BiasTable((2, 2), HEADS))
    pairs = module.bias_table.pairs(1, torch.arange(4))
    weights, out = by_hand(module, x, biases=module.bias_table.table[pairs])
    torch.testing.assert_close(module(x, pairs), out, atol=1e-12, rtol=0)
    torch.testing.assert_close(module.weights(x, None, pairs), weights, atol=1e-12, rtol=0)
    rows = torch.tensor([4, 1])
    torch.testing.assert_close(module.weights(x, rows, pairs), weights[:, :, rows], atol=1e-12, rtol=0)


def test_biases_may_come_from_outside_and_differ_by_sample(x):
    table = BiasTable((3, 3), HEADS).double()
    nn.init.normal_(table.table)
    module = attention()
    cells = torch.tensor([[0, 1, 2, 3], [8, 5, 2, 6]])
    bias = table(x, table.pairs(1, cells))
    assert bias.shape == (2, HEADS, 5, 5)
    for i in range(2):
        alone = table(x, table.pairs(1, cells[i]))
        torch.testing.assert_close(module(x, bias)[i : i + 1], module(x[i : i + 1], alone))
        torch.testing.assert_close(
            module.weights(x, slice(0, 2), bias)[i], module.weights(x[i : i + 1], None, alone)[0, :, :2]
        )


def test_no_bias_means_no_bias():
    assert Attention(WIDTH, HEADS, bias="none").project_in.bias is None


def test_each_of_the_three_kernels_is_initialised_on_its_own():
    module = Attention(256, 4)
    for part in module.project_in.weight.chunk(3):
        # Xavier-uniform of a square matrix: bound sqrt(6 / (2 * 256)); over the fused matrix it would be smaller.
        assert part.abs().max().item() == pytest.approx((6 / 512) ** 0.5, rel=1e-2)


def test_looking_inside_costs_nothing_when_nobody_looks(x):
    module = attention().to("meta")
    with FlopCounterMode(display=False) as counter:
        module(x.to("meta"))
    assert counter.get_total_flops() == 2 * (2 * 5 * WIDTH * 4 * WIDTH + 2 * 2 * 5 * 5 * WIDTH)


def test_width_must_be_a_multiple_of_the_heads():
    with pytest.raises(ValueError, match="multiple"):
        Attention(10, 3)


def test_an_index_into_the_table_and_a_bias_may_come_together(x):
    """As in shifted windows: relative positions, and a mask of who may not be seen."""
    module = attention(bias_table=BiasTable((2, 2), HEADS))
    pairs = module.bias_table.pairs(1, torch.arange(4))
    mask = torch.zeros(2, 1, 5, 5, dtype=torch.float64)
    mask[1, :, :, 3] = -torch.inf
    weights, out = by_hand(module, x, biases=module.bias_table.table[pairs] + mask.movedim(1, -1))
    torch.testing.assert_close(module(x, pairs, mask), out, atol=1e-12, rtol=0)
    torch.testing.assert_close(module.weights(x, None, pairs, mask), weights, atol=1e-12, rtol=0)
    some = torch.tensor([4, 1])
    torch.testing.assert_close(module.weights(x, some, pairs, mask), weights[:, :, some], atol=1e-12, rtol=0)
    assert not torch.allclose(module(x, pairs), module(x, pairs, mask))
