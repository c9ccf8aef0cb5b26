"""Neighbours: a graph over the vectors of a large index (HNSW; Malkov and Yashunin 2018), by the library usearch.

An exact search reads every vector. The graph leads from one to the next and reads a few thousand. It only proposes: who
asks compares the proposals exactly, so that scores are the same, and a picture may be missing but none is misplaced.
"""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.errors import UserError
from vitreous.search.nearest import Floats, Rows, Vectors, nearest
from vitreous.terminal import track

LINKED = 1 << 14  # vectors at a time
EXPANSION = 256  # candidates that a search keeps
LEAST = 64  # rows that are proposed at least, and four times as many as are asked for
ASKED, TOP = 200, 10  # of these questions, how many of the true nearest are proposed?


class Neighbours:
    def __init__(self, graph: Any) -> None:
        self._graph = graph
        graph.expansion_search = EXPANSION

    @classmethod
    def of(cls, vectors: Floats) -> "Neighbours":
        """Of unit vectors (N, D), block by block; the graph is in memory until it is saved."""
        # In half precision: proposals are compared exactly afterwards.
        graph = _library().Index(ndim=vectors.shape[1], metric="ip", dtype="f16")
        for start in track(range(0, len(vectors), LINKED), "linking"):
            block = np.array(vectors[start : start + LINKED])
            graph.add(np.arange(start, start + len(block)), block)
        return cls(graph)

    @classmethod
    def open(cls, path: Path) -> "Neighbours":
        """Memory-mapped: a search reads what it passes."""
        return cls(_library().Index.restore(str(path), view=True))

    def save(self, path: Path) -> None:
        self._graph.save(str(path))

    def propose(self, query: Floats, num: int) -> Rows:
        """Rows that are probably the nearest to `query` (D,), in no order."""
        wanted = min(max(4 * num, LEAST), len(self._graph))
        self._graph.expansion_search = max(EXPANSION, wanted)
        return np.asarray(self._graph.search(np.asarray(query, np.float32), wanted).keys, np.int64)

    def nearest(self, vectors: Vectors, query: Floats, num: int) -> tuple[Rows, Floats]:
        """As `nearest.nearest`, among what is proposed."""
        proposed = np.sort(self.propose(query, num))  # in the order in which they lie on the disk
        rows, scores = nearest(vectors[proposed], query, num)
        return proposed[rows], scores


def recall(neighbours: Neighbours, vectors: Floats) -> float:
    """The share of the true nearest that is found, where some of the vectors themselves are the questions."""
    asked = np.unique(np.linspace(0, len(vectors) - 1, ASKED, dtype=np.int64))
    top, found = min(TOP, len(vectors)), 0
    for row in track(asked, "comparing with an exact search"):
        right, _ = nearest(vectors, vectors[row], top)
        guessed, _ = neighbours.nearest(vectors, vectors[row], top)
        found += len(np.intersect1d(right, guessed))
    return found / (top * len(asked))


def is_installed() -> bool:
    return importlib.util.find_spec("usearch") is not None


def check_installed() -> None:
    if not is_installed():
        raise UserError("--approximate needs the library usearch: pip install 'vitreous[neighbours]'")


def _library() -> Any:
    import usearch.index

    return usearch.index
