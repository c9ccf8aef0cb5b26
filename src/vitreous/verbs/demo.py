"""vitreous demo: what a trained start is worth, on a few embedded pictures, in minutes on two cores."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.verbs import add_quiet

if TYPE_CHECKING:
    from vitreous.report.class_judgement import ClassFitted

HELP = "Fit a few embedded pictures from the encoder that ships, and from random weights; five minutes on two cores."
PER_CLASS = 20  # training pictures: few, as people often have; all test pictures are predicted
MINUTES = 2.0  # for each of the two fits
CHANGES = {"data.train_limit": str(10 * PER_CLASS), "training.device": "cpu"}


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", default="runs/demo", help="where the runs go (default: runs/demo)")
    add_quiet(parser)


def run(options: argparse.Namespace) -> None:
    from vitreous.terminal import quietly

    with quietly(options.quiet):
        text = demo(Path(options.out))
    print(text)


def demo(out: Path) -> str:
    """`fit` from the encoder that ships, and from random weights. Returns a summary beside a simple baseline."""
    from vitreous.commands import account_for
    from vitreous.fitting.fit import ending, fit, say

    print(f"Pictures of clothes, {PER_CLASS} for each of 10 classes. First from random weights, then from an encoder.")
    scratch = fit("fashion", out / "scratch", start="none", minutes=MINUTES, changes=CHANGES)
    began = time.monotonic()
    result = fit("fashion", out / "fit", minutes=MINUTES, changes=CHANGES)
    say("report", "Writing the report")
    account_for(result)
    return f"""{summary(result, scratch)}
{ending(result, time.monotonic() - began)}
{result.results["parameters"]:,} parameters.
Next: open {result.out}/report.html    vitreous predict {result.out} PICTURE    vitreous fit FOLDER_OF_PICTURES"""


def summary(result: "ClassFitted", scratch: "ClassFitted") -> str:
    from vitreous.terminal import table

    baseline = result.account.baseline
    assert baseline is not None and result.first is not None
    pixels = baseline.score

    def row(name: str, found: "ClassFitted") -> tuple[str, str, str]:
        accuracy = found.evaluation.headline
        kept = next(one.name for one in found.candidates if one.is_kept)
        return name, accuracy.percent(), f"{100 * (accuracy.value - pixels):+.1f} points; kept: {kept}"

    rows = [
        row(f"from {result.first.start}", result),
        row("from random weights", scratch),
        ("logistic regression on pixels", f"{100 * pixels:.2f} %", f"penalty {baseline.penalty:g}"),
    ]
    return (
        "\n"
        + table(rows, (f"{len(result.account.test):,} test pictures", "accuracy (95 % interval)", "over pixels"))
        + "\n"
    )
