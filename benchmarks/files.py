"""From JPEG files to cropped pictures on one core: ours against torchvision's usual pipeline on Pillow.

    VITREOUS_DATA=... python benchmarks/files.py --out docs/results/files.json

Photographs of Imagenette, brought to 500 x 375 and stored at quality 90, are decoded, cropped at random, resized to
224 px and flipped. Ours is what a reader process does (`read_picture`, `View.cut_pictures`) and what the loader does
with the batch (another layout, flips). Theirs is RandomResizedCrop, flip and ToTensor, as in torchvision's reference
training, and once more without ToTensor, since ours are uint8 too. Before anything is timed both are given the same
boxes and flips, and have to give the same pixels but for two levels. One thread each; the processor's own time, in
turn. The process keeps the memory that it frees, as readers do; theirs gains from that, too.
"""

import argparse
import io
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitreous import keys as K
from vitreous import platforms
from vitreous.cli import one_line_errors
from vitreous.data.augmentation import Augmentation, CropSettings
from vitreous.data.images import read_picture
from vitreous.data.readers import room_for
from vitreous.data.resample import draw_boxes, draw_crops, flip
from vitreous.data.sources import DataSettings
from vitreous.data.transforms import Preprocessing
from vitreous.training.environment import environment
from vitreous.weights.peers import imported

torchvision = imported("torchvision", "torchvision.transforms")
WIDTH, HEIGHT, SIDE, QUALITY = 500, 375, 224, 90
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
BATCH = 16  # as readers take them


def photographs(num: int) -> list[bytes]:
    source = DataSettings(where="imagenette224").build().train
    return [as_file(source.read(place)) for place in range(num)]


def as_file(pixels: NDArray[np.uint8]) -> bytes:
    """As a JPEG of the common size."""
    stream = io.BytesIO()
    Image.fromarray(pixels).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(stream, "jpeg", quality=QUALITY)
    return stream.getvalue()


class Ours:
    def __init__(self, num: int) -> None:
        crop = CropSettings(method="random-resized", scale=SCALE, ratio=RATIO)
        self.view = Augmentation(crop=crop, flip=0.5).build(Preprocessing(size_px=(SIDE, SIDE)))
        self.keys = K.sample_keys(0, 0, torch.arange(num))
        self.flips = K.uniform(self.keys, "benchmark.flip", 1)[:, 0] < 0.5
        sides = (torch.full((num,), side) for side in (HEIGHT, WIDTH))
        self.boxes = draw_boxes(draw_crops(self.keys, f"{self.view.crop_name}.crop"), *sides, SCALE, RATIO)

    def __call__(self, data: list[bytes]) -> torch.Tensor:
        """(B, 3, h, w) uint8."""
        out = room_for(len(data), self.view.preprocessing)
        for start in range(0, len(data), BATCH):
            part = slice(start, start + BATCH)
            self.view.cut_pictures([read_picture(one) for one in data[part]], self.keys[part], out[part])
        return flip(out.contiguous(), self.flips)


def theirs(to_tensor: Callable[[Any], Any]) -> Callable[[list[bytes]], list[Any]]:
    crop, mirror = torchvision.RandomResizedCrop(SIDE, SCALE, RATIO), torchvision.RandomHorizontalFlip()
    pipeline = torchvision.Compose([crop, mirror, to_tensor])
    return lambda data: [pipeline(Image.open(io.BytesIO(one)).convert("RGB")) for one in data]


def check(data: list[bytes], ours: Ours) -> dict[str, float]:
    """With our boxes and flips, their operations give our pixels."""
    by_hand, found, largest, total = torchvision.functional, ours(data), 0, 0.0
    for one, cut, box, flipped in zip(data, found, ours.boxes.tolist(), ours.flips.tolist(), strict=True):
        expected = by_hand.resized_crop(Image.open(io.BytesIO(one)).convert("RGB"), *box, [SIDE, SIDE])
        pixels = by_hand.pil_to_tensor(by_hand.hflip(expected) if flipped else expected)
        difference = (pixels.int() - cut.int()).abs()
        largest, total = max(largest, int(difference.max())), total + float(difference.float().mean())
    assert largest <= 2, f"pixels differ by {largest} levels"
    return {"largest_difference_levels": largest, "mean_difference_levels": round(total / len(data), 5)}


def measure(rounds: int, num: int) -> dict[str, Any]:
    data, ours = photographs(num), Ours(num)
    same = check(data, ours)
    runs: dict[str, Callable[[list[bytes]], Any]] = {
        "torchvision on Pillow": theirs(torchvision.ToTensor()),
        "the same, uint8": theirs(torchvision.PILToTensor()),
        "ours": ours,
        "ours, decoding alone": lambda some: [read_picture(one) for one in some],
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            start = time.process_time()
            run(data)
            if number:
                seconds[name].append((time.process_time() - start) / num)
    base = seconds["torchvision on Pillow"]
    result = {
        name: {
            "pictures_per_s": round(1 / statistics.median(found)),
            "times": round(statistics.median(b / one for b, one in zip(base, found, strict=True)), 2),
        }
        for name, found in seconds.items()
    }
    about = {"pictures": num, "px": [WIDTH, HEIGHT], "kilobytes": round(np.mean([len(one) for one in data]) / 1e3, 1)}
    return about | {"rounds": rounds, "clock": "processor time", **same, "pipelines": result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pictures", type=int, default=64)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    platforms.keep_freed_memory()
    result = measure(options.rounds, options.pictures)
    for name, found in result["pipelines"].items():
        print(f"{name:24} {found['pictures_per_s']:6,} pictures/s   {found['times']:.2f} x")
    print(f"largest difference: {result['largest_difference_levels']} of 255 levels")
    if options.out:
        options.out.write_text(json.dumps({"environment": environment(), **result}, indent=2) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
