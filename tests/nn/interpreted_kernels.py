"""Run as a program in Triton's interpreter: the kernels of window attention and depthwise convolution against their
plain forms, alone and inside whole models, which are traced without a break."""

import copy

import torch
from torch import nn

from vitreous.models.convnext import ConvNeXtSettings
from vitreous.models.pvt import PVTSettings
from vitreous.models.swin import SwinSettings, WindowAttention
from vitreous.nn import kernels, window_attention
from vitreous.nn import pointwise as pointwise_of
from vitreous.nn.channels_last import depthwise
from vitreous.nn.pointwise import pointwise

serve = kernels.serve


def with_gradients(call, x, module, is_fused):
    kernels.serve = (lambda _: True) if is_fused else serve
    x = x.detach().requires_grad_()
    out = call(x)
    chance = torch.Generator().manual_seed(1)
    grads = torch.autograd.grad(out, [x, *module.parameters()], torch.randn(out.shape, generator=chance).to(out))
    return [out, *grads]


def assert_the_same(call, x, module):
    pairs = zip(*(with_gradients(call, x, module, is_fused) for is_fused in (True, False)), strict=True)
    for ours, plain in pairs:
        torch.testing.assert_close(ours, plain, atol=2e-5 * float(plain.detach().abs().max()), rtol=1e-4)


def windows(grid, window, shifted, samples):
    attention = WindowAttention(32, 2, window, shifted)
    nn.init.normal_(attention.bias_table.table)
    assert_the_same(attention, torch.randn(samples, *grid, 32), attention)


def convolutions(samples, height, width, channels, kernel, gelu):
    conv = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=channels)
    assert_the_same(lambda x: depthwise(x, conv, gelu), torch.randn(samples, height, width, channels), conv)


def in_half_precision():
    """As on a GPU. In float16: the interpreter takes the bits of bfloat16 for integers when it multiplies matrices."""
    attention, conv = WindowAttention(32, 2, 4, True).half(), nn.Conv2d(16, 16, 3, padding=1, groups=16).half()
    for module, call, x in (
        (attention, lambda x, module: module(x), torch.randn(1, 8, 12, 32).half()),
        (conv, lambda x, module: depthwise(x, module, gelu=True), torch.randn(1, 9, 4, 16).half()),
    ):
        double = copy.deepcopy(module).double()
        fused = with_gradients(lambda x, call=call, module=module: call(x, module), x, module, True)
        plain = with_gradients(lambda x, call=call, double=double: call(x, double), x.double(), double, False)
        for ours, theirs in zip(fused, plain, strict=True):
            assert ours.dtype == torch.float16
            atol = 2e-3 * float(theirs.detach().abs().max())
            torch.testing.assert_close(ours.double(), theirs, atol=atol, rtol=0)


def products(samples, height, width, channels, out, before, added):
    """In float16, as above; what is no number stays none."""
    torch.manual_seed(samples)
    x, shortcut = (torch.randn(samples, count, height, width) for count in (channels, out))
    weight, bias, offset = torch.randn(out, channels, 1, 1) / channels**0.5, torch.randn(out), torch.randn(channels)
    x, shortcut, weight, bias, offset = (one.half() for one in (x, shortcut, weight, bias, offset))
    given = [x.contiguous(memory_format=torch.channels_last), weight, bias, offset if before else None]
    given.append(shortcut.contiguous(memory_format=torch.channels_last) if added else None)
    given[0][0, 0, 0, 0] = float("nan")
    with torch.no_grad():
        kernels.serve = serve
        expected = pointwise(*(None if one is None else one.double() for one in given))
        kernels.serve, kernels.PAY["pointwise"], pointwise_of.ENOUGH = (lambda _: True), True, 0
        assert pointwise_of._is_served(given[0], weight, given[4])
        found = pointwise(*given)
    assert found.dtype == torch.float16 and found.is_contiguous(memory_format=torch.channels_last)
    assert expected[0, :, 0, 0].isnan().all()
    atol = 2e-3 * float(expected.nan_to_num().abs().max())
    torch.testing.assert_close(found.double(), expected, atol=atol, rtol=0, equal_nan=True)


def models(backend="aot_eager"):
    swin = SwinSettings(picture_px=(32, 40), width=32, depths=(2,), heads=(2,), window=4)
    convnext = ConvNeXtSettings(picture_px=(32, 24), widths=(16,), depths=(1,))
    sizes = {"widths": (16,), "depths": (1,), "heads": (1,), "mlp_factors": (2,), "reductions": (2,)}
    for settings in (swin, convnext, PVTSettings(picture_px=(32, 24), **sizes)):
        encoder = settings.build()
        x = torch.randn(1, 3, *settings.picture_px)

        def call(x, encoder=encoder):
            return encoder(x).pooled

        torch.compiler.reset()  # what was traced before knows another answer to `serve`
        compiled = torch.compile(call, backend=backend, fullgraph=True)
        fused, plain = with_gradients(compiled, x, encoder, True), with_gradients(call, x, encoder, False)
        for ours, theirs in zip(fused, plain, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4 * float(theirs.detach().abs().max()) + 1e-7, rtol=1e-3)


if __name__ == "__main__":
    torch.manual_seed(0)
    window_attention.DTYPES = (torch.float16, torch.float32)  # exact on a CPU
    windows((8, 12), 4, shifted=True, samples=2)
    windows((7, 9), 4, shifted=True, samples=1)  # padded
    windows((5, 14), 7, shifted=True, samples=1)  # windows that shrink to the map on one axis, and shift on the other
    windows((14, 7), 7, shifted=False, samples=1)
    convolutions(1, 9, 5, 16, 7, gelu=False)
    convolutions(2, 9, 4, 24, 3, gelu=True)
    convolutions(1, 8, 3, 80, 3, gelu=False)
    products(1, 9, 15, 64, 192, before=False, added=False)  # 135 rows: of the second tile only a few are there
    products(2, 8, 8, 128, 64, before=True, added=True)
    in_half_precision()
    models()
