"""Figures of an evaluation."""

from collections.abc import Mapping, Sequence
from functools import singledispatch

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure

from vitreous.display.figures import INK, SERIES, drawing, figure
from vitreous.evaluation.abstention import Abstention
from vitreous.evaluation.box_figures import class_precisions, error_kinds, precision_recall, score_reliability
from vitreous.evaluation.box_scores import BoxEvaluation
from vitreous.evaluation.calibration import Calibration
from vitreous.evaluation.full import ClassEvaluation, Evaluation
from vitreous.evaluation.many import LabelScores, ManyEvaluation, ManyScores
from vitreous.evaluation.metrics import ClassScores, Scores
from vitreous.evaluation.pixel_figures import class_ious, pixel_reliability
from vitreous.evaluation.pixel_scores import PixelEvaluation, PixelScores
from vitreous.evaluation.probes import FewShot
from vitreous.evaluation.retrieval import RetrievalEvaluation

Figures = dict[str, Figure]
# From transparent to blue: zero has the page's own colour.
BLUES = LinearSegmentedColormap.from_list("blues", [(0.0, 0.447, 0.698, 0.0), (0.0, 0.447, 0.698, 1.0)])
NAMED = 30  # a confusion matrix of more classes than this drops their names
COUNTED = 12  # up to this many have their shares written into the cells


@singledispatch
def drawn(evaluation: Evaluation | RetrievalEvaluation) -> Figures:
    """All figures of an evaluation, by name."""
    raise NotImplementedError(type(evaluation).__name__)


@drawn.register
def _(evaluation: ClassEvaluation) -> Figures:
    return {
        "per_class": per_class(evaluation.scores),
        "confusion": confusion(evaluation.scores),
        "reliability": reliability(evaluation.before, evaluation.after),
        "abstention": abstention_curve(evaluation.abstention),
    }


@drawn.register
def _(evaluation: RetrievalEvaluation) -> Figures:
    return {"recall": recalls(evaluation)}


@drawn.register
def _(evaluation: PixelEvaluation) -> Figures:
    return {
        "per_class": class_ious(evaluation.scores),
        "confusion": confusion(evaluation.scores),
        "reliability": pixel_reliability(evaluation.scores),
    }


@drawn.register
def _(evaluation: BoxEvaluation) -> Figures:
    return {
        "per_class": class_precisions(evaluation.scores),
        "precision_recall": precision_recall(evaluation.scores),
        "errors": error_kinds(evaluation.scores),
        "reliability": score_reliability(evaluation),
    }


@drawn.register
def _(evaluation: ManyEvaluation) -> Figures:
    return {
        "per_class": per_label(evaluation.scores),
        "reliability": reliability(evaluation.before, evaluation.after),
    }


@drawing
def recalls(evaluation: RetrievalEvaluation) -> Figure:
    """Recall in both directions against the number of results considered, with intervals."""
    drawn = figure(5.0, 3.0)
    axes, places = drawn.subplots(), np.arange(len(evaluation.depths))
    ways = (("text of a picture", evaluation.to_texts), ("picture of a text", evaluation.to_pictures))
    for number, (name, found) in enumerate(ways):
        values = np.array([(one.value, one.value - one.low, one.high - one.value) for one in found]).T
        at = places + 0.36 * (number - 0.5)
        axes.bar(at, 100 * values[0], 0.34, yerr=100 * values[1:].clip(min=0), color=SERIES[number], label=name)
    axes.set_xticks(places, [f"recall@{depth}" for depth in evaluation.depths])
    axes.set(ylabel="%", ylim=(0, 100))
    axes.legend()
    return drawn


