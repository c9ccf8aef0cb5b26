"""Pictures with something to see: blurred noise of several sizes, in colour, made from a number."""

import io

import numpy as np
from PIL import Image

from vitreous.data.base import Source
from vitreous.data.images import BadPicture
from vitreous.data.targets import ClassLabels, ManyLabels


def scene(number, size=(96, 80)):
    """(H, W, 3) uint8; `size` is width and height."""
    generator = np.random.default_rng(number)
    total = np.zeros((size[1], size[0], 3))
    for cells in (3, 6, 12, 24):
        noise = Image.fromarray(generator.integers(0, 256, (cells, cells, 3)).astype(np.uint8))
        total += np.asarray(noise.resize(size, Image.Resampling.BICUBIC)) / cells**0.5
    low, high = total.min(), total.max()
    return (20 + 180 * (total - low) / (high - low)).astype(np.uint8)


def encoded(picture, kind="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(picture).save(file, kind, **options)
    return file.getvalue()


def recompressed(picture, quality):
    return np.array(Image.open(io.BytesIO(encoded(picture, "JPEG", quality=quality))))


def resized(picture, factor):
    height, width = picture.shape[:2]
    return np.array(Image.fromarray(picture).resize((round(width * factor), round(height * factor))))


def brightened(picture, factor=1.0, levels=0):
    return np.clip(picture * factor + levels, 0, 255).round().astype(np.uint8)


class Pictures(Source):
    """Given pictures; None cannot be read."""

    def __init__(self, pictures, labels=None, classes=("a", "b"), name="made"):
        self.given, self.name, self.classes = list(pictures), name, classes
        labels = np.arange(len(self.given)) % 2 if labels is None else np.asarray(labels)
        self.targets = ClassLabels(labels) if labels.ndim == 1 else ManyLabels(labels)

    def read(self, index):
        if self.given[index] is None:
            raise BadPicture("cut short")
        return self.given[index]

    def where(self, index):
        return f"{self.name}/{index}"


def write_scenes(root, counts, first=0, size=(32, 32)):
    """One folder per class, of different brightness, so that classes can be learned."""
    number = first
    for place, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            picture = brightened(scene(number, size), 0.5, 110 * place / max(1, len(counts) - 1))
            (root / name / f"{index:04}.png").write_bytes(encoded(picture))
            number += 1
    return root
