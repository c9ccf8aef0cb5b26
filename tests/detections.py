"""Made-up objects and detections of them, good and bad, for the tests of what scores and shows them."""

import numpy as np

from vitreous.tasks.box_precision import Found, Truth


def made_up(pictures=40, classes=3, seed=0, crowd=0.1):
    """About five objects per picture (none in the first), found roughly, twice, as another class, or not at all; and
    detections of nothing."""
    rng = np.random.default_rng(seed)
    truth, found = [], []
    for picture in range(1, pictures):
        for _ in range(rng.integers(1, 9)):
            corner, sides = rng.uniform(0, 400, 2), rng.choice([12, 40, 150]) * rng.uniform(0.7, 1.3, 2)
            box = np.concatenate([corner, corner + sides])
            label = int(rng.integers(classes - 1))  # the last class has no object
            truth.append((picture, label, box, rng.random() < crowd))
            for _ in range(rng.integers(0, 3)):
                moved = box + rng.normal(0, 0.08, 4) * np.tile(sides, 2)
                said = label if rng.random() < 0.8 else int(rng.integers(classes))
                found.append((picture, said, moved, rng.uniform(0.2, 1)))
    for _ in range(3 * pictures):
        corner = rng.uniform(0, 400, 2)
        box = np.concatenate([corner, corner + rng.uniform(5, 100, 2)])
        found.append((int(rng.integers(pictures)), int(rng.integers(classes)), box, rng.uniform(0, 0.6)))
    return Truth(*columns(truth)), Found(*columns(found))


def columns(rows):
    picture, classes, boxes, last = zip(*rows, strict=True)
    return np.array(picture), np.array(classes), np.array(boxes), np.array(last)
