"""AdamW with clip, watch and average in one launch, against torch's own; here in Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import Regress, make_loop

from vitreous.nn import kernels
from vitreous.training.averages import AverageSettings
from vitreous.training.optim import AdamWSettings, MuonSettings


@pytest.mark.skipif(not kernels.is_available(), reason="Triton is not installed")
def test_the_kernel_in_tritons_interpreter():
    paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    program = Path(__file__).with_name("interpreted_one_pass.py")
    subprocess.run([sys.executable, str(program)], check=True, env=environment, timeout=600)


@pytest.mark.parametrize("settings", [AdamWSettings(), MuonSettings()])
def test_a_cpu_keeps_the_plain_form(settings, monkeypatch):
    monkeypatch.setattr(kernels, "PAY", dict.fromkeys(kernels.PAY, True))
    assert make_loop(objective=Regress(), optimizer=settings, average=AverageSettings(kind="ema")).one_pass is None


@pytest.mark.gpu
@pytest.mark.parametrize("graphed", [False, True])
def test_on_a_gpu_as_plain_torch(graphed):
    from interpreted_one_pass import assert_the_same

    assert_the_same("cuda", graphed, tolerance=2e-6)  # 1e-5 of what ten steps move; weights may pass through 0
