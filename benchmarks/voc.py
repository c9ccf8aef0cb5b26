"""Pascal VOC within some minutes: train on VOC2012 trainval, choose nothing on VOC2007 test, and read it once.

    python tools/pack_boxes.py voc_boxes/train.parquet --px 320 VOC2012 train val
    python tools/pack_boxes.py voc_boxes/test.parquet --px 320 --names VOC2007/ImageSets/Main/test.txt VOC2007 test
    python benchmarks/voc.py voc_boxes --minutes 12 --out docs/results/voc.json

The minutes are those of training, its validations included; its length is aimed at by the pace that it has. Settings of
the recipe `voc_deformable` can be given, such as --optimizer.lr 0.0003. Beside COCO's numbers stands VOC2007's own: the
mean over classes of the precision at 11 recalls, where an overlap of more than one half finds an object.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from vitreous import settings
from vitreous.cli import dotted, one_line_errors
from vitreous.data.splits import Splits
from vitreous.fitting.budget import FIGURES_S, Budget, measured
from vitreous.fitting.course import Course, paced
from vitreous.jobs import objects
from vitreous.jobs.train import train
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.recipes import find_recipe
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.box_precision import Floats, Found, Truth, box_overlaps
from vitreous.training.devices import World
from vitreous.training.environment import environment
from vitreous.weights.trained import Trained

ENOUGH = 0.5
RECALLS = np.arange(11) / 10


def voc2007(truth: Truth, found: Found, num_classes: int) -> Floats:
    """(K,) average precisions by the rules of that year's challenge. Each detection is held against the object that it
    overlaps most; the surest finds it, all others are wrong; difficult ones do not count either way."""
    return np.array([_of_class(truth, found, number) for number in range(num_classes)])


def _of_class(truth: Truth, found: Found, number: int) -> float:
    known, said = np.flatnonzero(truth.classes == number), np.flatnonzero(found.classes == number)
    of_picture: dict[int, list[int]] = {}
    for row in known:
        of_picture.setdefault(int(truth.picture[row]), []).append(int(row))
    taken: set[int] = set()
    outcomes = []  # of detections that count, the surest first: whether they are right
    for row in said[np.argsort(-found.scores[said], kind="stable")]:
        rows = of_picture.get(int(found.picture[row]), [])
        shared = box_overlaps(found.boxes[[row]], truth.boxes[rows])[0] if rows else np.zeros(1)
        best = int(shared.argmax())
        if shared[best] <= ENOUGH:
            outcomes.append(False)
        elif not truth.crowd[rows[best]]:
            outcomes.append(rows[best] not in taken)
            taken.add(rows[best])
    right = np.cumsum(outcomes)
    recall, precision = right / max(1, (~truth.crowd[known]).sum()), right / np.arange(1, len(right) + 1)
    return float(np.mean([precision[recall >= least].max(initial=0.0) for least in RECALLS]))


def trained(recipe: Recipe, splits: Splits, minutes: float, run: Path, *, read_test: bool) -> dict[str, Any]:
    """As many steps as fit into the minutes by the pace that they have."""
    pace = measured(recipe, splits, min(10.0, 6 * minutes))
    recipe = paced(recipe, max(2, int((60 * minutes - pace.start_s) / pace.step_s)))
    began, per_epoch = time.monotonic(), max(1, len(splits.train) // recipe.training.batch_size)

    def clock() -> float:
        return time.monotonic() - began

    course = Course(
        recipe,
        Budget(total_s=60 * minutes, before_s=0.0, after_s=FIGURES_S, train_s=60 * minutes, pace=pace),
        clock=clock,
        cpu_clock=clock,
        record=lambda changed: settings.save(changed, run / "recipe.json"),
        steps_per_epoch=per_epoch,
    )
    results = train(recipe, run, read_test=read_test, open_data=lambda _: splits, course=course)
    return results | {"epochs": results["steps"] / per_epoch, "pace": vars(pace), "all_s": clock()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--validation", action="store_true", help="for choosing: the test part stays unread")
    parser.add_argument("--run", type=Path, default=Path("runs/voc"))
    parser.add_argument("--out", type=Path, required=True)
    options, rest = parser.parse_known_args()
    recipe = find_recipe("voc_deformable", {"data": options.data, **dotted(rest)})
    splits = recipe.data.build()
    assert splits.test is not None
    results = trained(recipe, splits, options.minutes, options.run, read_test=not options.validation)
    found = {"results": results, "minutes": options.minutes, "environment": environment()}
    options.out.write_text(json.dumps(found, indent=1, default=str))
    print(json.dumps({part: results[part] for part in ("val", "test") if part in results}))
    if options.validation:
        return
    # As it predicts, picture by picture, once more: the numbers above are of batches.
    model = Trained.load(options.run)
    seen = objects.measured(TorchPredictor(model, World.join(recipe.training.device).device), splits.test)
    per_class = voc2007(seen.truth, seen.found, len(model.card.classes))
    found["voc2007"] = {"mAP": float(per_class.mean()), **dict(zip(model.card.classes, per_class, strict=True))}
    options.out.write_text(json.dumps(found, indent=1, default=str))
    print(json.dumps({"VOC2007 mAP": found["voc2007"]["mAP"]}))


if __name__ == "__main__":
    with one_line_errors():
        main()
