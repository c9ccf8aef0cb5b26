"""Products of 8-bit floats: their arithmetic in float32 on the CPU, by which a GPU is measured."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitreous.errors import UserError
from vitreous.models.vit import ViTSettings
from vitreous.nn import kernels
from vitreous.nn.fp8 import Dense8, multiplied, product, rounded, use_8_bits
from vitreous.training.devices import multiply_in_8_bits


def of_e4m3(numbers):
    """To the nearest e4m3 (4 bits of exponent, 3 of mantissa), ties to even, by arithmetic in float64."""
    exponent = numbers.abs().clamp(min=2.0**-6).log2().floor()
    step = torch.exp2(exponent - 3)
    return (numbers / step).round() * step


def shares(matrix):
    """What `rounded` says the rows are, in float64."""
    scales = matrix.double().abs().amax(dim=1, keepdim=True) / 448
    return of_e4m3((matrix.float() / scales.float()).double()) * scales


def layer(inputs=64, outputs=48):
    dense = nn.Linear(inputs, outputs)
    nn.init.normal_(dense.bias)
    holder = nn.Sequential(dense, nn.Linear(7, outputs))
    use_8_bits(holder)
    assert isinstance(holder[0], Dense8) and type(holder[1]) is nn.Linear  # 7 is no multiple of 16
    return dense


def test_rows_are_rounded_by_their_largest():
    matrix = torch.randn(6, 32) * torch.tensor([1e-9, 1e-3, 1, 30, 1e5, 0])[:, None]
    bits, scales = rounded(matrix)
    assert bits.dtype == torch.float8_e4m3fn and bool(bits.float().isfinite().all())
    torch.testing.assert_close((bits.float() * scales)[:5].double(), shares(matrix[:5]), rtol=1e-6, atol=0)
    assert not bits[5].float().any()


def test_a_layer_and_its_gradients():
    dense = layer()
    x = torch.randn(3, 10, 64).to(torch.bfloat16).requires_grad_()
    out = dense(x)
    flat, weight = x.detach().flatten(0, 1), dense.weight.detach().to(torch.bfloat16)
    expected = shares(flat) @ shares(weight).T + dense.bias.detach().to(torch.bfloat16).double()
    torch.testing.assert_close(out.detach().flatten(0, 1).double(), expected, rtol=2**-8, atol=1e-4)
    grad = torch.randn(3, 10, 48).to(torch.bfloat16)
    to_x, to_weight, to_bias = torch.autograd.grad(out, [x, dense.weight, dense.bias], grad)
    rows = grad.flatten(0, 1)
    expected = shares(rows) @ shares(weight.T).T
    torch.testing.assert_close(to_x.flatten(0, 1).double(), expected, rtol=2**-8, atol=1e-4)
    torch.testing.assert_close(to_weight.double(), rows.T.double() @ flat.double(), rtol=2**-7, atol=1e-2)
    torch.testing.assert_close(to_bias.double(), rows.double().sum(0), rtol=1e-5, atol=1e-5)
    assert to_weight.dtype == to_bias.dtype == torch.float32 and out.dtype == torch.bfloat16
    # Near what bfloat16 gives: 3 bits of mantissa are right within 6 % each, and errors of a sum cancel.
    plain = F.linear(x, weight, dense.bias.to(torch.bfloat16))
    assert float((out - plain).detach().norm() / plain.detach().norm()) < 0.05


def test_it_is_a_plain_layer_to_whoever_does_not_train():
    dense = layer().eval()
    x = torch.randn(2, 64)
    assert torch.equal(dense(x), F.linear(x, dense.weight, dense.bias))
    assert torch.equal(multiplied(dense, x, None), F.linear(x, dense.weight))
    assert dense.state_dict().keys() == nn.Linear(64, 48).state_dict().keys()


def test_blocks_alone_are_changed_and_a_cpu_is_refused(monkeypatch):
    network = ViTSettings(picture_px=(32, 32), patch=8, width=32, depth=2, heads=2).build()
    with pytest.raises(UserError, match="precision fp8 needs"):
        multiply_in_8_bits(network, torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    multiply_in_8_bits(network, torch.device("cuda"))
    changed = {name.split(".")[0] for name, part in network.named_modules() if isinstance(part, Dense8)}
    assert changed == {"blocks"} and sum(isinstance(part, Dense8) for part in network.modules()) == 8


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # what torch's own tracing does
def test_it_is_traced_without_a_break():
    dense, x = layer(), torch.randn(4, 64).to(torch.bfloat16)
    torch.compiler.reset()
    compiled = torch.compile(dense, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(x).float().sum(), list(dense.parameters()))
    plain = torch.autograd.grad(dense(x).float().sum(), list(dense.parameters()))
    for ours, theirs in zip(found, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
def test_a_gpu_does_the_same():
    assert kernels.is_available()
    a, b, bias = torch.randn(100, 64), torch.randn(48, 64), torch.randn(48).to(torch.bfloat16)
    for fast in (True, False):
        pair = [product(*(t.to(d) for t in (*rounded(a), *rounded(b), bias)), fast=fast).cpu() for d in ("cuda", "cpu")]
        torch.testing.assert_close(*pair, rtol=2e-2, atol=2e-2)
