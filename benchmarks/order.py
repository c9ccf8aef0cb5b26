"""What the order of samples costs a training process: memory, time to the first batch, time per batch.

    python benchmarks/order.py --out docs/results/order.json

Every row is a process of its own, with a loader over as many pictures as it says, which are made up (one picture, given
whenever one is asked for): nothing but the loader can grow with their number. `sorted` is version 1 of the order, and
what is done up to 2^24 pictures; `permuted` is version 2 beyond; `streams` are 64 of them, seen by rank 0 of 8.
Opening shards is measured apart, as it is not flat: every process reads the headers of tar files, and the labels.
"""

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROWS = (
    *(("sorted", num) for num in (10**6, 2**24, 10**8)),
    *(("permuted", num) for num in (2**24 + 1, 10**8, 10**9)),
    *(("streams", num) for num in (10**6, 10**8, 10**9)),
)
BATCH_SIZE, BATCHES, WORLD = 1024, 20, 8
OPENED = {"tar": 200_000, "parquet": 1_000_000}  # pictures in a shard that is opened


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--row", nargs=2, metavar=("WAY", "NUM"), help="this one alone, in this process")
    options = parser.parse_args()
    if options.row is not None:
        way, num = options.row[0], int(options.row[1])
        print(json.dumps(opened(way, num) if way in OPENED else measured(way, num)))
        return
    rows = [in_a_process(way, num) for way, num in ROWS]
    shards = [in_a_process(way, num) for way, num in OPENED.items()]
    if options.out is not None:
        from vitreous.training.environment import environment

        about = {"batch_size": BATCH_SIZE, "ranks": WORLD, "batches": BATCHES}
        options.out.write_text(
            json.dumps({"environment": environment(), **about, "rows": rows, "opening": shards}, indent=1) + "\n"
        )


def in_a_process(way: str, num: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--row", way, str(num)]
    ended = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, capture_output=True)
    found: dict[str, Any] = json.loads(ended.stdout)
    print(found, flush=True)
    return found


def opened(kind: str, num: int) -> dict[str, Any]:
    """A shard of pictures of 512 bytes, which are not read: its index, in time and memory."""
    from vitreous.data.sources import open_sources

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"all.{kind}"
        writer = multiprocessing.get_context("spawn").Process(target=write, args=(path, kind, num))  # in its own memory
        writer.start()
        writer.join()
        before, began = anonymous_mb(), time.perf_counter()
        with ThreadPoolExecutor(1) as watcher:
            is_open = threading.Event()
            highest = watcher.submit(highest_mb, is_open)
            source = open_sources(str(path))["all"]
            took_s = time.perf_counter() - began
            is_open.set()
        assert len(source) == num
    return {
        "way": f"open {kind}",
        "pictures": num,
        "us_per_picture": round(1e6 * took_s / num, 1),
        "peak_bytes_per_picture": round((highest.result() - before) * 2**20 / num),
    }


def write(path: Path, kind: str, num: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if kind == "parquet":
        pictures = pa.array([{"bytes": bytes(512), "path": None}] * num)
        labels = pa.array([number % 1000 for number in range(num)])
        pq.write_table(pa.table({"image": pictures, "label": labels}), path, row_group_size=100)
        return
    with path.open("wb") as file:
        for number in range(num):
            member = tarfile.TarInfo(f"{number % 1000:04}/{number:09}.jpg")
            member.size = 512
            file.write(member.tobuf(tarfile.USTAR_FORMAT) + bytes(512))
        file.write(bytes(1024))


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
        "batch_ms": round(1e3 * min(times), 2),  # the fastest, of a rank's 128 pictures, cut and all
        "order_ms": round(1e3 * min(order_times), 3),  # of which which pictures, and their keys
    }


def highest_mb(is_over: threading.Event) -> float:
    highest = 0.0
    while not is_over.wait(0.002):
        highest = max(highest, anonymous_mb())
    return max(highest, anonymous_mb())


def anonymous_mb() -> float:
    """Of this process, now, without the pages of files, which the system takes back when it needs them."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
