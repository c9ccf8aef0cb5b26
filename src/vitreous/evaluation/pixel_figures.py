"""Figures of an evaluation of pixels."""

import numpy as np
from matplotlib.figure import Figure

from vitreous.display.figures import INK, SERIES, drawing, figure
from vitreous.display.palette import palette
from vitreous.evaluation.pixel_scores import PixelScores

MOST_BARS = 40


@drawing
def class_ious(scores: PixelScores) -> Figure:
    """IoU of every class with its interval, in the colours of the masks; of many, the largest classes."""
    colours = palette(len(scores.per_class))
    seen = [(one, colour) for one, colour in zip(scores.per_class, colours, strict=True) if one.iou is not None]
    seen = sorted(seen, key=lambda pair: -pair[0].share)[:MOST_BARS]
    drawn = figure(5.4, 0.8 + 0.26 * len(seen))
    axes = drawn.subplots()
    values = np.array([(one.iou.value, one.iou.low, one.iou.high) for one, _ in seen if one.iou is not None])
    errors = np.abs(values[:, 1:] - values[:, :1]).T
    paints = [tuple(level / 255 for level in colour) for _, colour in seen]
    axes.barh(range(len(seen)), values[:, 0], xerr=errors, color=paints, error_kw={"ecolor": INK, "elinewidth": 0.9})
    axes.set_yticks(range(len(seen)), [one.name for one, _ in seen])
    axes.invert_yaxis()
    axes.axvline(scores.miou.value, color=INK, linewidth=0.8, linestyle="--")
    axes.set_xlim(0, 1)
    axes.set_xlabel("IoU (95 % interval); dashed: their mean")
    return drawn


@drawing
def pixel_reliability(scores: PixelScores) -> Figure:
    """Accuracy of pixels against confidence, above the histogram of confidences."""
    drawn = figure(3.5, 4.2)
    upper, lower = drawn.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    full = [one for one in scores.bins if one.confidence is not None and one.accuracy is not None]
    upper.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle="--", label="perfectly calibrated")
    confidences, accuracies = ([getattr(one, name) for one in full] for name in ("confidence", "accuracy"))
    upper.plot(confidences, accuracies, color=SERIES[0], marker="o", markersize=4, linewidth=1.2)
    upper.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), ylabel="accuracy of the pixels")
    upper.legend(loc="upper left")
    total = sum(one.pixels for one in scores.bins)
    lower.bar(
        [one.low for one in scores.bins],
        [one.pixels / total for one in scores.bins],
        [one.high - one.low for one in scores.bins],
        align="edge",
        color=SERIES[0],
        linewidth=0,
    )
    lower.set(xlabel="confidence", ylabel="share of\npixels")
    return drawn
