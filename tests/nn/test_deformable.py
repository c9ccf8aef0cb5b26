import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vitreous.nn import kernels
from vitreous.nn.deformable import DeformableAttention
from vitreous.nn.kernels.deformable import weighted_samples

SHAPES = ((5, 7), (3, 4))
NUM = sum(h * w for h, w in SHAPES)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def read(one: Tensor, x: float, y: float) -> Tensor:
    """(h, w, d) and a place in pixels whose middles are whole numbers -> (d,), by hand; 0 outside."""
    h, w, d = one.shape
    total = torch.zeros(d, dtype=one.dtype)
    for row in range(h):
        for column in range(w):
            total += max(0.0, 1 - abs(row - y)) * max(0.0, 1 - abs(column - x)) * one[row, column]
    return total


def test_samples_are_read_between_the_places_of_maps() -> None:
    values = random(1, NUM, 2, 3)
    places, weights = 1.4 * random(1, 2, 2, 2, 2, 2, seed=1) - 0.2, random(1, 2, 2, 2, 2, seed=2)
    expected = torch.zeros(1, 2, 2, 3, dtype=torch.float64)
    starts = (0, SHAPES[0][0] * SHAPES[0][1])
    for query, head, level, point in torch.cartesian_prod(*[torch.arange(2)] * 4).tolist():
        h, w = SHAPES[level]
        one = values[0, starts[level] : starts[level] + h * w, head].view(h, w, 3)
        x, y = places[0, query, head, level, point].tolist()
        found = read(one, x * w - 0.5, y * h - 0.5)
        expected[0, query, head] += weights[0, query, head, level, point] * found
    torch.testing.assert_close(weighted_samples(values, SHAPES, places, weights), expected.flatten(2))


def test_gradients() -> None:
    values = random(1, NUM, 1, 2).requires_grad_()
    places, weights = random(1, 2, 1, 2, 2, 2, seed=1).requires_grad_(), random(1, 2, 1, 2, 2, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *some: weighted_samples(some[0], SHAPES, *some[1:]), (values, places, weights)
    )


@pytest.mark.parametrize("coordinates", [2, 4])
def test_it_is_the_attention_of_transformers(coordinates: int) -> None:
    pytest.importorskip("transformers")
    from transformers import DeformableDetrConfig
    from transformers.models.deformable_detr import modeling_deformable_detr as library

    config = DeformableDetrConfig(d_model=8, num_feature_levels=2)
    theirs = library.DeformableDetrMultiscaleDeformableAttention(config, num_heads=2, n_points=3).double()
    ours = DeformableAttention(8, heads=2, levels=2, points=3).double()
    names = {"offsets": "sampling_offsets", "weights": "attention_weights"}
    names |= {"project_in": "value_proj", "project_out": "output_proj"}
    for i, (mine, other) in enumerate(names.items()):
        for j, kind in enumerate(("weight", "bias")):
            parameter = getattr(getattr(ours, mine), kind)
            parameter.data = random(*parameter.shape, seed=2 * i + j)
            getattr(getattr(theirs, other), kind).data = parameter.data
    queries, tokens = random(2, 4, 8), random(2, NUM, 8, seed=5)
    references, valid = random(2, 4, 2, coordinates, seed=6), random(2, NUM, seed=7) < 0.7
    expected, _ = theirs(
        queries,
        attention_mask=valid,
        encoder_hidden_states=tokens,
        reference_points=references,
        spatial_shapes=torch.tensor(SHAPES),
        spatial_shapes_list=list(SHAPES),
    )
    torch.testing.assert_close(ours(queries, references, tokens, SHAPES, valid), expected)
    _, weights = ours.looks(queries, references, SHAPES)
    torch.testing.assert_close(weights.sum(dim=(3, 4)), torch.ones_like(weights[..., 0, 0]))


def test_heads_begin_by_looking_in_different_directions() -> None:
    attention = DeformableAttention(8, heads=4, levels=2, points=2)
    middles = torch.full((1, 1, 2, 2), 0.5)
    places, weights = attention.looks(torch.randn(1, 1, 8), middles, ((10, 10), (10, 10)))
    steps = (places[0, 0, :, 0] - 0.5) * 10  # (heads, points, 2)
    torch.testing.assert_close(steps[0], torch.tensor([[1.0, 0.0], [2.0, 0.0]]), atol=1e-5, rtol=0)
    torch.testing.assert_close(steps[3], torch.tensor([[0.0, -1.0], [0.0, -2.0]]), atol=1e-5, rtol=0)
    assert (weights == 0.25).all()


@pytest.mark.skipif(not kernels.is_available(), reason="Triton is not installed")
def test_the_kernel_in_tritons_interpreter() -> None:
    code = """
import torch
from vitreous.nn.kernels.deformable import weighted_samples_torch
from vitreous.nn.kernels.deformable_triton import backward, forward

chance = torch.Generator().manual_seed(0)
shapes = [(5, 7), (3, 4), (1, 2)]
values = torch.randn(2, 49, 2, 6, generator=chance)
places = 1.4 * torch.rand(2, 37, 2, 3, 2, 2, generator=chance) - 0.2
weights = torch.rand(2, 37, 2, 3, 2, generator=chance)
inputs = [one.requires_grad_() for one in (values, places, weights)]
expected = weighted_samples_torch(values, shapes, places, weights)
grad = torch.randn(expected.shape, generator=chance)
values, places, weights = (one.detach() for one in inputs)
sides = [5, 7, 3, 4, 1, 2]
torch.testing.assert_close(forward(values, sides, places, weights), expected, atol=1e-5, rtol=1e-5)
gradients = backward(grad, values, sides, places, weights)
for ours, theirs in zip(gradients, torch.autograd.grad(expected, inputs, grad), strict=True):
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
"""
    paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=300)
