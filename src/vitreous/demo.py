"""The demonstration: `vitreous fit` on the embedded data, in minutes on two cores, beside a logistic regression."""

import time
from pathlib import Path

from vitreous.data.sources import Source, Splits
from vitreous.evaluation.baseline import Baseline, Pixels, logistic_regression
from vitreous.fitting.fit import FitResult, ending, fit, say
from vitreous.report import write_report
from vitreous.terminal import table


def demo(out: str | Path) -> None:
    """From pictures to a calibrated, tested model; then the bar that it has to clear."""
    began = time.monotonic()
    result = fit("fashion", out, changes={"training.device": "cpu"})
    say("report", "Logistic regression on the same pixels and split, for comparison; then the report")
    baseline = compare(result.splits)
    write_report(result, result.out / "report.html", baseline=baseline)
    print(summary(result, baseline))
    print(
        f"""{ending(result, time.monotonic() - began)}
{result.results["parameters"]:,} parameters.
Next: open {out}/report.html    vitreous predict {out} PICTURE    vitreous fit FOLDER_OF_PICTURES    vitreous list"""
    )


def summary(result: FitResult, baseline: Baseline) -> str:
    accuracy = result.evaluation.scores.top1
    height, width = result.plan.recipe.model.picture_px
    ahead = 100 * (accuracy.value - baseline.accuracy)
    rows = [
        (f"ViT at {width} x {height} px", accuracy.percent(), f"{ahead:+.1f} points over logistic regression"),
        (
            "logistic regression on pixels",
            f"{100 * baseline.accuracy:.2f} %",
            f"penalty {baseline.penalty:g}, chosen on the validation part; converged",
        ),
    ]
    return "\n" + table(rows, (f"model, on {len(result.test):,} test pictures", "accuracy", ""))


def compare(splits: Splits) -> Baseline:
    assert splits.val is not None and splits.test is not None
    return logistic_regression(*(pixels(part) for part in (splits.train, splits.val, splits.test)))


def pixels(source: Source) -> Pixels:
    assert source.pictures is not None
    return Pixels.of(source.pictures, source.labels)
