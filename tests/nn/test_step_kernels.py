"""The kernels of a training step in Triton, against their plain forms: here by Triton's interpreter, and on a GPU."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from vitreous.nn import kernels
from vitreous.nn.attention import Attention
from vitreous.nn.blocks import Block, Mlp

CLOSE = {torch.float16: 4e-3, torch.bfloat16: 3e-2}  # shares of the norm of what is right


@pytest.mark.skipif(not kernels.is_available(), reason="Triton is not installed")
def test_the_kernels_in_tritons_interpreter():
    paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    program = Path(__file__).with_name("interpreted_step.py")
    subprocess.run([sys.executable, str(program)], check=True, env=environment, timeout=600)


@pytest.fixture
def switched_on(monkeypatch):
    monkeypatch.setattr(kernels, "PAY", dict.fromkeys(kernels.PAY, True))
    monkeypatch.setattr(kernels, "enabled", True)
    torch.compiler.reset()


def block(width=128, heads=2):
    return Block(Attention(width, heads), Mlp(width, 4 * width))


def test_a_compiled_graph_holds_each_as_one_node(switched_on):
    found = []

    def look(graph, inputs):
        found.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    part = block().to(torch.bfloat16)
    compiled = torch.compile(part, backend=look, fullgraph=True)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        compiled(part.to_empty(device="cuda") and torch.empty(2, 50, 128, device="cuda", dtype=torch.bfloat16))
    assert {"vitreous.packed_attention.default", "vitreous.biased_gelu.default"} <= set(found)
    assert not any("scaled_dot_product" in name for name in found)


def test_what_is_not_plain_keeps_the_plain_form(switched_on, monkeypatch):
    """A mask, causal attention, no bias, a head of an odd width, many tokens; all of it on a CPU."""
    monkeypatch.setattr("vitreous.nn.packed_attention.attend", None)
    x, mask = torch.randn(1, 9, 32), torch.zeros(1, 1, 9, 9)
    assert Attention(32, 2)(x).shape == x.shape  # as nothing here is on a GPU
    monkeypatch.setattr(kernels, "serve", lambda _: True)
    monkeypatch.setattr(kernels, "computed_dtype", lambda _: torch.bfloat16)
    Attention(32, 2)(x, bias=mask)
    for attention in (Attention(32, 2, causal=True), Attention(32, 2, "none"), Attention(32, 4)):
        attention(x)
    Attention(32, 2)(torch.randn(1, 513, 32))
    with pytest.raises(TypeError):
        Attention(32, 2)(x)


def with_gradients(module, x):
    x = x.detach().requires_grad_()
    out = module(x)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    return [out, *torch.autograd.grad(out, [x, *module.parameters()], grad)]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("tokens", "width", "heads", "dtype"),
    [
        (197, 128, 2, torch.bfloat16),
        (197, 128, 2, torch.float16),
        (196, 192, 6, torch.bfloat16),
        (64, 256, 2, torch.bfloat16),
        (65, 64, 4, torch.bfloat16),
        (17, 256, 8, torch.bfloat16),
        (7, 128, 2, torch.bfloat16),
        (512, 128, 2, torch.bfloat16),
    ],
)
def test_a_block_equals_its_plain_form(tokens, width, heads, dtype, switched_on):
    torch.manual_seed(0)
    module = block(width, heads).to("cuda", dtype)
    for bias in (module.attention.project_in.bias, module.mlp.expand.bias):
        nn.init.normal_(bias)
    x = torch.randn(3, tokens, width, device="cuda").to(dtype)
    plain = with_gradients(copy.deepcopy(module).double(), x.double())
    first, again = with_gradients(module, x), with_gradients(module, x)
    for ours, theirs, once_more in zip(first, plain, again, strict=True):
        assert torch.equal(ours, once_more)  # to the last bit
        assert float((ours.double() - theirs).norm() / theirs.norm()) < CLOSE[dtype]


@pytest.mark.gpu
def test_compiled_and_inside_a_cuda_graph(switched_on):
    module, x = block().cuda(), torch.randn(64, 197, 128, device="cuda")
    grad = torch.randn_like(x)
    compiled = torch.compile(module, fullgraph=True)

    def once():
        leaf = x.detach().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16):
            out = compiled(leaf)
        # Detached: a graph that is kept alive belongs to the stream it was made on.
        return [out.detach(), *torch.autograd.grad(out.float(), [leaf, *module.parameters()], grad)]

    expected = once()
    with torch.cuda.stream(torch.cuda.Stream()):
        once()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = once()
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
