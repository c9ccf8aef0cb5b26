"""Run as a program in Triton's interpreter: the kernels of a training step against their plain forms."""

import torch
import torch.nn.functional as F
from torch import nn

from vitreous.nn import kernels, packed_attention
from vitreous.nn.attention import Attention
from vitreous.nn.gelu import dense_gelu

kernels.PAY = dict.fromkeys(kernels.PAY, True)
serve = kernels.serve


def with_gradients(call, x, module, is_fused):
    kernels.serve = (lambda _: True) if is_fused else serve
    x = x.detach().requires_grad_()
    out = call(x)
    chance = torch.Generator().manual_seed(1)
    grads = torch.autograd.grad(out, [x, *module.parameters()], torch.randn(out.shape, generator=chance).to(out))
    return [out, *grads]


def assert_the_same(call, x, module, atol=2e-6):
    pairs = zip(*(with_gradients(call, x, module, is_fused) for is_fused in (True, False)), strict=True)
    for ours, plain in pairs:
        torch.testing.assert_close(ours, plain, atol=atol * float(plain.detach().abs().max()), rtol=1e-5)


def gelu():
    for shape, hidden in (((2, 37, 24), 280), ((3, 8), 16)):
        dense = nn.Linear(shape[-1], hidden)
        nn.init.normal_(dense.bias)
        assert_the_same(lambda x, dense=dense: dense_gelu(dense, x), 3 * torch.randn(shape), dense)
    kernels.serve = lambda _: True
    far = torch.tensor([-200.0, -30, -9, -5, -1e-20, 0, 1e-20, 5, 9, 30, 200])
    dense = nn.Linear(1, len(far)).requires_grad_(False)
    dense.weight.zero_()
    dense.bias.copy_(far)
    torch.testing.assert_close(dense_gelu(dense, torch.zeros(1, 1))[0], F.gelu(far), atol=1e-6, rtol=1e-6)


def attention():
    packed_attention.DTYPES = (torch.float16, torch.float32)  # exact on a CPU
    for samples, tokens, width, heads in (
        (1, 197, 64, 1),
        (2, 50, 32, 2),
        (1, 64, 64, 2),
        (2, 65, 64, 1),
        (1, 7, 32, 1),
    ):
        module = Attention(width, heads)
        nn.init.normal_(module.project_in.bias)
        x = 2 * torch.randn(samples, tokens, width)
        assert_the_same(module, x, module, atol=2e-5)


if __name__ == "__main__":
    torch.manual_seed(0)
    gelu()
    attention()
