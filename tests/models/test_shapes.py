import subprocess
import sys

import torch

from vitreous.models import ViTSettings
from vitreous.models.shapes import shapes_only


def test_what_is_built_has_the_shapes_and_nothing_else():
    settings = ViTSettings(picture_px=(32, 32), patch=8, width=32, depth=1, heads=2)
    with shapes_only():
        built = settings.build()
    assert {parameter.device.type for parameter in built.parameters()} == {"meta"}
    expected = {name: value.shape for name, value in settings.build().state_dict().items()}
    assert {name: value.shape for name, value in built.state_dict().items()} == expected
    linear = torch.nn.Linear(4, 4)  # afterwards all is as ever
    assert linear.weight.device.type == "cpu"
    assert linear.weight.abs().sum() > 0


def test_the_compiler_is_not_imported():
    """It takes longer than torch: who only wants an answer should not wait for it."""
    code = """
import sys
from vitreous.models import ViTSettings
from vitreous.models.shapes import shapes_only
import vitreous.weights.trained
with shapes_only():
    for positions in ("learned", "learned-2d", "sincos", "relative", "bias", "bias-shared"):
        ViTSettings(depth=1, positions=positions).build()
assert "torch._dynamo" not in sys.modules
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
