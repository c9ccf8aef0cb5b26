"""The kernel on a GPU: 11,000 problems against SciPy, inside torch.compile and inside a CUDA graph."""

import pytest
import torch

from assignments import check, degenerate_problems, random_problems
from vitreous.nn.assignment import assign

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("problems", "number"), [(random_problems, 10_000), (degenerate_problems, 1_000)])
def test_as_cheap_as_scipys(problems, number):
    for cost, valid in problems(number):
        check(cost, valid, assign(cost.cuda(), valid.cuda()).cpu())


def test_the_same_twice_and_as_on_the_host_where_the_best_is_unique():
    cost = torch.randn(64, 300, 40, generator=torch.Generator().manual_seed(0))
    valid = torch.ones(64, 40, dtype=torch.bool)
    first, second = (assign(cost.cuda(), valid.cuda()).cpu() for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(first, assign(cost, valid))


def test_inside_a_cuda_graph_of_compiled_code():
    cost, valid = torch.empty(8, 100, 20, device="cuda"), torch.ones(8, 20, dtype=torch.bool, device="cuda")
    compiled = torch.compile(assign, fullgraph=True)
    cost.normal_()
    compiled(cost, valid)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = compiled(cost, valid)
    for seed in range(3):
        cost.copy_(torch.randn(8, 100, 20, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        check(cost.cpu(), valid.cpu(), found.cpu())


def test_nothing_waits_for_the_host():
    cost, valid = torch.randn(4, 100, 20, device="cuda"), torch.ones(4, 20, dtype=torch.bool, device="cuda")
    assign(cost, valid)
    torch.cuda.set_sync_debug_mode("error")
    try:
        assign(cost, valid)
    finally:
        torch.cuda.set_sync_debug_mode("default")
