"""Many pictures: rows per second by this process and by a local Ray cluster, and memory against their number.

    python benchmarks/bulk.py --out docs/results/bulk.json

Each run is `vitreous embed` with an encoder that ships, in a process of its own, on JPEGs of 256 px that are made
first; the engines take turns. `rows_per_s` is from the first finished part to the last, `seconds` the whole command
with its start. Of plans: the planner alone, on so many paths (of files that are not there), with what the memory of its
process grew by.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

PLAN = """
import resource, sys, time
from pathlib import Path
from vitreous.bulk.output import Output
from vitreous.bulk.planner import plan
lines = (b"pictures/%03d/%09d.jpg\\n" % (number % 1000, number) for number in range(int(sys.argv[1])))
before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
planned = Output.planned(plan(["-"], 4096, Path(), lines))
seconds = time.perf_counter() - begin
print(len(planned), seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def make(folder: Path, num: int) -> None:
    """Clouds of colour, which compress as photographs do."""
    generator = np.random.default_rng(0)
    folder.mkdir()
    for number in range(num):
        small = Image.fromarray(generator.integers(0, 256, (48, 48, 3), dtype=np.uint8))
        small.resize((256, 256), Image.Resampling.BICUBIC).save(folder / f"{number:06}.jpg", quality=90)


def embed(model: str, pictures: Path, out: Path, *options: str, threads: int = 1) -> dict[str, float]:
    words = ["embed", model, str(pictures), "--out", str(out), "--device", "cpu", "--quiet", *options]
    code = "import resource, sys; from vitreous.cli import main; main(sys.argv[1:]); "
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    begin = time.perf_counter()
    ended = subprocess.run([sys.executable, "-c", code, *words], check=True, stdout=subprocess.PIPE, env=environment)
    seconds = time.perf_counter() - begin
    parts = sorted((out / "rows").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    rows = [int(path.name.split("-")[3]) for path in parts]
    apart_s = (parts[-1].stat().st_mtime_ns - parts[0].stat().st_mtime_ns) / 1e9
    peak_mb = int(ended.stdout.split()[-1]) / 1024  # of this process alone: Ray's workers are others
    return {"seconds": seconds, "rows_per_s": sum(rows[1:]) / max(apart_s, 1e-9), "peak_mb": peak_mb}


def planned(num: int) -> dict[str, float]:
    ended = subprocess.run([sys.executable, "-c", PLAN, str(num)], check=True, stdout=subprocess.PIPE)
    parts, seconds, grown_kb = ended.stdout.split()
    return {"paths": num, "parts": int(parts), "seconds": float(seconds), "grown_mb": int(grown_kb) / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", default="vitreous-xs")
    parser.add_argument("--pictures", type=int, default=4096)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    cores = os.cpu_count() or 1
    engines = {
        "local, 1 thread": (("--engine", "local"), 1),
        f"local, {cores} threads": (("--engine", "local"), cores),
        f"ray, {cores} workers of 1 thread": (("--engine", "ray", "--workers", str(cores)), 1),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder / "pictures", options.pictures)
        make(folder / "few", options.pictures // 4)
        for turn in range(options.turns):
            for engine, (words, threads) in engines.items():
                out = folder / f"{engine}-{turn}"
                run = embed(options.model, folder / "pictures", out, "--part", "32", *words, threads=threads)
                found[engine].append(run)
                print(engine, found[engine][-1], file=sys.stderr)
        few = embed(options.model, folder / "few", folder / "out-few", "--part", "32")
    result: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/bulk.py", *sys.argv[1:]]),
        "machine": {
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[1], 1),  # above the number of cores: others were at work
            "python": platform.python_version(),
        },
        "model": options.model,
        "pictures": options.pictures,
        "engines": {
            engine: {key: round(statistics.median(run[key] for run in runs), 1) for key in runs[0]}
            | {"runs": len(runs)}
            for engine, runs in found.items()
        },
        "memory": {
            f"{options.pictures // 4} pictures, peak_mb": round(few["peak_mb"]),
            f"{options.pictures} pictures, peak_mb": round(next(iter(found.values()))[0]["peak_mb"]),
        },
        "plans": [planned(num) for num in (100_000, 1_000_000)],
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
