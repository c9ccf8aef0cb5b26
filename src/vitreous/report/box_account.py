"""Objects, in words: how well they are found, and what to be careful about."""

from collections.abc import Iterator

from vitreous.data.skipped import listed
from vitreous.display.words import counted
from vitreous.evaluation.box_scores import BoxEvaluation
from vitreous.fitting.base import NoAccount
from vitreous.fitting.fitted import Fitted
from vitreous.report.html import Content, name
from vitreous.report.judgement import is_guessing
from vitreous.report.words import INTERVAL, interval, percent

UNSURE_POINTS = 0.05  # half of an interval, above which the report calls the number rough
NOTHING = 0.005  # AP below which a model finds next to nothing
FEW_OBJECTS = 20  # of a class, from which its AP is worth mentioning
FEW_TO_CALIBRATE = 100  # objects
ROUGH_SHARE = 0.5  # AP75 as a share of AP50, below which boxes are placed roughly

ONE = {"boxes": "a box", "masks": "a mask"}

BoxFitted = Fitted[NoAccount]


def of_boxes(result: BoxFitted) -> BoxEvaluation:
    assert isinstance(result.evaluation, BoxEvaluation)
    return result.evaluation


def chance(result: BoxFitted) -> float:
    """The AP without looking at the pictures: boxes at random hit next to nothing."""
    return NOTHING


def lead(result: BoxFitted) -> str:
    scores, by = of_boxes(result).scores, of_boxes(result).by
    return (
        f"AP of {by} on {counted(scores.pictures, 'test picture')} with {counted(scores.objects, 'object')} ("
        f"{INTERVAL}: {interval(scores.ap)}); {percent(scores.ap50.value)} where {ONE[by]} need only overlap by half "
        f"(AP50). At the threshold that was chosen, {percent(scores.recall.value)} of the objects are found, and "
        f"{percent(scores.precision.value)} of what is shown is right."
    )


def cautions(result: BoxFitted) -> Iterator[tuple[Content, ...]]:
    scores = of_boxes(result).scores
    finds_nothing = scores.ap.value <= chance(result)
    if finds_nothing:
        yield (
            "It finds next to nothing.",
            "Its AP is hardly above 0: do not rely on this model. --minutes gives more time.",
        )
    else:
        if is_guessing(result, chance(result)):
            yield (
                "Not clearly better than nothing.",
                "The interval of its AP reaches down to about 0: do not rely on this model.",
            )
        half = (scores.ap.high - scores.ap.low) / 2
        rough = " A larger test part would narrow it." if half > UNSURE_POINTS else ""
        yield (
            "How certain this number is.",
            f"{counted(scores.pictures, 'test picture')} determine the AP to within about "
            f"\N{PLUS-MINUS SIGN}{100 * half:.1f} points; smaller differences between two models may be chance.{rough}",
        )
    seen = [one for one in scores.per_class if one.ap is not None and one.objects >= FEW_OBJECTS]
    weakest = min(seen, key=lambda one: 0.0 if one.ap is None else one.ap.value, default=None)
    if weakest is not None and weakest.ap is not None and weakest.ap.value < scores.ap.low:
        yield (
            "The weakest class",
            "is ",
            name(weakest.name),
            f", with an AP of {percent(weakest.ap.value)} ({interval(weakest.ap)}) on "
            f"{counted(weakest.objects, 'object')}.",
        )
    absent = [one.name for one in scores.per_class if not one.objects]
    if absent:
        yield "Not measured.", f"No test picture has {listed(absent, 8)}."
    if not finds_nothing and scores.ap75.value < ROUGH_SHARE * scores.ap50.value:
        by = of_boxes(result).by
        yield (
            f"{by.capitalize()} are rough.",
            f"Of an AP50 of {percent(scores.ap50.value)}, {percent(scores.ap75.value)} are left where {by} must "
            "overlap by three quarters: objects are found better than they are outlined. Larger pictures or a longer "
            "training help.",
        )


def cautions_of_confidence(result: BoxFitted) -> Iterator[tuple[Content, ...]]:
    pictures, val = of_boxes(result).validation_pictures, result.data.part("val")
    if not pictures:
        yield "Not calibrated.", "There was no validation part, so its scores are not calibrated."
    elif val is not None and val.boxes is not None and val.boxes.total < FEW_TO_CALIBRATE:
        yield (
            "Roughly calibrated.",
            f"Only {counted(val.boxes.total, 'object')} in {counted(pictures, 'validation picture')} were available to "
            "calibrate the scores and choose the threshold.",
        )
