"""What models of pictures and words learn, run by run, as docs/RESULTS.md tells it.

    python benchmarks/words.py --runs rendered scratch clip siglip lit --out docs/results/words.json

`rendered` is rendered_clip, measured on what it has seen and on colours and shapes that never met; the others learn
Flickr8k (`--data`: its folder) from scratch, from vitreous-s, by SigLIP's loss, and with vitreous-s locked. What
learned from Flickr8k is measured on CIFAR-10 by the names of its classes too, where VITREOUS_DATA has it. Needs the
extra `words` (ftfy is pure Python: `pip install --no-deps --target carried ftfy wcwidth`, and carried on PYTHONPATH).
A run that is there already is only measured. --steps tries it out on any machine, with small pictures and no names.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous.cli import one_line_errors
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


def measured(name: str, recipe: Recipe, folder: Path, *, names: bool = True) -> dict[str, Any]:
    results = train(recipe, folder)
    found = {"run": name, "train_s": results["train_s"], "parameters": results["parameters"], "test": results["test"]}
    if name == "rendered":
        return found | {"unseen": evaluate(folder, "rendered:captions-unseen").to_json()["evaluation"]}
    found["test_with_intervals"] = evaluate(folder).to_json()["evaluation"]
    if not names:
        return found
    try:
        cifar10 = evaluate(folder, "cifar10", templates=TEMPLATES).to_json()["evaluation"]["scores"]["top1"]
    except UserError as error:
        return found | {"cifar10": str(error)}
    return found | {"cifar10": cifar10}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--data", default="flickr8k")
    parser.add_argument("--folder", type=Path, default=Path("runs/words"), help="of the runs")
    parser.add_argument("--steps", type=int, help="end each after so many, in batches of 16, uncompiled")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = []
    for name in options.runs:
        recipe = RUNS[name](options.data)
        if options.steps:
            training = replace(recipe.training, steps=options.steps, batch_size=16, compile=False, workers=0)
            data = replace(recipe.data, train_limit=64, keep_gb=0.0)
            model = replace(recipe.model, picture_px=(TRIED_PX, TRIED_PX))
            recipe = replace(recipe, data=data, model=model, training=replace(training, evaluate_every_epochs=0))
        results.append(measured(name, recipe, options.folder / name, names=not options.steps))
        print(json.dumps(results[-1]), flush=True)
        if options.out:
            options.out.write_text(json.dumps({"environment": environment(), "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
