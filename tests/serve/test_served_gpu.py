"""The service on a GPU: its answers are those of the CPU, whatever the batch, and a lost GPU ends the process."""

import concurrent.futures

import numpy as np
import pytest
import torch
from running import Running, png, unpacked

from vitreous.serve.served import open_served

pytestmark = pytest.mark.gpu

PLAIN = {"top": 2, "coverage": None, "abstain": None}


def picture(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (37, 51, 3), dtype=np.uint8)


def test_answers_are_those_of_the_cpu(run):
    gpu, cpu = (open_served(str(run), device, 1) for device in ("cuda", "cpu"))
    gpu.warm_up()
    recorded = len(gpu.predictor._forward._graphs)
    assert recorded == 5  # 1, 2, 4, 8 and 16 pictures
    for num in (1, 2, 3, 5, 16):
        prepared = [gpu.prepare(picture(seed)) for seed in range(num)]
        for one, other in zip(gpu.predict(prepared), cpu.predict(prepared), strict=True):
            np.testing.assert_allclose(one.probabilities, other.probabilities, atol=0.03)
        np.testing.assert_allclose(gpu.embed(prepared), cpu.embed(prepared), atol=0.05, rtol=0.05)
    assert len(gpu.predictor._forward._graphs) == recorded


def test_a_look_inside_and_the_description_are_bytes_of_the_host(run):
    gpu, cpu = (open_served(str(run), device, 1) for device in ("cuda", "cpu"))
    assert gpu.describe() == cpu.describe()
    prepared = cpu.prepare(picture())
    (header, arrays), (expected, others) = (unpacked(each.attention(prepared, PLAIN)) for each in (gpu, cpu))
    assert header["layers"] == expected["layers"]
    for name, values in others.items():
        np.testing.assert_allclose(arrays[name].astype(float), values.astype(float), atol=2, rtol=1e-3)


def test_after_an_error_of_the_gpu_a_new_process_is_wanted(run):
    served = open_served(str(run), "cuda", 1)
    assert served.is_lost(torch.AcceleratorError("an illegal memory access was encountered"))
    assert not served.is_lost(torch.OutOfMemoryError("of one batch"))
    assert not served.is_lost(ValueError())


@pytest.mark.parametrize("num_models", [1, 2])
def test_a_server_with_many_clients(run, model, num_models):
    """Two models are two processes, each with the GPU to itself."""
    models = (run, model)[:num_models]
    server = Running(*models, "--device", "cuda", "--queue", "64", "--neighbours", "8")
    try:
        alone = [server.predict(png(seed)).json() for seed in range(4)]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            found = list(pool.map(lambda number: server.predict(png(number % 4)), range(64)))
        assert {one.status_code for one in found} == {200}
        for number, one in enumerate(found):
            (expected,), (given,) = alone[number % 4]["results"], one.json()["results"]
            assert given["label"] == expected["label"]
            assert given["top"][0]["probability"] == pytest.approx(expected["top"][0]["probability"], abs=0.02)
    finally:
        assert server.stop() == 0
