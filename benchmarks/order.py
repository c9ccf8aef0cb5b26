"""What the order of samples costs a training process: memory, time to the first batch, time per batch.

    python benchmarks/order.py --out docs/results/order.json

Every row is a process of its own, with a loader over as many pictures as it says, which are made up (one picture, given
whenever one is asked for): nothing but the loader can grow with their number. `sorted` is version 1 of the order, and
what is done up to 2^24 pictures; `permuted` is version 2 beyond; `streams` are 64 of them, seen by rank 0 of 8.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROWS = (
    *(("sorted", num) for num in (10**6, 2**24, 10**8)),
    *(("permuted", num) for num in (2**24 + 1, 10**8, 10**9)),
    *(("streams", num) for num in (10**6, 10**8, 10**9)),
)
BATCH_SIZE, BATCHES, WORLD = 1024, 20, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--row", nargs=2, metavar=("WAY", "NUM"), help="this one alone, in this process")
    options = parser.parse_args()
    if options.row is not None:
        print(json.dumps(measured(options.row[0], int(options.row[1]))))
        return
    rows = []
    for way, num in ROWS:
        command = [sys.executable, __file__, "--row", way, str(num)]
        environment_ = os.environ | {"OMP_NUM_THREADS": "1"}
        rows.append(json.loads(subprocess.run(command, env=environment_, check=True, capture_output=True).stdout))
        print(rows[-1], flush=True)
    if options.out is not None:
        from vitreous.training.environment import environment

        about = {"batch_size": BATCH_SIZE, "ranks": WORLD, "batches": BATCHES}
        options.out.write_text(json.dumps({"environment": environment(), **about, "rows": rows}, indent=1) + "\n")


def measured(way: str, num: int) -> dict[str, Any]:
    import numpy as np

    from vitreous.data.augmentation import Augmentation
    from vitreous.data.base import Source
    from vitreous.data.images import Picture
    from vitreous.data.loader import TrainLoader
    from vitreous.data.order import OrderSettings
    from vitreous.data.targets import NoTargets
    from vitreous.data.transforms import Preprocessing

    class MadeUp(Source):
        name, classes = "made up", ("unlabelled",)

        def __init__(self, num: int) -> None:
            self.targets = NoTargets(num)
            self._picture = np.zeros((16, 16, 3), dtype=np.uint8)

        def read(self, index: int) -> Picture:
            return self._picture

        def where(self, index: int) -> str:
            return f"{index}"

    settings = {
        "sorted": OrderSettings(version=1),
        "permuted": OrderSettings(),
        "streams": OrderSettings(streams=64),
    }[way]
    view = Augmentation().build(Preprocessing(size_px=(16, 16)))

    def loader_of(num: int, order: OrderSettings) -> TrainLoader:
        return TrainLoader(MadeUp(num), [view], batch_size=BATCH_SIZE, seed=0, order=order, world=WORLD)

    list(loader_of(2 * BATCH_SIZE, OrderSettings()).batches(0, 2))  # torch's own first use
    before = peak_mb()
    began = time.perf_counter()
    loader = loader_of(num, settings)
    batches = loader.batches(0, BATCHES)
    next(batches)
    first_s = time.perf_counter() - began
    times, order_times = [], []
    for _ in range(BATCHES - 1):
        began = time.perf_counter()
        next(batches)
        times.append(time.perf_counter() - began)
    for step in range(BATCHES):
        began = time.perf_counter()
        loader.order(step)
        order_times.append(time.perf_counter() - began)
    return {
        "way": way,
        "pictures": num,
        "process_mb": round(before),
        "more_mb": round(peak_mb() - before, 1),  # at its highest, beyond that of a loader of 2,048 pictures
        "first_batch_s": round(first_s, 3),
        "batch_ms": round(1e3 * statistics.median(times), 2),  # of a rank's 128 pictures, cut and all
        "order_ms": round(1e3 * statistics.median(order_times), 3),  # of which which pictures, and their keys
    }


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
