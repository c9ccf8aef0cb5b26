"""Assignment against SciPy, and what is defined where SciPy refuses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from assignments import check, degenerate_problems, random_problems
from vitreous.nn import kernels
from vitreous.nn.assignment import assign


def test_as_cheap_as_scipys():
    for cost, valid in [*random_problems(160), *degenerate_problems(200)]:
        check(cost, valid, assign(cost, valid))


def test_what_is_not_finite_is_avoided_where_it_can_be():
    nan, inf = float("nan"), float("inf")
    cost = torch.tensor([[1.0, nan, 5.0], [-inf, 900.0, 7.0], [inf, nan, 1e31]])[None]
    valid = torch.ones(1, 3, dtype=torch.bool)
    assert assign(cost, valid).tolist() == [[0, 2, 1]]  # one pair has to be such
    assert assign(cost[:, :2], valid[:, :2].new_tensor([[True, True, False]])).tolist() == [[0, 1, -1]]
    nothing = assign(torch.full((2, 4, 3), nan), torch.ones(2, 3, dtype=torch.bool))
    assert all(len(set(one)) == 3 and min(one) >= 0 for one in nothing.tolist())


def test_costs_of_targets_that_are_not_valid_do_not_matter():
    cost = torch.randn(3, 9, 4, generator=torch.Generator().manual_seed(0))
    valid = torch.tensor([[True, False, True, False]]).expand(3, 4)
    spoilt = torch.where(valid[:, None], cost, float("nan"))
    assert torch.equal(assign(cost, valid), assign(spoilt, valid))


def test_one_operator_to_the_compiler_and_no_gradients():
    cost = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    valid = torch.ones(2, 3, dtype=torch.bool)
    compiled = torch.compile(assign, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(cost, valid), assign(cost, valid))
    torch.library.opcheck(torch.ops.vitreous.assign_rows, (cost.detach().mT.contiguous(), valid))


@pytest.mark.skipif(not kernels.is_available(), reason="Triton is not installed")
def test_the_kernel_in_tritons_interpreter():
    code = """
from assignments import SMALL, check, degenerate_problems, random_problems
from vitreous.nn.assignment import avoiding_what_is_not_finite
from vitreous.nn.kernels.assignment_triton import launch

for cost, valid in [*random_problems(10, SMALL), *degenerate_problems(25, SMALL)]:
    check(cost, valid, launch(avoiding_what_is_not_finite(cost.mT, valid), valid))
"""
    paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=300)
