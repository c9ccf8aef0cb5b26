"""Window attention and depthwise convolution in Triton: where there is no GPU, by Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from vitreous.models.base import Grid
from vitreous.models.convnext import ConvNeXtSettings
from vitreous.models.pvt import ConvMlp
from vitreous.models.swin import SwinSettings
from vitreous.nn import kernels
from vitreous.nn.channels_last import depthwise, patchwise
from vitreous.nn.pointwise import pointwise
from vitreous.nn.window_attention import serves


@pytest.mark.skipif(not kernels.is_available(), reason="Triton is not installed")
def test_the_kernels_in_tritons_interpreter():
    paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    program = Path(__file__).with_name("interpreted_kernels.py")
    subprocess.run([sys.executable, str(program)], check=True, env=environment, timeout=600)


class Product(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(width, channels, 1, 1)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return pointwise(x.permute(0, 3, 1, 2), self.weight, self.bias)


@pytest.mark.parametrize(
    ("part", "shape", "operator"),
    [
        (
            SwinSettings(width=32, depths=(2,), heads=(2,)).build(),
            (2, 3, 224, 224),
            "vitreous.window_attention.default",
        ),
        (ConvNeXtSettings(widths=(16,), depths=(1,)).build(), (2, 3, 224, 224), "vitreous.depthwise.default"),
        (ConvMlp(16, 32, linear=False), (2, 56, 16), "vitreous.depthwise.default"),
        (Product(64, 128), (8, 56, 56, 64), "vitreous.pointwise.default"),
    ],
    ids=["Swin", "ConvNeXt", "PVT", "ResNet"],
)
def test_a_compiled_graph_holds_the_kernel_as_one_node(part, shape, operator, monkeypatch):
    """By tensors that say they are on a GPU and hold nothing."""
    found = []

    def look(graph, inputs):
        found.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(part.to(torch.bfloat16), backend=look, fullgraph=True)
    # What torch before 2.13 says inside every compiled graph.
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    monkeypatch.setattr(kernels, "enabled", True)
    monkeypatch.setattr(kernels, "PAY", dict.fromkeys(kernels.PAY, True))
    grid = (Grid(7, 8),) if isinstance(part, ConvMlp) else ()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        part.to_empty(device="cuda")
        compiled(torch.empty(shape, device="cuda", dtype=torch.bfloat16), *grid)
    assert operator in found


@pytest.mark.parametrize("gelu", [False, True])
def test_depthwise_is_the_convolution(gelu):
    conv = nn.Conv2d(6, 6, 3, padding=1, groups=6)
    x = torch.randn(2, 5, 7, 6)
    expected = conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    assert torch.equal(depthwise(x, conv, gelu), nn.functional.gelu(expected) if gelu else expected)


def test_a_cpu_keeps_the_plain_form():
    x = torch.randn(1, 7, 7, 32, dtype=torch.bfloat16)
    assert not kernels.serve(x) and not serves(x, 32, (7, 7))


def test_patchwise_is_the_convolution(monkeypatch):
    conv, x = nn.Conv2d(5, 7, 4, stride=4).double(), torch.randn(2, 9, 13, 5).double()
    expected = conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    assert torch.equal(patchwise(x, conv), expected)
    monkeypatch.setattr(kernels, "serve", lambda _: True)
    monkeypatch.setattr(conv, "forward", None)  # one matrix product in its place
    torch.testing.assert_close(patchwise(x, conv), expected)
