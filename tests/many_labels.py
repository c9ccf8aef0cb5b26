"""Pictures of several labels each: squares of three colours, which may overlap, or none; with a table of them."""

import csv
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = ("red", "green", "blue")


def squares(num: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(N, 24, 24, 3) uint8 and (N, 3) bool."""
    rng = np.random.default_rng(seed)
    labels = rng.random((num, 3)) < (0.6, 0.4, 0.3)
    pictures = rng.integers(0, 60, (num, 24, 24, 3), dtype=np.uint8)
    for picture, has in zip(pictures, labels, strict=True):
        for channel in np.flatnonzero(has):
            y, x = rng.integers(0, 16, 2)
            picture[y : y + 8, x : x + 8, channel] += 150
    return pictures, labels ^ (rng.random((num, 3)) < 0.08)  # nobody is always right


def write_squares(folder: Path, **parts: int) -> Path:
    """So many pictures in each part, in one folder, and a labels.csv with a column for each label."""
    folder.mkdir(parents=True)
    with (folder / "labels.csv").open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["path", "split", *COLOURS])
        for seed, (part, num) in enumerate(parts.items()):
            for number, (picture, has) in enumerate(zip(*squares(num, seed), strict=True)):
                Image.fromarray(picture).save(folder / f"{part}-{number}.png")
                table.writerow([f"{part}-{number}.png", part, *has.astype(int)])
    return folder / "labels.csv"
