"""Pictures with masks that a tiny model learns in seconds: bright boxes and dark boxes on a grey ground."""

import json

import numpy as np
from PIL import Image

CLASSES = ("ground", "bright", "dark")


def box_picture(number, size=(32, 40)):
    """A picture (H, W, 3) and its mask (H, W); 255 is ignored: the first row of every third picture."""
    draws = np.random.default_rng(number)
    picture = draws.integers(110, 145, (*size, 3)).astype(np.uint8)
    mask = np.zeros(size, np.uint8)
    for place in range(2):
        top, left = (int(draws.integers(0, side // 2)) for side in size)
        tall, wide = (int(draws.integers(side // 4, side // 2)) for side in size)
        kind = (number + place) % 2
        picture[top : top + tall, left : left + wide] = (240, 15)[kind]
        mask[top : top + tall, left : left + wide] = 1 + kind
    if number % 3 == 0:
        mask[0] = 255
    return picture, mask


def write_boxes(folder, num, size=(32, 40)):
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(num):
        picture, mask = box_picture(number, size)
        Image.fromarray(picture).save(folder / "images" / f"{number:03}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{number:03}.png")
    (folder / "classes.json").write_text(json.dumps(CLASSES))
    return folder
