"""Search over a memory-mapped array of made-up vectors: how long a question takes, and how much memory.

    OMP_NUM_THREADS=1 python benchmarks/search.py --out docs/results/search.json
    OMP_NUM_THREADS=2 python benchmarks/search.py --out docs/results/search.json
    OMP_NUM_THREADS=2 python benchmarks/search.py --width 384 --graph clustered --out docs/results/search.json
    OMP_NUM_THREADS=2 python benchmarks/search.py --width 384 --graph random --out docs/results/search.json

The array is written first, so it lies in the system's cache where memory allows. The file keeps one result per number
of threads, and one per kind of vectors that a graph was built over. These are either random, where all are nearly at
right angles and a graph has nothing to follow, or clustered: CLUSTERS directions, and vectors that have a cosine of
about WITHIN with one of them. A graph is asked for the nearest of vectors that it knows, of others drawn like them, and
of some that have a cosine of only ACROSS with one that it knows, as words have with pictures.
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.search.checked import CheckedVectors, digests
from vitreous.search.nearest import Floats, duplicates, nearest, outliers
from vitreous.search.neighbours import ASKED, TOP, Neighbours, recall
from vitreous.terminal import quietly

CLUSTERS, WITHIN, ACROSS = 10_000, 0.7, 0.3


def unit(vectors: Floats) -> Floats:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def leaning(directions: Floats, cosine: float, rng: np.random.Generator) -> Floats:
    """Unit vectors with about this cosine to the given ones."""
    aside = unit(rng.standard_normal(directions.shape, np.float32))
    return unit(cosine * directions + np.float32((1 - cosine**2) ** 0.5) * aside)


class Drawn:
    """Where vectors come from."""

    def __init__(self, kind: str, width: int) -> None:
        self.rng, self.width = np.random.default_rng(0), width
        self.centres = unit(self.rng.standard_normal((CLUSTERS, width), np.float32)) if kind == "clustered" else None

    def __call__(self, num: int) -> Floats:
        if self.centres is None:
            return unit(self.rng.standard_normal((num, self.width), np.float32))
        return leaning(self.centres[self.rng.integers(CLUSTERS, size=num)], WITHIN, self.rng)


def written(path: Path, num: int, drawn: Drawn, block: int = 1 << 16) -> Floats:
    """(num, width) of length 1, memory-mapped for reading."""
    values = np.lib.format.open_memmap(path, "w+", np.float32, (num, drawn.width))
    for start in range(0, num, block):
        values[start : start + block] = drawn(min(block, num - start))
    values.flush()
    del values
    return np.asarray(np.load(path, mmap_mode="r"))


def anonymous_mb() -> float:
    """Memory of our own: pages of a mapped file are the system's, which takes them back when it needs them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


class Peak(threading.Thread):
    """The most memory of our own at any time, looked at ten times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.begun, self.most_mb, self.ended = anonymous_mb(), 0.0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.1):
            self.most_mb = max(self.most_mb, anonymous_mb() - self.begun)

    def __enter__(self) -> "Peak":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()


def seconds(work: Callable[[], object], turns: int) -> dict[str, float]:
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return {"median_s": round(statistics.median(times), 3), "least_s": round(min(times), 3), "turns": turns}


def exact(path: Path, vectors: Floats, pairs: int, turns: int) -> dict[str, Any]:
    query, before = np.array(vectors[len(vectors) // 2]), anonymous_mb()
    rows, _ = nearest(vectors, query, 20)
    assert rows[0] == len(vectors) // 2
    question = seconds(lambda: nearest(vectors, query, 20), turns)
    known = digests(path)
    opened = seconds(lambda: CheckedVectors(path, known).compare_all(), turns)
    grown, some = anonymous_mb() - before, vectors[:pairs]
    return {
        "search": question,
        "compared_with_sha256": opened,
        "memory_grown_mb": round(grown, 1),
        "compared_all_with_all": pairs,
        "duplicates": seconds(lambda: duplicates(some, 0.98), 1),
        "outliers": seconds(lambda: outliers(some, 20), 1),
    }


def by_graph(path: Path, vectors: Floats, drawn: Drawn, turns: int) -> dict[str, Any]:
    begun = time.perf_counter()
    with Peak() as peak:
        made = Neighbours.of(vectors)
    built_s = time.perf_counter() - begun
    own = recall(made, vectors)
    made.save(path)
    del made
    begun = time.perf_counter()
    graph = Neighbours.open(path)
    opened_s = time.perf_counter() - begun
    rows = np.linspace(0, len(vectors) - 1, ASKED, dtype=np.int64)
    others, across = drawn(ASKED), leaning(np.array(vectors[rows]), ACROSS, drawn.rng)
    first = seconds(lambda: graph.nearest(vectors, others[0], 20), 1)
    waiting = iter(np.concatenate([others, across]))
    return {
        "built_s": round(built_s, 1),
        "peak_memory_mb": round(peak.most_mb),
        "file_mb": round(path.stat().st_size / 1e6),
        "opened_s": round(opened_s, 3),
        "first_search_s": first["median_s"],
        "search": seconds(lambda: graph.nearest(vectors, next(waiting), 20), 2 * ASKED),
        "exact_search": seconds(lambda: nearest(vectors, others[0], 20), turns),
        "found": {
            "of_known": round(own, 4),
            "of_others": round(found(graph, vectors, others), 4),
            "of_words": round(found(graph, vectors, across), 4),
        },
    }


def found(graph: Neighbours, vectors: Floats, queries: Floats) -> float:
    """The share of the TOP nearest that the graph finds."""
    both = [np.intersect1d(nearest(vectors, query, TOP)[0], graph.nearest(vectors, query, TOP)[0]) for query in queries]
    return sum(map(len, both)) / (TOP * len(queries))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=10_000, help="vectors that are compared all with all")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--graph", choices=("random", "clustered"), help="build a graph over vectors of this kind")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    threads, drawn = os.environ.get("OMP_NUM_THREADS", "all"), Drawn(options.graph or "random", options.width)
    with tempfile.TemporaryDirectory() as folder, quietly(True):
        path = Path(folder, "vectors.npy")
        vectors = written(path, options.vectors, drawn)
        if options.graph is None:
            name, measured = f"threads {threads}", exact(path, vectors, options.pairs, options.turns)
        else:
            graph = Path(folder, "vectors.usearch")
            name, measured = f"graph {options.graph}", by_graph(graph, vectors, drawn, options.turns)
    measured |= {"vectors": options.vectors, "width": options.width, "threads": threads}
    measured |= {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    print(json.dumps(measured, indent=2))
    if options.out:
        others = json.loads(options.out.read_text()) if options.out.exists() else {}
        options.out.write_text(json.dumps({**others, name: measured}, indent=2) + "\n")


if __name__ == "__main__":
    main()
