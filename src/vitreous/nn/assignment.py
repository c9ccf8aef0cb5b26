"""Exact assignment of targets to queries, batched: the set matching of DETR (Carion et al. 2020, section 3.1).

Every target gets its own query, such that the sum of costs is minimal. Shortest augmenting paths with potentials
(Jonker and Volgenant 1987; Crouse 2016): targets are added one by one, and each may push earlier ones to other queries.
On CUDA one Triton program solves each sample without leaving the device (nn/kernels/assignment_triton.py).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.nn import kernels

NOBODY = -1
LARGEST = 1e30  # costs beyond it count as not finite


def assign(cost: Tensor, valid: Tensor) -> Tensor:
    """cost (B, Q, M), valid (B, M) bool -> (B, M) int64: the query of every target, -1 for none.

    Targets that are not valid get none; if there are more targets than queries, those that minimise the sum get one.
    A cost that is not finite (or beyond 1e30) is never chosen if there is a complete assignment without it. On CUDA
    nothing waits for the host. Several decoder layers are best solved in one call, as a larger batch.
    """
    if cost.numel() == 0:
        return torch.full_like(valid, NOBODY, dtype=torch.int64)
    found: Tensor = assign_rows(avoiding_what_is_not_finite(cost.detach().float().mT, valid), valid)
    return found


def avoiding_what_is_not_finite(cost: Tensor, valid: Tensor) -> Tensor:
    """(B, M, Q) with every such cost larger than anything an assignment could save by choosing it."""
    finite = cost.abs() <= LARGEST  # false for NaN too
    largest = torch.where(finite & valid[..., None], cost.abs(), 0).amax((1, 2), keepdim=True)
    worst = (2 * min(cost.shape[1:]) + 1) * largest.clamp(min=1e-6)
    return torch.where(finite, cost, worst).contiguous()


@torch.library.custom_op("vitreous::assign_rows", mutates_args=())
def assign_rows(cost: Tensor, valid: Tensor) -> Tensor:
    """cost (B, M, Q) float32, all finite -> (B, M) int64. One operator to torch.compile, whatever runs inside."""
    if cost.is_cuda and kernels.is_available():
        from vitreous.nn.kernels.assignment_triton import launch

        return launch(cost, valid)
    rows, used = cost.double().cpu().numpy(), valid.cpu().numpy()
    queries = np.full(used.shape, NOBODY, np.int64)
    for sample, of_sample in enumerate(used):
        queries[sample, of_sample] = shortest_augmenting_paths(rows[sample, of_sample])
    return torch.from_numpy(queries).to(cost.device)


@assign_rows.register_fake
def _(cost: Tensor, valid: Tensor) -> Tensor:
    return valid.new_empty(valid.shape, dtype=torch.int64)


def shortest_augmenting_paths(cost: NDArray[np.float64]) -> NDArray[np.int64]:
    """(rows, columns) -> the column of every row, -1 for none."""
    num_rows, num_columns = cost.shape
    # With more rows than columns, the missing columns are added, all of equal cost: all are used, so they only decide
    # which rows get no real column.
    missing = max(num_rows - num_columns, 0)
    cost = np.pad(cost, ((0, 0), (0, missing)))
    row_of = np.full(cost.shape[1], NOBODY)  # of every column
    row_price, column_price = np.zeros(num_rows), np.zeros(cost.shape[1])
    for new in range(num_rows):
        row, price, reached = new, 0.0, NOBODY
        distance = np.full(cost.shape[1], np.inf)
        before = np.full(cost.shape[1], NOBODY)  # the column that a column was reached from
        closed = np.zeros(cost.shape[1], bool)
        while row != NOBODY:  # Dijkstra's algorithm, until a free column is reached
            through = price + cost[row] - row_price[row] - column_price
            nearer = ~closed & (through < distance)
            distance[nearer], before[nearer] = through[nearer], reached
            reached = int(np.where(closed, np.inf, distance).argmin())
            price, row = float(distance[reached]), int(row_of[reached])
            closed[reached] = True
        saved = np.where(closed, price - distance, 0)
        column_price -= saved
        row_price[new] += price
        others = closed & (row_of != NOBODY)
        row_price[row_of[others]] += saved[others]
        while reached != NOBODY:  # back along the path, every column takes the row of the one before it
            source = int(before[reached])
            row_of[reached] = new if source == NOBODY else row_of[source]
            reached = source
    columns = np.full(num_rows, NOBODY, np.int64)
    used = np.flatnonzero(row_of[:num_columns] != NOBODY)
    columns[row_of[used]] = used
    return columns
