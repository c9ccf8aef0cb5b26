"""Assignment problems, and what SciPy makes of them: for the tests of the plain form, of the kernel in Triton's
interpreter, and of the kernel on a GPU."""

import numpy as np
import torch

try:
    from scipy.optimize import linear_sum_assignment
except ImportError:  # a bare GPU machine: the plain form is held against SciPy elsewhere
    from vitreous.nn.assignment import shortest_augmenting_paths

    def linear_sum_assignment(cost):
        queries = shortest_augmenting_paths(cost.T)
        targets = np.flatnonzero(queries >= 0)
        return queries[targets], targets


SMALL = [(40, 6), (7, 7), (30, 1), (1, 3), (5, 12)]  # queries, targets
SHAPES = [*SMALL, (5, 0), (100, 20), (12, 31), (64, 64), (300, 63)]


def random_problems(number, shapes=SHAPES, seed=0):
    """Batches of (cost, valid) with about that many samples in all."""
    chance = torch.Generator().manual_seed(seed)
    for queries, targets in shapes:
        samples = -(-number // len(shapes))
        cost = torch.randn(samples, queries, targets, generator=chance) * 10
        yield cost, torch.rand(samples, targets, generator=chance) < 0.8


def degenerate_problems(number, shapes=SHAPES, seed=1):
    """Ties everywhere, nothing but ties, costs of very different sizes, nobody valid, everybody valid."""
    chance = torch.Generator().manual_seed(seed)
    for queries, targets in shapes:
        samples = -(-number // (5 * len(shapes)))
        size = (samples, queries, targets)
        some = torch.rand(samples, targets, generator=chance) < 0.8
        yield torch.randint(0, 3, size, generator=chance).float(), some
        yield torch.full(size, 0.1), some
        yield torch.randn(size, generator=chance).exp() ** 4, some
        yield torch.randn(size, generator=chance), torch.zeros(samples, targets, dtype=torch.bool)
        yield torch.randint(-1, 1, size, generator=chance).float(), torch.ones(samples, targets, dtype=torch.bool)


def check(cost, valid, queries):
    """Complete, one to one, and as cheap as SciPy's to the rounding of float32."""
    assert queries.dtype == torch.int64 and queries.shape == valid.shape
    num_queries = cost.shape[1]
    for one, used, found in zip(cost.double().numpy(), valid.numpy(), queries.numpy(), strict=True):
        assert (found[~used] == -1).all()
        targets = np.flatnonzero(found >= 0)
        assert len(targets) == min(used.sum(), num_queries)
        assert len(set(found[targets])) == len(targets)
        ours = one[found[targets], targets].sum()
        best = one[:, used][linear_sum_assignment(one[:, used])].sum()
        rounding = np.finfo(np.float32).eps * max(len(targets), 1) * (np.abs(one).max() if one.size else 0)
        assert ours <= best + 2 * rounding, (ours, best, one.shape)
