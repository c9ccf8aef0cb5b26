"""Window attention and depthwise convolution in Triton on a GPU, against their plain forms in float64; the same to the
last bit in every run; inside compiled models and CUDA graphs."""

import copy

import pytest
import torch
from torch import nn

from vitreous.models.convnext import ConvNeXtSettings
from vitreous.models.pvt import PVTSettings
from vitreous.models.swin import SwinSettings, WindowAttention
from vitreous.nn import kernels, window_attention
from vitreous.nn import pointwise as pointwise_of
from vitreous.nn.channels_last import depthwise
from vitreous.nn.pointwise import pointwise

pytestmark = pytest.mark.gpu

CLOSE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}  # shares of the largest number
DTYPES = pytest.mark.parametrize("dtype", list(CLOSE), ids=str)


class Depthwise(nn.Module):
    def __init__(self, channels, kernel, gelu):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=channels)
        self.gelu = gelu

    def forward(self, x):
        return depthwise(x, self.conv, self.gelu)


def windows(heads=3, window=7, shifted=True):
    attention = WindowAttention(32 * heads, heads, window, shifted)
    nn.init.normal_(attention.bias_table.table)
    return attention


def with_gradients(module, x):
    x = x.detach().requires_grad_()
    out = module(x)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    return [out, *torch.autograd.grad(out, [x, *module.parameters()], grad)]


def assert_equals_plain(module, shape, dtype):
    module, x = module.to("cuda", dtype), torch.randn(shape, device="cuda").to(dtype)
    assert kernels.serve(x)
    plain = with_gradients(copy.deepcopy(module).double(), x.double())  # the kernels leave float64 alone
    for ours, theirs in zip(with_gradients(module, x), plain, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(
            ours.double(), theirs, rtol=0, atol=CLOSE[dtype] * float(theirs.detach().abs().max())
        )


@DTYPES
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("grid", [(56, 56), (14, 21), (17, 30), (5, 9), (7, 7)])
def test_window_attention_equals_the_plain_form(grid, shifted, dtype):
    is_half = dtype != torch.float32  # which has the plain form
    assert window_attention.serves(torch.zeros(1, device="cuda", dtype=dtype), 32, (7, 7)) == is_half
    assert_equals_plain(windows(shifted=shifted), (3, *grid, 96), dtype)


@pytest.mark.parametrize("window", [4, 8, 12])  # of 12 it is the plain form, too
def test_other_windows(window):
    assert_equals_plain(windows(heads=2, window=window), (2, 24, 31, 64), torch.float16)


@DTYPES
@pytest.mark.parametrize(
    ("kernel", "gelu", "shape"),
    [
        (7, False, (3, 56, 56, 96)),
        (7, False, (2, 14, 9, 40)),
        (7, False, (1, 3, 2, 768)),
        (5, True, (2, 11, 16, 64)),
        (3, True, (3, 56, 56, 512)),
        (3, True, (2, 7, 13, 100)),
        (3, False, (2, 8, 8, 1280)),
    ],
)
def test_depthwise_equals_the_plain_form(kernel, gelu, shape, dtype):
    assert_equals_plain(Depthwise(shape[3], kernel, gelu), shape, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 97, 101, 64, 256), (4, 50, 49, 1024, 256), (1, 39, 41, 512, 2048)])
@pytest.mark.parametrize("inner", [False, True])
def test_products_equal_the_plain_form(shape, inner, dtype, monkeypatch):
    monkeypatch.setitem(kernels.PAY, "pointwise", True)
    samples, height, width, channels, out = shape
    x = torch.randn(samples, channels, height, width, device="cuda").to(dtype, memory_format=torch.channels_last)
    shortcut = torch.randn(samples, out, height, width, device="cuda").to(dtype, memory_format=torch.channels_last)
    weight = (torch.randn(out, channels, 1, 1, device="cuda") / channels**0.5).to(dtype)
    bias, offset = (torch.randn(count, device="cuda").to(dtype) for count in (out, channels))
    given = (x, weight, bias, *((offset, shortcut) if inner else (None, None)))
    assert pointwise_of._is_served(x, weight, given[4])
    found, expected = pointwise(*given), pointwise(*(None if one is None else one.double() for one in given))
    assert found.dtype == dtype and found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=CLOSE[dtype] * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (windows(), (64, 28, 28, 96)),
        (Depthwise(96, 7, False), (64, 28, 28, 96)),
        (Depthwise(96, 3, True), (64, 28, 28, 96)),
    ],
)
def test_the_same_to_the_last_bit_and_inside_a_cuda_graph(module, shape):
    module, x = module.to("cuda", torch.bfloat16), torch.randn(shape, device="cuda").to(torch.bfloat16)
    grad = torch.randn_like(x)

    def once():
        leaf = x.detach().requires_grad_()
        out = module(leaf)
        # Detached: a graph that is kept alive belongs to the stream it was made on.
        return [out.detach(), *torch.autograd.grad(out, [leaf, *module.parameters()], grad)]

    expected = once()
    assert all(torch.equal(a, b) for a, b in zip(once(), expected, strict=True))
    with torch.cuda.stream(torch.cuda.Stream()):
        once()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = once()
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "settings",
    [
        SwinSettings(picture_px=(96, 72), width=64, depths=(2, 2), heads=(2, 4)),
        ConvNeXtSettings(picture_px=(96, 72), widths=(32, 64), depths=(1, 1)),
        PVTSettings(
            picture_px=(96, 72), widths=(32, 64), depths=(1, 1), heads=(1, 2), mlp_factors=(4, 4), reductions=(4, 2)
        ),
    ],
    ids=lambda settings: settings.family,
)
def test_whole_models_compile_without_a_break(settings, monkeypatch):
    torch.compiler.reset()
    encoder, x = settings.build().cuda(), torch.randn(4, 3, 96, 72, device="cuda")
    compiled = torch.compile(lambda x: encoder(x).pooled, fullgraph=True)

    def gradients(call, is_half):
        with torch.autocast("cuda", torch.bfloat16, enabled=is_half):
            out = call(x)
        return [out, *torch.autograd.grad(out.float().square().sum(), list(encoder.parameters()))]

    found = gradients(compiled, is_half=True)
    monkeypatch.setattr(kernels, "enabled", False)
    for ours, theirs in zip(found, gradients(lambda x: encoder(x).pooled, is_half=False), strict=True):
        difference = (ours.double() - theirs.double()).norm() / theirs.double().norm().clamp_min(1e-9)
        assert difference < 0.1, difference