@drawing
def reliability(before: Calibration, after: Calibration | None = None) -> Figure:
    """Accuracy against confidence, above the histogram of confidences; beside it the same after calibration."""
    shown = [before] if after is None else [before, after]
    drawn = figure(0.4 + 3.1 * len(shown), 4.2)
    axes = drawn.subplots(2, len(shown), squeeze=False, sharex=True, sharey="row", height_ratios=(3, 1))
    for column, one in enumerate(shown):
        _reliability(axes[0, column], one)
        _histogram(axes[1, column], one)
        name = "as trained" if one.temperature == 1 else f"temperature {one.temperature:.3g}"
        axes[0, column].set_title(f"{name}: ECE {100 * one.ece.value:.1f} %")
    axes[0, 0].legend(loc="best")
    axes[0, 0].set_ylabel("accuracy (95 % interval)")
    axes[1, 0].set_ylabel("share of\npictures")
    return drawn


def _reliability(axes: Axes, found: Calibration) -> None:
    full = [
        (bin.confidence, bin.accuracy) for bin in found.bins if bin.confidence is not None and bin.accuracy is not None
    ]
    confidences = [confidence for confidence, _ in full]
    values = np.array([(share.value, share.low, share.high) for _, share in full])
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle="--", label="perfectly calibrated")
    errors = np.abs(values[:, 1:] - values[:, :1]).T
    axes.errorbar(confidences, values[:, 0], errors, color=SERIES[0], marker="o", markersize=4, linewidth=1.2)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)


def _histogram(axes: Axes, found: Calibration) -> None:
    total = sum(bin.pictures for bin in found.bins)
    lows = [bin.low for bin in found.bins]
    widths = [bin.high - bin.low for bin in found.bins]
    axes.bar(lows, [bin.pictures / total for bin in found.bins], widths, align="edge", color=SERIES[0], linewidth=0)
    axes.set_xlabel("confidence")


