"""The fused form of deformable attention on a GPU, against the plain one; the same to the last bit in every run."""

import pytest
import torch

from vitreous.nn.kernels.deformable import weighted_samples, weighted_samples_torch

pytestmark = pytest.mark.gpu

SHAPES = [(40, 33), (20, 17), (10, 9), (5, 5)]


def problem(dtype=torch.float32, samples=2, queries=900, heads=8, depth=32, points=4):
    chance = torch.Generator().manual_seed(0)
    tokens = sum(h * w for h, w in SHAPES)
    values = torch.randn(samples, tokens, heads, depth, generator=chance).cuda().to(dtype)
    places = (1.2 * torch.rand(samples, queries, heads, len(SHAPES), points, 2, generator=chance) - 0.1).cuda()
    weights = torch.rand(samples, queries, heads, len(SHAPES), points, generator=chance).cuda()
    grad = torch.randn(samples, queries, heads * depth, generator=chance).cuda().to(dtype)
    return [one.requires_grad_() for one in (values, places, weights)], grad


def with_gradients(form, inputs, grad):
    values, places, weights = inputs
    out = form(values, SHAPES, places, weights)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]  # a graph kept alive belongs to its stream


def close(ours, theirs, share):
    """Within a share of the largest number."""
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=0, atol=share * theirs.float().abs().max().item())


@pytest.mark.parametrize("sizes", [{}, {"heads": 3, "depth": 20, "points": 1, "queries": 7}])
def test_equals_the_plain_form(sizes):
    inputs, grad = problem(**sizes)
    double = [one.detach().double().requires_grad_() for one in inputs]
    plain = with_gradients(weighted_samples_torch, double, grad.double())
    for ours, theirs in zip(with_gradients(weighted_samples, inputs, grad), plain, strict=True):
        close(ours, theirs, 3e-5)


def test_in_bfloat16():
    inputs, grad = problem(torch.bfloat16)
    double = [one.detach().double().requires_grad_() for one in inputs]
    plain = with_gradients(weighted_samples_torch, double, grad.double())
    found = with_gradients(weighted_samples, inputs, grad)
    assert found[0].dtype == found[1].dtype == torch.bfloat16 and found[2].dtype == torch.float32
    for ours, theirs in zip(found, plain, strict=True):
        close(ours, theirs, 1e-2)


def test_the_same_to_the_last_bit():
    inputs, grad = problem(queries=5000)
    first, second = (with_gradients(weighted_samples, inputs, grad) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_what_is_not_finite_shows():
    inputs, grad = problem(queries=9)
    grad[0, 0, 0] = float("inf")
    assert not with_gradients(weighted_samples, inputs, grad)[1].isfinite().all()


def test_compiles_and_runs_inside_a_cuda_graph():
    inputs, grad = problem(queries=100)
    step = torch.compile(lambda *some: with_gradients(weighted_samples, some[:3], some[3]))
    expected = with_gradients(weighted_samples, inputs, grad)
    found = step(*inputs, grad)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        with_gradients(weighted_samples, inputs, grad)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = with_gradients(weighted_samples, inputs, grad)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
