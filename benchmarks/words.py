"""What models of pictures and words learn, run by run, as docs/RESULTS.md tells it.

    python benchmarks/words.py --rates 5e-4 1e-3 --at_once --data flickr8k --out words.json

`rendered` is rendered_clip, measured on what it has seen and on colours and shapes that never met; the others learn
Flickr8k (`--data`: its folder) from scratch, from vitreous-s, by SigLIP's loss, and with vitreous-s locked. What
learned from Flickr8k is measured on CIFAR-10 by the names of its classes too, where VITREOUS_DATA has it. Needs the
extra `words` (ftfy is pure Python: `pip install --no-deps --target carried ftfy wcwidth`, and carried on PYTHONPATH).
A run that is there already is only measured. With --rates each run is trained at every one of these learning rates, and
the one that is best on validation is measured on the test pictures, alone. --at_once gives every run a process of its
own, all on one GPU: models this small leave most of it idle, and so they compile beside each other; `train_s` is then
no measure of speed. --steps tries it out on any machine, with small pictures.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from vitreous.cli import one_line_errors
from vitreous.data.sources import DataSettings
from vitreous.data.splits import Splits
from vitreous.errors import UserError
from vitreous.jobs.evaluate import evaluate
from vitreous.jobs.train import train
from vitreous.prediction.naming import TEMPLATES
from vitreous.recipes.recipe import Recipe
from vitreous.recipes.words import flickr8k_clip, flickr8k_lit, flickr8k_siglip, rendered_clip
from vitreous.training.environment import environment

RUNS = {
    "rendered": lambda data: rendered_clip(),
    "scratch": lambda data: flickr8k_clip(start=None, data=data, epochs=100),
    "clip": lambda data: flickr8k_clip(data=data),
    "siglip": lambda data: flickr8k_siglip(data=data),
    "lit": lambda data: flickr8k_lit(data=data),
}


TRIED_PX = 32


@lru_cache(maxsize=1)
def opened(data: DataSettings) -> Splits:
    """Pictures are decoded once, for all runs on them and for what is measured at their end."""
    return data.build()


def measured(name: str, recipe: Recipe, folder: Path, rates: Sequence[float]) -> dict[str, Any]:
    folders = {rate: folder / f"{rate:g}" for rate in rates or (recipe.optimizer.lr,)}
    runs = {rate: train(at_rate(recipe, rate), path, False, opened) for rate, path in folders.items()}
    scores = {rate: one["val"][one["headline"]] for rate, one in runs.items()}
    best = max(scores, key=lambda rate: scores[rate])
    found, folder = {"run": name, "lr": best, "val_by_lr": scores}, folders[best]
    found |= {key: runs[best][key] for key in ("steps", "batch_size", "parameters", "train_s", "val")}
    found["test"] = evaluate(folder, open_data=opened).to_json()["evaluation"]
    if name == "rendered":
        return found | {"unseen": evaluate(folder, "rendered:captions-unseen").to_json()["evaluation"]}
    try:
        cifar10 = evaluate(folder, "cifar10", templates=TEMPLATES).to_json()["evaluation"]["scores"]["top1"]
    except UserError as error:
        return found | {"cifar10": str(error)}
    return found | {"cifar10": cifar10}


def at_rate(recipe: Recipe, rate: float) -> Recipe:
    return replace(recipe, optimizer=replace(recipe.optimizer, lr=rate))


def tried(recipe: Recipe, steps: int) -> Recipe:
    training = replace(recipe.training, steps=steps, batch_size=16, compile=False, workers=0, evaluate_every_epochs=0)
    data = replace(recipe.data, train_limit=64, keep_gb=0.0)
    return replace(recipe, data=data, model=replace(recipe.model, picture_px=(TRIED_PX, TRIED_PX)), training=training)


def at_once(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    """This script for each run: what they wrote, and which failed. One that fails leaves the others as they are."""
    options.folder.mkdir(parents=True, exist_ok=True)
    shared = [sys.executable, __file__, "--data", options.data, "--folder", str(options.folder)]
    shared += [] if options.steps is None else ["--steps", str(options.steps)]
    shared += ["--rates", *map(str, options.rates)] if options.rates else []
    outs = {name: options.folder / f"{name}.json" for name in options.runs}
    for out in outs.values():
        out.unlink(missing_ok=True)
    running = [subprocess.Popen([*shared, "--runs", name, "--out", str(out)]) for name, out in outs.items()]
    failed = [name for name, process in zip(outs, running, strict=True) if process.wait()]
    return [one for out in outs.values() if out.is_file() for one in json.loads(out.read_text())["results"]], failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--data", default="flickr8k")
    parser.add_argument("--folder", type=Path, default=Path("runs/words"), help="of the runs")
    parser.add_argument("--at_once", action="store_true", help="all of them side by side")
    parser.add_argument("--rates", nargs="+", type=float, default=(), help="default: that of the recipe")
    parser.add_argument("--steps", type=int, help="end each after so many, in batches of 16, uncompiled")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: list[dict[str, Any]] = []

    def keep(found: list[dict[str, Any]]) -> None:
        results.extend(found)
        if options.out:
            options.out.write_text(json.dumps({"environment": environment(), "results": results}, indent=2) + "\n")

    if options.at_once:
        found, failed = at_once(options)
        keep(found)
        if failed:
            sys.exit(f"failed: {', '.join(failed)}")
        return
    for name in options.runs:
        recipe = RUNS[name](options.data)
        recipe = tried(recipe, options.steps) if options.steps else recipe
        keep([measured(name, recipe, options.folder / name, options.rates)])
        print(json.dumps(results[-1]), flush=True)


if __name__ == "__main__":
    with one_line_errors():
        main()
