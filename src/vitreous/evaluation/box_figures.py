"""Figures of an evaluation of objects."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitreous.display.figures import INK, SERIES, drawing, figure
from vitreous.display.palette import palette
from vitreous.evaluation.box_scores import TOO_FEW, BoxEvaluation, BoxScores, ScoreBin, can_be_judged
from vitreous.evaluation.class_bars import ClassBar, class_bars, painted
from vitreous.evaluation.metrics import wilson

MOST_CURVES = 20


@drawing
def class_precisions(scores: BoxScores) -> Figure:
    """AP of every class with its interval, in the colours of the boxes; if there are many, those with most objects."""
    bars = [ClassBar(one.name, one.ap, one.objects) for one in scores.per_class]
    return class_bars(bars, scores.ap.value, "AP")


@drawing
def precision_recall(scores: BoxScores) -> Figure:
    """Precision against recall at an overlap of one half: a thin line per class, their mean bold."""
    drawn = figure(5.4, 4.0)
    axes, recalls = drawn.subplots(), np.linspace(0, 1, 101)
    colours = palette(len(scores.per_class))
    seen = [(one, colour) for one, colour in zip(scores.per_class, colours, strict=True) if one.curve]
    for one, colour in sorted(seen, key=lambda pair: -pair[0].objects)[:MOST_CURVES]:
        named = one.name if len(seen) <= 8 else None
        axes.plot(recalls, one.curve, color=painted(colour), linewidth=1.0, label=named)
    mean = np.mean([one.curve for one, _ in seen], axis=0)
    axes.plot(recalls, mean, color=INK, linewidth=2.0, label=f"mean (AP50 {100 * scores.ap50.value:.1f} %)")
    axes.set(xlim=(0, 1.01), ylim=(0, 1.02), xlabel="recall", ylabel="precision")
    axes.legend(loc="best")
    return drawn


@drawing
def error_kinds(scores: BoxScores) -> Figure:
    """What AP50 would gain without errors of each kind, and their number among the detections shown."""
    drawn = figure(6.4, 2.4)
    left, right = drawn.subplots(1, 2, sharey=True)
    places, names = range(len(scores.errors)), [one.kind for one in scores.errors]
    left.barh(places, [100 * one.ap50 for one in scores.errors], color=SERIES[0])
    left.set_yticks(places, names)
    left.invert_yaxis()
    left.set_xlabel("AP50 lost by it, in points")
    right.barh(places, [one.number for one in scores.errors], color=SERIES[1])
    right.set_xlabel(f"number, scores of {scores.least}")
    return drawn


@drawing
def score_reliability(evaluation: BoxEvaluation) -> Figure:
    """The share of right detections against their score, before and after calibration."""
    shown = [("as trained", evaluation.bins_before, evaluation.ece_before)]
    if evaluation.scores.bins != evaluation.bins_before:
        shown.append(("calibrated", evaluation.scores.bins, evaluation.scores.ece))
    drawn = figure(0.4 + 3.1 * len(shown), 4.2)
    axes = drawn.subplots(2, len(shown), squeeze=False, sharex=True, sharey="row", height_ratios=(3, 1))
    for column, (name, bins, ece) in enumerate(shown):
        _reliability(axes[0, column], axes[1, column], bins)
        error = f"ECE {100 * ece.value:.1f} %" if can_be_judged(bins) else TOO_FEW
        axes[0, column].set_title(f"{name}: {error}")
    axes[0, 0].legend(loc="best")
    axes[0, 0].set_ylabel("share that is right (95 % interval)")
    axes[1, 0].set_ylabel("detections")
    return drawn


def _reliability(upper: Axes, lower: Axes, bins: tuple[ScoreBin, ...]) -> None:
    full = [
        (one.score, wilson(round(one.right * one.detections), one.detections))
        for one in bins
        if one.score is not None and one.right is not None
    ]
    values = np.array([(share.value, share.low, share.high) for _, share in full]).reshape(-1, 3)
    errors = np.abs(values[:, 1:] - values[:, :1]).T
    upper.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle="--", label="perfectly calibrated")
    upper.errorbar(
        [at for at, _ in full], values[:, 0], errors, color=SERIES[0], marker="o", markersize=4, linewidth=1.2
    )
    upper.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    numbers = [one.detections for one in bins]
    lower.bar([one.low for one in bins], numbers, [one.high - one.low for one in bins], align="edge", color=SERIES[0])
    lower.set_yscale("symlog")
    lower.set_xlabel("score")
