"""From the start of `vitreous predict` to its first prediction, in seconds.

    python benchmarks/start.py --out docs/results/start.json

A process per measurement, as a user would start it, in turn with one that only imports torch, which no program that
computes with it can beat. Warm: all files are in memory. Cold: before each process the system is asked to forget the
files of this Python environment (posix_fadvise), of the package and of the model. The model is a ViT-S/16 with random
weights, or the one that is named.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import vitreous
from vitreous.cli import one_line_errors
from vitreous.training.environment import environment


def forget(folder: Path) -> None:
    """Its files leave the memory, as far as nobody else uses them."""
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def seconds(command: list[str]) -> tuple[float, float]:
    """Wall and processor time of a process."""
    before, began = os.times(), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    wall, after = time.perf_counter() - began, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, used


def measure(model: str, picture: Path, rounds: int) -> dict[str, Any]:
    commands = {
        "vitreous predict": [sys.executable, "-m", "vitreous", "predict", model, str(picture)],
        "import torch": [sys.executable, "-c", "import torch"],
    }
    folders = [Path(torch.__file__).parents[1], Path(vitreous.__file__).parent, Path(model)]
    found: dict[str, Any] = {}
    for cache in ("warm", "cold"):
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for number in range(rounds + 1):
            for name, command in commands.items():
                for folder in folders if cache == "cold" else ():
                    forget(folder)
                one = seconds(command)
                if number:
                    taken[name].append(one)
        for name, pairs in taken.items():
            wall, used = (round(statistics.median(one), 2) for one in zip(*pairs, strict=True))
            found[f"{name}, {cache}"] = {"wall_s": wall, "processor_s": used}
            print(f"{name:18} {cache:5} {wall:6.2f} s   (processor {used:.2f} s)", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a run or weights (default: a ViT-S/16 with random weights)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        picture, model = Path(folder) / "photo.jpg", options.model or f"{folder}/model"
        pixels = np.random.default_rng(0).integers(0, 256, (375, 500, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(picture)
        if options.model is None:
            from export import random_model

            random_model("vit_s16").save(Path(model))
        found = measure(model, picture, options.rounds)
    if options.out:
        about = {"environment": environment(), "load_before": round(load, 1), "rounds": options.rounds}
        options.out.write_text(json.dumps(about | found, indent=2) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
