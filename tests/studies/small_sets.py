"""Tiny pictures and tiny settings, so that a real training run takes a fraction of a second."""

import numpy as np
from PIL import Image

SIDE = 14
SMALL = {
    "picture_px": SIDE,
    "patch": 7,
    "steps": 2,
    "batch_size": 8,
    "seeds": 1,
}
MOVED = {"transfer": (), "transfer_steps": 2, "transfer_examples": 16}


def write_set(root, seed=0, gap=100):
    """Noise of two tints, `gap` levels apart: train and test folders, with two classes each."""
    generator = np.random.default_rng(seed)
    for split, number in (("train", 40), ("test", 12)):
        for label, name in enumerate(("dark", "light")):
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(number // 2):
                pixels = generator.integers(0, 128, (SIDE, SIDE, 3)) + gap * label
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index}.png")
    return str(root)
