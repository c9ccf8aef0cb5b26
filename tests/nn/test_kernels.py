"""Window attention and depthwise convolution in Triton: where there is no GPU, by Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from vitreous.nn import kernels
from vitreous.nn.channels_last import depthwise, patchwise
from vitreous.nn.window_attention import serves


@pytest.mark.skipif(not kernels.is_available(), reason="Triton is not installed")
def test_the_kernels_in_tritons_interpreter():
    paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    program = Path(__file__).with_name("interpreted_kernels.py")
    subprocess.run([sys.executable, str(program)], check=True, env=environment, timeout=600)


@pytest.mark.parametrize("gelu", [False, True])
def test_depthwise_is_the_convolution(gelu):
    conv = nn.Conv2d(6, 6, 3, padding=1, groups=6)
    x = torch.randn(2, 5, 7, 6)
    expected = conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    assert torch.equal(depthwise(x, conv, gelu), nn.functional.gelu(expected) if gelu else expected)


def test_a_cpu_keeps_the_plain_form():
    x = torch.randn(1, 7, 7, 32)
    assert not kernels.serve(x) and not serves(x, 32, (7, 7))


def test_patchwise_is_the_convolution(monkeypatch):
    conv, x = nn.Conv2d(5, 7, 4, stride=4).double(), torch.randn(2, 9, 13, 5).double()
    expected = conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    assert torch.equal(patchwise(x, conv), expected)
    monkeypatch.setattr(kernels, "serve", lambda _: True)
    monkeypatch.setattr(conv, "forward", None)  # one matrix product in its place
    torch.testing.assert_close(patchwise(x, conv), expected)
