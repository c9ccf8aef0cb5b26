"""`fit` from the encoder that ships, from random weights, and logistic regression on pixels, set by set.

    python benchmarks/fit.py --out runs/bench-fit --minutes 4            # every set and start that has no row yet
    python benchmarks/fit.py --out runs/bench-fit --only cifar10-5000    # one set
    python benchmarks/fit.py --out runs/bench-fit --table                # what is there, as a table

Every row is a process of its own, as a user would start it, and one JSON file (rows/SET-START.json); what is there is
not run again. Sets are found in the folder that VITREOUS_DATA names; few-picture sets
take so many training pictures of every class and keep all test pictures.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from vitreous.storage import atomic
from vitreous.terminal import table

PER_CLASS = (5, 20, 100)
STARTS = {"shipped": (), "scratch": ("--from", "none")}


def sets() -> dict[str, tuple[str, ...]]:
    """Name -> data and settings of `fit`."""
    few = {
        f"{name}-{num}-per-class": (where, "--data.train_limit", str(num * classes))
        for name, where, classes in (("imagenette", "imagenette224", 10), ("cifar10", "cifar10", 10))
        for num in PER_CLASS
    }
    return {
        "imagenette": ("imagenette224", "--data.test_split", "val"),
        "pets": ("oxford_pets",),
        "cifar10-5000": ("cifar10", "--data.train_limit", "5000"),
        "fashion": ("fashion",),
        "fashion-5000": ("fashion", "--data.train_limit", "5000"),
        "rendered-count": ("rendered:count",),
        **few,
    }


def row(name: str, start: str, settings: tuple[str, ...], out: Path, minutes: float) -> dict[str, object]:
    run = out / "runs" / f"{name}-{start}"
    command = [sys.executable, "-m", "vitreous", "fit", *settings, *STARTS[start]]
    command += ["--minutes", str(minutes), "--out", str(run)]
    began, load_before = time.monotonic(), os.getloadavg()[0]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = round(time.monotonic() - began, 1)
    if ended.returncode:
        return {"set": name, "start": start, "error": ended.stderr.strip().splitlines()[-1:], "seconds": seconds}
    evaluation, account, begun = (
        json.loads((run / f"{part}.json").read_text()) for part in ("evaluation", "predictions/account", "plan")
    )
    results = json.loads((run / "results.json").read_text())
    return {
        "set": name,
        "start": start,
        "minutes": minutes,
        "seconds": seconds,
        "load": [round(load_before, 1), round(os.getloadavg()[0], 1)],  # before and after, of one minute
        "test": evaluation["scores"]["top1"],
        "pixels": account["baseline"]["score"],
        "first": begun["first_models"][-1],
        "candidates": begun["candidates"],
        **{part: results[part] for part in ("steps", "test_scored", "test_pictures")},
    }


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def as_table(folder: Path) -> str:
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    rows = []
    for one in found:
        if "error" in one:
            rows.append((one["set"], one["start"], "failed", *[""] * 5, str(one["error"])))
            continue
        kept = next(candidate["name"] for candidate in one["candidates"] if candidate["is_kept"])
        first = one["first"]
        rows.append(
            (
                one["set"],
                one["start"],
                percent(one["test"]["value"]),
                percent(one["pixels"]),
                percent(first["val_score"]),
                f"{first['ready_s']:.0f} s",
                f"{first['start']} {first['picture_px'][0]} px",
                f"{one['seconds']:.0f} s of {60 * one['minutes']:.0f}",
                kept,
            )
        )
    header = ("set", "fit", "test", "pixels", "first (val)", "after", "from", "time", "kept")
    return table(rows, header)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-fit"))
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--only", nargs="*", help="these sets")
    parser.add_argument("--starts", nargs="*", choices=list(STARTS), default=list(STARTS))
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    rows = options.out / "rows"
    rows.mkdir(parents=True, exist_ok=True)
    for name, settings in {} if options.table else sets().items():
        for start in options.starts:
            path = rows / f"{name}-{start}.json"
            if path.is_file() or (options.only and name not in options.only):
                continue
            print(f"{name}, {start} ...", flush=True)
            atomic.write_json(row(name, start, settings, options.out, options.minutes), path)
    print(as_table(rows))


if __name__ == "__main__":
    main()
