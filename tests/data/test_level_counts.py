import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from vitreous.data import colour
from vitreous.data.level_counts import level_counts, level_counts_fused


def test_every_pixel_counts_once():
    images = torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8)
    for picture, counts in zip(images, level_counts(images), strict=True):
        for channel, found in zip(picture, counts, strict=True):
            assert found.tolist() == np.bincount(channel.flatten(), minlength=256).tolist()


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernel_in_tritons_interpreter():
    paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    program = Path(__file__).with_name("interpreted_levels.py")
    subprocess.run([sys.executable, str(program)], check=True, env=environment, timeout=600)


def test_a_compiled_graph_holds_it_as_one_node():
    with FakeTensorMode():
        found = level_counts_fused(
            torch.empty(2, 3, 4, 4, dtype=torch.uint8, device="cuda"), torch.ones(2, dtype=torch.bool, device="cuda")
        )
    assert found.shape == (2, 3, 256) and found.dtype == torch.int32


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(1, 1), (224, 224), (37, 131)])
def test_on_a_gpu(size):
    images = torch.randint(0, 256, (14, 3, *size), dtype=torch.uint8)
    images[1], images[2] = 255, 0
    wanted = torch.arange(14) % 2 == 0
    found = level_counts(images.cuda(), wanted.cuda()).cpu()
    assert torch.equal(found[wanted], level_counts(images)[wanted])
    assert not found[~wanted].any()
    tables = colour.equalize_table(images.cuda(), wanted.cuda()).cpu()
    assert torch.equal(tables[wanted], colour.equalize_table(images)[wanted])
