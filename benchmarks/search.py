"""Exact search over a memory-mapped array of made-up vectors: how long a question takes, and how much memory.

    OMP_NUM_THREADS=1 python benchmarks/search.py --out docs/results/search.json
    OMP_NUM_THREADS=2 python benchmarks/search.py --out docs/results/search.json

The array is written first, so it lies in the system's cache where memory allows. The file keeps one result per number
of threads.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from vitreous.search.checked import CheckedVectors, digests
from vitreous.search.nearest import Floats, duplicates, nearest, outliers
from vitreous.terminal import quietly


def written(path: Path, num: int, width: int, block: int = 1 << 16) -> Floats:
    """(num, width) of length 1, memory-mapped for reading."""
    rng = np.random.default_rng(0)
    values = np.lib.format.open_memmap(path, "w+", np.float32, (num, width))
    for start in range(0, num, block):
        some = rng.standard_normal((min(block, num - start), width), np.float32)
        values[start : start + block] = some / np.linalg.norm(some, axis=1, keepdims=True)
    values.flush()
    del values
    return np.asarray(np.load(path, mmap_mode="r"))


def anonymous_mb() -> float:
    """Memory of our own: pages of a mapped file are the system's, which takes them back when it needs them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def seconds(work: Callable[[], object], turns: int) -> dict[str, float]:
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return {"median_s": round(statistics.median(times), 3), "least_s": round(min(times), 3), "turns": turns}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=10_000, help="vectors that are compared all with all")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, quietly(True):
        path = Path(folder, "vectors.npy")
        vectors = written(path, options.vectors, options.width)
        query, before = np.array(vectors[options.vectors // 2]), anonymous_mb()
        rows, _ = nearest(vectors, query, 20)
        assert rows[0] == options.vectors // 2
        question = seconds(lambda: nearest(vectors, query, 20), options.turns)
        known = digests(path)
        opened = seconds(lambda: CheckedVectors(path, known).compare_all(), options.turns)
        grown, some = anonymous_mb() - before, vectors[: options.pairs]
        found = {
            "vectors": options.vectors,
            "width": options.width,
            "search": question,
            "compared_with_sha256": opened,
            "memory_grown_mb": round(grown, 1),
            "compared_all_with_all": options.pairs,
            "duplicates": seconds(lambda: duplicates(some, 0.98), 1),
            "outliers": seconds(lambda: outliers(some, 20), 1),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
        }
    print(json.dumps(found, indent=2))
    if options.out:
        others = json.loads(options.out.read_text()) if options.out.exists() else {}
        threads = os.environ.get("OMP_NUM_THREADS", "all")
        options.out.write_text(json.dumps({**others, f"threads {threads}": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
