"""The demonstration: the paper's way on the embedded data, in minutes on two cores, beside a logistic regression."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous import jobs
from vitreous.commands import account_for
from vitreous.data.sources import Source, Splits
from vitreous.evaluation.baseline import Baseline, Pixels, logistic_regression
from vitreous.fitting.fit import FitResult, ending, fit, say
from vitreous.recipes.fashion import fashion_vit
from vitreous.terminal import table

LARGER_PX = 35  # five patches of 7 px where pre-training had four
# Muon at the rate of pre-training: on held-out pictures, what `fit` would choose for anybody's weights gave two points
# less in the same time.
CHANGES = {
    "model.picture_px": f"{LARGER_PX},{LARGER_PX}",
    "optimizer.kind": "Muon",
    "optimizer.lr": "0.002",
    "optimizer.weight_decay": "0.2",
    "optimizer.adam_lr": "0.002",
    "training.batch_size": "128",
    "training.epochs": "6",
    "training.device": "cpu",
}


def demo(out: str | Path) -> str:
    """Pre-train small, then `fit` from those weights at a higher resolution; then the bar that it has to clear.

    Returns what came of it, to be printed."""
    began, out = time.monotonic(), Path(out)
    recipe = fashion_vit()
    print(f"[0/6] Pre-training a ViT at {recipe.model.picture_px[0]} px; `fit` fine-tunes it at {LARGER_PX} px")
    pretrained = jobs.train(recipe, out / "pretrain", read_test=False)
    result = fit("fashion", out / "fit", start=str(out / "pretrain"), changes=CHANGES)
    say("report", "Logistic regression on the same pixels and split, for comparison; then the report")
    baseline = compare(result.splits)
    account_for(replace(result, baseline=baseline))
    return f"""{summary(pretrained, result, baseline)}
{ending(result, time.monotonic() - began)}
{result.results["parameters"]:,} parameters.
Next: open {result.out}/report.html    vitreous predict {result.out} PICTURE    vitreous fit FOLDER_OF_PICTURES"""


def summary(pretrained: dict[str, Any], result: FitResult, baseline: Baseline) -> str:
    accuracy = result.evaluation.scores.top1
    ahead = 100 * (accuracy.value - baseline.accuracy)
    rows = [
        (
            f"ViT, fine-tuned at {LARGER_PX} px",
            accuracy.percent(),
            f"{ahead:+.1f} points over logistic regression",
        ),
        (
            "logistic regression on pixels",
            f"{100 * baseline.accuracy:.2f} %",
            f"penalty {baseline.penalty:g}, chosen on the validation part; converged",
        ),
    ]
    before, after = pretrained["val"]["accuracy"], result.results["val"]["accuracy"]
    return (
        "\n"
        + table(rows, (f"model, on {len(result.test):,} test pictures", "accuracy (95 % interval)", ""))
        + f"\non the validation part: {before:.2%} after pre-training, {after:.2%} after fine-tuning\n"
    )


def compare(splits: Splits) -> Baseline:
    assert splits.val is not None and splits.test is not None
    return logistic_regression(*(pixels(part) for part in (splits.train, splits.val, splits.test)))


def pixels(source: Source) -> Pixels:
    assert source.pictures is not None
    return Pixels.of(source.pictures, source.labels)
