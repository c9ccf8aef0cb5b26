"""Exact comparisons over an array of unit vectors, block by block: the product of two is their cosine.

The array may be memory-mapped and larger than memory: only one block, or the product of two, is in memory at a time.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vitreous.terminal import track

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]

BLOCK = 1 << 14  # rows at a time against one query
SQUARE = 1 << 10  # rows at a time against each other
NEIGHBOURS = 10  # nearest pictures that decide whether one is an outlier
ROUNDING = 1e-6  # by which the cosine of equal vectors may differ from 1


class Vectors(Protocol):
    """(N, D) of length 1: an array, or an object that reads like one."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Floats: ...


def nearest(vectors: Vectors, query: Floats, num: int) -> tuple[Rows, Floats]:
    """The rows most similar to `query` (D,), best first, with their cosines."""
    rows, scores = np.empty(0, np.int64), np.empty(0, np.float32)
    for start in range(0, len(vectors), BLOCK):
        here = vectors[start : start + BLOCK] @ query
        rows = np.concatenate([rows, np.arange(start, start + len(here))])
        scores = np.concatenate([scores, here])
        order = np.argpartition(-scores, num - 1)[:num] if num < len(scores) else np.arange(len(scores))
        rows, scores = rows[order], scores[order]
    order = np.lexsort((rows, -scores))  # equal scores in the order of their rows
    return rows[order], scores[order]


def duplicates(vectors: Vectors, least: float) -> list[Rows]:
    """Groups of rows that have a cosine of at least `least` with the first of their group; the largest first. The first
    row leads a group of all that are like it, and so does the next one that is in none. (Were it enough to be like any
    of a group, a chain of small steps would join what is not alike.)"""
    leader = np.arange(len(vectors))  # the first row of the group that a row is in
    for left in track(range(0, len(vectors), SQUARE), "comparing"):
        for right, cosines in _against(vectors, left, from_row=left):
            is_alike = cosines >= least - ROUNDING
            for row in np.flatnonzero(is_alike.any(axis=1)):
                if leader[left + row] == left + row:
                    others = right + np.flatnonzero(is_alike[row])
                    leader[others[(leader[others] == others) & (others > left + row)]] = left + row
    order = np.argsort(leader, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(leader[order])) + 1)
    return sorted((group for group in groups if len(group) > 1), key=len, reverse=True)


def outliers(vectors: Vectors, num: int) -> tuple[Rows, Floats]:
    """The rows least similar to their nearest neighbours: lowest first, with their mean cosine to these."""
    k = min(NEIGHBOURS, len(vectors) - 1)
    similarity = np.empty(len(vectors), np.float32)
    for left in track(range(0, len(vectors), SQUARE), "comparing"):
        best = np.empty((len(vectors[left : left + SQUARE]), 0), np.float32)
        for right, cosines in _against(vectors, left):
            if left == right:
                np.fill_diagonal(cosines, -np.inf)  # no picture is its own neighbour
            best = np.concatenate([best, cosines], axis=1)
            best = np.partition(best, -k, axis=1)[:, -k:] if best.shape[1] > k else best
        similarity[left : left + SQUARE] = best.mean(axis=1)
    rows = np.argsort(similarity, kind="stable")[:num]
    return rows, similarity[rows]


def _against(vectors: Vectors, left: int, from_row: int = 0) -> Iterator[tuple[int, Floats]]:
    """The cosines of a block's rows with those of every block: where that block begins, and (rows, its rows)."""
    rows = np.array(vectors[left : left + SQUARE])
    for right in range(from_row, len(vectors), SQUARE):
        yield right, rows @ vectors[right : right + SQUARE].T
