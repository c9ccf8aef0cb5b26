"""CIFAR-10 from scratch: several recipes and seeds, one after the other in one process.

    python benchmarks/cifar10.py --recipes cifar10_vit cifar10_hybrid --seeds 3 --out docs/results/cifar10.json

Reported runs train on all 50,000 training pictures and read the test set once, at the end. With --choose, a tenth of
train is held out and scored instead, and the test set stays unread: that is how every setting here was chosen.
Further settings go to every recipe: --optimizer.lr 0.002. With --finetune-px 48 each run is fine-tuned at that size.
"""

import argparse
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitreous.cli import dotted, one_line_errors
from vitreous.jobs.data import OpenData
from vitreous.jobs.train import train
from vitreous.models.flops import training_flops
from vitreous.models.shapes import shapes_only
from vitreous.recipes import Recipe, find_recipe
from vitreous.recipes.cifar10 import cifar10_finetune
from vitreous.studies.grid import DecodedOnce
from vitreous.training.environment import environment


def run(recipe: Recipe, folder: Path, choose: bool, open_data: OpenData) -> dict[str, Any]:
    recipe = replace(recipe, data=replace(recipe.data, val_fraction=0.1 if choose else 0.0))
    results = train(recipe, folder, read_test=not choose, open_data=open_data)
    with shapes_only():
        per_picture = training_flops(recipe.model.build())
    pictures = results["steps"] * recipe.training.batch_size
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return results | {
        "seed": recipe.training.seed,
        "epochs": recipe.training.epochs,
        "picture_px": recipe.model.picture_px,
        "training_flops": per_picture * pictures,
        "pictures_s": round(pictures / results["train_s"]),
        "curve": [[line["epoch"], line["loss"]] for line in lines if "loss" in line][:: max(1, len(lines) // 40)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--choose", action="store_true", help="score on held-out training pictures; leave test unread")
    parser.add_argument("--finetune-px", type=int)
    parser.add_argument("--keep", type=Path, help="a folder where each run leaves its model")
    parser.add_argument("--out", type=Path, required=True)
    options, rest = parser.parse_known_args()
    torch.set_float32_matmul_precision("high")
    open_data = DecodedOnce()
    rows: list[dict[str, Any]] = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name in options.recipes:
            recipe = find_recipe(name, dotted(rest) | {"training.seed": str(seed)})
            with tempfile.TemporaryDirectory() as folder:
                rows.append(run(recipe, Path(folder) / "run", options.choose, open_data))
                report(rows, options.out)
                if options.keep:
                    shutil.copytree(Path(folder) / "run" / "model", options.keep / f"{name}_{seed}")
                if options.finetune_px:
                    tuned = cifar10_finetune(str(Path(folder) / "run"), options.finetune_px)
                    tuned = replace(tuned, data=recipe.data, training=replace(tuned.training, seed=seed))
                    rows.append(
                        run(tuned, Path(folder) / "finetune", options.choose, open_data) | {"started_from": name}
                    )
                    report(rows, options.out)


def report(rows: list[dict[str, Any]], out: Path) -> None:
    last = rows[-1]
    part = last.get("test") or last["val"]
    print(
        f"{last['recipe']} seed {last['seed']}: {part['accuracy']:.2%}  log-loss {part['log_loss']:.4f}  "
        f"{last['parameters']:,} parameters  {last['train_s']:.0f} s  {last['pictures_s']:,} pictures/s",
        flush=True,
    )
    out.write_text(json.dumps({"environment": environment(), "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