@drawing
def confusion(scores: Scores | PixelScores) -> Figure:
    """Shares of each class's pictures, one class per row. Names for up to 30 classes, percentages for up to 12."""
    counts = scores.confusion_matrix().numpy().astype(float)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    num, names = len(counts), [shortened(one.name) for one in scores.per_class]
    side = min(max(0.36 * num, 2.0), 6.0)
    beside = 0.085 * max(map(len, names)) if num <= NAMED else 0.3  # inches for the names
    drawn = figure(side + beside + 1.8, side + 0.75 * beside + 0.5)
    axes = drawn.subplots()
    # By the root, so that confusions of a few per cent are visible too.
    image = axes.imshow(shares, cmap=BLUES, norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    axes.grid(visible=False)
    axes.set_xlabel("predicted" if num <= NAMED else "predicted (number of the class)")
    axes.set_ylabel("label" if num <= NAMED else "label (number of the class)")
    if num <= NAMED:
        axes.set_xticks(range(num), names, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(num), names)
    if num <= COUNTED:
        for row, column in np.argwhere(shares >= 0.005):
            share = shares[row, column]
            colour = "white" if share > 0.35 else INK
            axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", color=colour)
    ticks = (0, 0.02, 0.1, 0.25, 0.5, 1)
    counted = "pixels" if isinstance(scores, PixelScores) else "pictures"
    bar = drawn.colorbar(image, ax=axes, shrink=0.8, label=f"share of the label's {counted}", ticks=ticks)
    bar.ax.set_yticklabels([f"{100 * tick:g} %" for tick in ticks])
    bar.outline.set_visible(False)
    return drawn


@drawing
def abstention_curve(found: Abstention) -> Figure:
    """Accuracy of the predictions against the share of pictures predicted."""
    drawn = figure(4.6, 3.2)
    axes = drawn.subplots()
    shares = [point.share for point in found.points]
    axes.fill_between(
        shares,
        [point.accuracy.low for point in found.points],
        [point.accuracy.high for point in found.points],
        color=SERIES[0],
        alpha=0.25,
        linewidth=0,
        label="95 % interval",
    )
    axes.plot(shares, [point.accuracy.value for point in found.points], color=SERIES[0])
    # The interval of all pictures is seen whole, and those of the first few, which know little, are not.
    lowest = min(found.points[-1].accuracy.low, *(point.accuracy.value for point in found.points))
    axes.set_ylim(max(0.0, lowest - 0.1 * (1 - lowest) - 0.01), 1.005)
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of pictures predicted, most confident first")
    axes.set_ylabel("accuracy of the predictions")
    axes.legend(loc="lower left")
    return drawn


@drawing
def few_shot_curve(found: Mapping[str, Sequence[FewShot]], chance: float | None = None) -> Figure:
    """Accuracy against training pictures per class; a line for every name, bars for the spread over seeds."""
    drawn = figure(4.6, 3.2)
    axes = drawn.subplots()
    for (name, points), colour in zip(found.items(), SERIES * len(found), strict=False):
        rooms = [point.mean for point in points], [1 - point.mean for point in points]  # no accuracy is above 1
        axes.errorbar(
            [point.shots for point in points],
            [point.mean for point in points],
            [[min(point.spread, most) for point, most in zip(points, room, strict=True)] for room in rooms],
            color=colour,
            marker="o",
            markersize=4,
            linewidth=1.2,
            capsize=2.5,
            label=name,
        )
    ticks = sorted({point.shots for points in found.values() for point in points})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    if chance is not None:
        axes.axhline(chance, color=INK, linewidth=0.8, linestyle="--", label="chance")
    axes.set_xlabel("training pictures per class")
    axes.set_ylabel("accuracy (bars: deviation over seeds)")
    axes.legend()
    return drawn


@drawing
def per_class(scores: Scores, most: int = 40) -> Figure:
    """Precision and recall of every class; of many, those with the lowest recall."""
    seen = [one for one in scores.per_class if one.recall is not None]
    listed = sorted(seen, key=lambda one: one.recall.value if one.recall else 0.0)[:most]
    drawn = _bars(listed, {"recall": "recall", "precision": "precision"})
    if len(listed) < len(seen):
        drawn.axes[0].set_title(f"the {most} of {len(seen)} classes with the lowest recall")
    return drawn


@drawing
def per_label(scores: ManyScores, most: int = 40) -> Figure:
    """Average precision and F1 of every label; of many, those with the lowest average precision."""
    seen = [one for one in scores.per_class if one.average_precision is not None]
    listed = sorted(seen, key=lambda one: one.average_precision.value if one.average_precision else 0.0)[:most]
    drawn = _bars(listed, {"average_precision": "average precision", "f1": "F1"})
    if len(listed) < len(seen):
        drawn.axes[0].set_title(f"the {most} of {len(seen)} labels with the lowest average precision")
    return drawn


def _bars(listed: Sequence[ClassScores | LabelScores], shown: Mapping[str, str]) -> Figure:
    """Two shares of each class, with their intervals."""
    drawn = figure(6.0, 1.2 + 0.26 * len(listed))
    axes = drawn.subplots()
    for offset, (name, words), colour in zip((-0.18, 0.18), shown.items(), SERIES, strict=False):
        shares = [(place, getattr(one, name)) for place, one in enumerate(listed) if getattr(one, name) is not None]
        values = np.array([(share.value, share.low, share.high) for _, share in shares]).reshape(-1, 3)
        places = [place + offset for place, _ in shares]
        errors = np.abs(values[:, 1:] - values[:, :1]).T
        style = {"ecolor": INK, "elinewidth": 0.7, "capsize": 1.5}
        axes.barh(places, values[:, 0], 0.34, color=colour, label=words, xerr=errors, error_kw=style)
    axes.set_yticks(range(len(listed)), [f"{shortened(one.name)} ({one.pictures:,})" for one in listed])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1)
    axes.set_xlabel("share (95 % interval)")
    drawn.legend(loc="outside upper right", ncols=2)
    return drawn


def shortened(name: str, most: int = 24) -> str:
    """A class name as a label: of one line, not too long, and its dollar signs no mathematics."""
    line = " ".join(name.split())
    return (line if len(line) <= most else line[: most - 1] + "…").replace("$", r"\$")
