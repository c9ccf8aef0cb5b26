"""Figures of an evaluation of pixels."""

from matplotlib.figure import Figure

from vitreous.display.figures import INK, SERIES, drawing, figure
from vitreous.evaluation.class_bars import ClassBar, class_bars
from vitreous.evaluation.pixel_scores import PixelScores


@drawing
def class_ious(scores: PixelScores) -> Figure:
    """IoU of every class with its interval, in the colours of the masks; if there are many, the largest classes."""
    bars = [ClassBar(one.name, one.iou, one.share) for one in scores.per_class]
    return class_bars(bars, scores.miou.value, "IoU")


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
