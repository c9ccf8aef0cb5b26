"""A class per pixel, in words: how well areas are predicted, and what to be careful about."""

from collections.abc import Iterator

from vitreous.data.skipped import listed
from vitreous.display.words import counted
from vitreous.evaluation.pixel_scores import PixelEvaluation
from vitreous.fitting.base import NoAccount
from vitreous.fitting.fitted import Fitted
from vitreous.report.html import Content, name
from vitreous.report.judgement import is_guessing
from vitreous.report.words import INTERVAL, interval, percent, share

UNSURE_POINTS = 0.05  # half of an interval, from which it is said that the number is rough

PixelFitted = Fitted[NoAccount]


def of_pixels(result: PixelFitted) -> PixelEvaluation:
    assert isinstance(result.evaluation, PixelEvaluation)
    return result.evaluation


def chance(result: PixelFitted) -> float:
    """Of whoever does not look, and calls every pixel the most frequent class: that alone overlaps at all."""
    seen = [one.share for one in of_pixels(result).scores.per_class if one.pictures]
    return max(seen) / len(seen)


def lead(result: PixelFitted) -> str:
    scores = of_pixels(result).scores
    return (
        f"mIoU on {counted(scores.pictures, 'test picture')} ({INTERVAL}: {interval(scores.miou)}): the predicted "
        "and the labelled areas of a class overlap by this share, averaged over the classes. Of all pixels, "
        f"{percent(scores.pixel_accuracy.value)} are right."
    )


def cautions(result: PixelFitted) -> Iterator[tuple[Content, ...]]:
    scores = of_pixels(result).scores
    if is_guessing(result, chance(result)):
        yield (
            "Not clearly better than guessing.",
            "The interval of its mIoU reaches down to what calling every pixel the most frequent class gives "
            f"({percent(chance(result))}). Do not rely on this model.",
        )
    half = (scores.miou.high - scores.miou.low) / 2
    rough = " A larger test part would narrow it." if half > UNSURE_POINTS else ""
    yield (
        "How certain this number is.",
        f"{counted(scores.pictures, 'test picture')} determine the mIoU to within about "
        f"\N{PLUS-MINUS SIGN}{100 * half:.1f} points; smaller differences between two models may be chance.{rough}",
    )
    seen = [one for one in scores.per_class if one.iou is not None]
    weakest = min(seen, key=lambda one: 0.0 if one.iou is None else one.iou.value)
    if weakest.iou is not None and weakest.iou.value < scores.miou.low:
        yield (
            "The weakest class",
            "is ",
            name(weakest.name),
            f", with an IoU of {percent(weakest.iou.value)} ({interval(weakest.iou)}) and {percent(weakest.share)} of "
            "the pixels.",
        )
    absent = [one.name for one in scores.per_class if not one.pictures]
    if absent:
        yield "Not measured.", f"No test picture has {listed(absent, 8)}."
    if scores.boundary_f.value < scores.miou.value:
        yield (
            "Outlines are rougher than areas.",
            f"The boundary F-score is {share(scores.boundary_f)}: sizes and places of things are predicted better "
            "than their edges. Smaller patches or larger pictures help.",
        )


def cautions_of_confidence(result: PixelFitted) -> Iterator[tuple[Content, ...]]:
    if not of_pixels(result).validation_pictures:
        yield "Not calibrated.", "There was no validation part, so its confidence is not calibrated."
