"""COCO's average precision by three libraries, of the same made-up detections: the numbers, and the time they take.

    python benchmarks/average_precision.py --pictures 5000 --out docs/results/average_precision.json

pycocotools and faster-coco-eval are left out where they are not installed.
"""

import argparse
import contextlib
import importlib
import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.tasks import box_precision
from vitreous.tasks.box_precision import Floats, Found, Truth


def made_up(pictures: int, classes: int) -> tuple[Truth, Found]:
    """Seven objects per picture, each found roughly; and as many detections of nothing."""
    rng = np.random.default_rng(0)
    owner, label = np.repeat(np.arange(pictures), 7), rng.integers(classes, size=7 * pictures)
    corner, sides = rng.uniform(0, 400, (len(owner), 2)), rng.uniform(10, 200, (len(owner), 2))
    boxes = np.concatenate([corner, corner + sides], axis=1)
    moved = boxes + rng.normal(0, 0.1, boxes.shape) * np.tile(sides, 2)
    moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
    nothing = np.concatenate([corner[::-1], corner[::-1] + sides[::-1]], axis=1)
    scores = np.concatenate([rng.beta(4, 2, len(owner)), rng.beta(2, 4, len(owner))])
    found = Found(np.tile(owner, 2), np.tile(label, 2), np.concatenate([moved, nothing]), scores)
    return Truth(owner, label, boxes, np.zeros(len(owner), np.bool_)), found


def by_hotcoco(truth: Truth, found: Found, classes: int, pictures: int) -> float:
    measured = box_precision.evaluator(truth, found, classes, pictures)
    return box_precision.mean(box_precision.precisions(measured)[..., 0]) or 0.0


def by_name(module: str, evaluator: str, truth: Truth, found: Found, sizes: tuple[int, int]) -> float:
    """pycocotools, or what has its interface."""
    coco = importlib.import_module(f"{module}.coco" if module == "pycocotools" else f"{module}.core.coco")
    cocoeval = importlib.import_module(f"{module}.cocoeval" if module == "pycocotools" else module)

    def sides(boxes: Floats) -> list[list[float]]:
        return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1).tolist()

    classes, pictures = sizes
    objects = zip(truth.picture.tolist(), truth.classes.tolist(), sides(truth.boxes), strict=True)
    said = zip(found.picture.tolist(), found.classes.tolist(), sides(found.boxes), found.scores.tolist(), strict=True)
    with contextlib.redirect_stdout(io.StringIO()):
        known = coco.COCO()
        known.dataset = {
            "images": [{"id": number + 1} for number in range(pictures)],
            "categories": [{"id": number + 1, "name": str(number)} for number in range(classes)],
            "annotations": [
                {"id": row + 1, "image_id": owner + 1, "category_id": label + 1, "bbox": box, "iscrowd": 0}
                | {"area": box[2] * box[3]}
                for row, (owner, label, box) in enumerate(objects)
            ],
        }
        known.createIndex()
        results = [
            {"image_id": owner + 1, "category_id": label + 1, "bbox": box, "score": score}
            for owner, label, box, score in said
        ]
        measured = getattr(cocoeval, evaluator)(known, known.loadRes(results), "bbox")
        measured.evaluate()
        measured.accumulate()
        measured.summarize()
    return float(measured.stats[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=5000)
    parser.add_argument("--classes", type=int, default=80)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sizes = options.classes, options.pictures
    truth, found = made_up(options.pictures, options.classes)
    rows: list[dict[str, Any]] = []
    ways = {
        "hotcoco": lambda: by_hotcoco(truth, found, *sizes),
        "faster_coco_eval": lambda: by_name("faster_coco_eval", "COCOeval_faster", truth, found, sizes),
        "pycocotools": lambda: by_name("pycocotools", "COCOeval", truth, found, sizes),
    }
    for name, way in ways.items():
        began = time.perf_counter()
        try:
            value = way()
        except ImportError:
            continue
        rows.append({"library": name, "AP": value, "seconds": round(time.perf_counter() - began, 2)})
        print(rows[-1])
    if options.out:
        document = {"pictures": options.pictures, "detections": len(found.scores), "rows": rows}
        options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
