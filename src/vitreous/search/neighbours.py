"""Neighbours: a graph over the vectors of a large index (HNSW; Malkov and Yashunin 2018), by the library usearch.

An exact search reads every vector; the graph leads from one to the next and reads a few thousand. It only proposes: the
proposals are compared exactly, so that scores are the same, and a picture may be missing but none is misplaced.
"""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.errors import UserError
from vitreous.search.nearest import Floats, Rows, Vectors, nearest
from vitreous.terminal import track

LINKED = 1 << 14  # vectors to add at a time
EXPANSION = 256  # candidates that a search keeps
LEAST = 64  # least rows to propose; otherwise four times as many as are wanted
ASKED, TOP = 200, 10  # queries to measure recall with, and the number of true nearest that each should find


class Neighbours:
    def __init__(self, graph: Any) -> None:
        self._graph = graph
        graph.expansion_search = EXPANSION

    @classmethod
    def of(cls, vectors: Floats) -> "Neighbours":
        """The graph of unit vectors (N, D), built block by block, and in memory until it is saved."""
        # In half precision: proposals are compared exactly afterwards.
        graph = _library().Index(ndim=vectors.shape[1], metric="ip", dtype="f16")
        for start in track(range(0, len(vectors), LINKED), "linking"):
            block = np.array(vectors[start : start + LINKED])
            graph.add(np.arange(start, start + len(block)), block)
        return cls(graph)

    @classmethod
    def open(cls, path: Path) -> "Neighbours":
        """Memory-mapped: a search reads only what it visits."""
        return cls(_library().Index.restore(str(path), view=True))

    def save(self, path: Path) -> None:
        self._graph.save(str(path))

    def propose(self, query: Floats, num: int) -> Rows:
        """Rows that are probably the nearest to `query` (D,), in no order."""
        wanted = min(max(4 * num, LEAST), len(self._graph))
        self._graph.expansion_search = max(EXPANSION, wanted)
        return np.asarray(self._graph.search(np.asarray(query, np.float32), wanted).keys, np.int64)

    def nearest(self, vectors: Vectors, query: Floats, num: int) -> tuple[Rows, Floats]:
        """Like `nearest.nearest`, among the proposals."""
        proposed = np.sort(self.propose(query, num))  # in their order on disk
        rows, scores = nearest(vectors[proposed], query, num)
        return proposed[rows], scores


def recall(neighbours: Neighbours, vectors: Floats) -> float:
    """The share of the true nearest that is found, with some of the vectors themselves as queries."""
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
