"""Tiny data sets for the tests of sources: every picture has one colour, and so can be told from all others."""

import io

import numpy as np
from PIL import Image


def colour(number):
    return (number % 256, (7 * number) % 256, 255 - number % 256)


def png(number, size=(6, 5)):
    file = io.BytesIO()
    Image.new("RGB", size, colour(number)).save(file, "PNG")
    return file.getvalue()


def is_picture(pixels, number):
    return bool((pixels == np.array(colour(number), np.uint8)).all())


def write_folder(root, counts, first=0):
    """One sub-folder a class, with so many pictures each; numbered in sorted order."""
    number = first
    for name in sorted(counts):
        (root / name).mkdir(parents=True, exist_ok=True)
        for index in range(counts[name]):
            (root / name / f"{index:04}.png").write_bytes(png(number))
            number += 1
    return root
