"""The demonstration: the paper's system end to end on the embedded data, in minutes on two cores."""

import time
from pathlib import Path
from typing import Any

from vitreous import jobs
from vitreous.data.sources import Source, Splits
from vitreous.evaluation.baseline import Baseline, Pixels, logistic_regression
from vitreous.recipes.fashion import fashion_finetune, fashion_vit
from vitreous.recipes.recipe import Recipe
from vitreous.terminal import duration, table


def demo(out: str | Path) -> None:
    """Pre-train at 28 px, fine-tune at a higher resolution, evaluate, and compare with a logistic regression."""
    began, out = time.monotonic(), Path(out)
    recipe = fashion_vit()
    splits = recipe.data.build()
    say(1, f"Pre-training a ViT at {size(recipe.model.picture_px)} on {len(splits.train):,} pictures")
    first = jobs.train(recipe, out / "pretrain")
    finetune = fashion_finetune(str(out / "pretrain"))
    say(2, f"Fine-tuning it at {size(finetune.model.picture_px)}: positions interpolated, a new head of zeros")
    second = jobs.train(finetune, out / "finetune")
    say(3, "Logistic regression on the same pixels and split, for comparison")
    baseline = compare(splits)
    print(summary(recipe, finetune, first, second, baseline))
    print(
        f"""
{second["parameters"]:,} parameters, {duration(time.monotonic() - began)} in all. Everything lies in {out}:
  {out}/pretrain, {out}/finetune    run directories: recipe.json, metrics.jsonl, results.json, checkpoints/
  {out}/finetune/model    the model: weights, labels and preprocessing
Next: vitreous evaluate {out}/finetune    vitreous finetune {out}/pretrain FOLDER_OF_PICTURES    vitreous list"""
    )


def summary(
    pretrain: Recipe, finetune: Recipe, first: dict[str, Any], second: dict[str, Any], baseline: Baseline
) -> str:
    ahead = 100 * (second["test"]["accuracy"] - baseline.accuracy)
    rows = [
        (f"ViT, pre-trained at {size(pretrain.model.picture_px)}", f"{first['test']['accuracy']:.2%}", ""),
        (
            f"ViT, fine-tuned at {size(finetune.model.picture_px)}",
            f"{second['test']['accuracy']:.2%}",
            f"{ahead:+.1f} points over logistic regression",
        ),
        (
            "logistic regression on pixels",
            f"{baseline.accuracy:.2%}",
            f"penalty {baseline.penalty:g}, chosen on the validation part; converged",
        ),
    ]
    return "\n" + table(rows, (f"model, on {int(second['test']['pictures']):,} test pictures", "accuracy", ""))


def compare(splits: Splits) -> Baseline:
    assert splits.val is not None and splits.test is not None
    return logistic_regression(*(pixels(part) for part in (splits.train, splits.val, splits.test)))


def pixels(source: Source) -> Pixels:
    assert source.pictures is not None
    return Pixels.of(source.pictures, source.labels)


def size(picture_px: tuple[int, int]) -> str:
    return f"{picture_px[0]} x {picture_px[1]} px"


def say(number: int, what: str) -> None:
    print(f"\n[{number}/3] {what}", flush=True)
