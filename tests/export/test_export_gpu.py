"""Exporting where there is a GPU: files are checked on the CPU as elsewhere; a program can be brought to the GPU."""

import numpy as np
import pytest
import torch
from small_models import blob, learned_trained
from torch.export.passes import move_to_device_pass

from vitreous.export.job import export
from vitreous.prediction.predictor import Predictor
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.weights.trained import Trained

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learned") / "model"
    learned_trained().save(folder)
    return folder


def pictures(num=6):
    generator = np.random.default_rng(0)
    return [blob(number % 3, generator) for number in range(num)]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_onnx(model, tmp_path, precision):
    done = export(model, precision=precision, num_checks=8, out=tmp_path / "small.onnx")
    assert done.certificate["agreement"]["largest_difference"] < (2e-3 if precision == "fp32" else 0.1)
    exported, gpu = Predictor.load(done.path), TorchPredictor(Trained.load(model), "cuda")
    for one, other in zip(exported.outcomes(pictures()), gpu.outcomes(pictures()), strict=True):
        np.testing.assert_allclose(one.probabilities, other.probabilities, atol=0.1)


def test_a_program_runs_on_the_gpu(model, tmp_path):
    done = export(model, "torch-export", num_checks=8, out=tmp_path / "small.pt2")
    program = move_to_device_pass(torch.export.load(done.path), "cuda").module()
    eager = TorchPredictor(Trained.load(model))
    images = eager.inputs(*pictures())
    with torch.inference_mode():
        found, expected = program(images.cuda()), eager.raw(images)["logits"]
    logits = found["logits"] if isinstance(found, dict) else found
    np.testing.assert_allclose(logits.cpu().numpy(), expected, atol=1e-3, rtol=1e-3)


def test_the_gpu_says_what_the_cpu_says(model):
    gpu, cpu = (TorchPredictor(Trained.load(model), device) for device in ("cuda", "cpu"))
    assert gpu.fingerprint == cpu.fingerprint
    for num in (1, 1, 1, 1, 6, 6, 6, 5):
        for one, other in zip(gpu.outcomes(pictures(num)), cpu.outcomes(pictures(num)), strict=True):
            assert one.best == other.best
            np.testing.assert_allclose(one.probabilities, other.probabilities, atol=0.03)
