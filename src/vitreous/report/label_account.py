"""Several labels per picture, in words: how well they are predicted, and what to be careful about."""

from collections.abc import Iterator

from vitreous.display.words import counted
from vitreous.report.class_judgement import ClassFitted, chance_of_labels, of_labels, pixels_score
from vitreous.report.html import Content, Html, name, together
from vitreous.report.judgement import is_guessing, loses_to
from vitreous.report.words import INTERVAL, interval, percent

FEW_OF_A_LABEL = 30  # test pictures, below which a label's own numbers are rough
FEW_TO_CHOOSE = 30  # validation pictures that have a label, below which its threshold is rough


def lead(result: ClassFitted) -> Html:
    scores = of_labels(result).scores
    return together(
        f"mean average precision on {counted(scores.pictures, 'test picture')} with {scores.labels:.1f} labels each "
        f"({INTERVAL}: {interval(scores.mean_average_precision)}). ",
        f"All labels of a picture are right for {percent(scores.all_right.value)}. For comparison: giving labels by "
        f"chance has a mean average precision of {percent(chance_of_labels(result))}{_pixels(result)}.",
    )


def _pixels(result: ClassFitted) -> str:
    found = pixels_score(result)
    return "" if found is None else f", logistic regression on the pixels one of {percent(found)}"


def cautions(result: ClassFitted) -> Iterator[tuple[Content, ...]]:
    scores = of_labels(result).scores
    if is_guessing(result, chance_of_labels(result)):
        yield (
            "Not clearly better than guessing.",
            f"The interval of its mean average precision reaches down to chance ({percent(chance_of_labels(result))}). "
            "Do not rely on this model.",
        )
    if loses_to(result, pixels_score(result)):
        yield (
            "Not clearly better than logistic regression",
            "on the pixels: try more time, or trained weights to start from.",
        )
    half = 50 * (scores.mean_average_precision.high - scores.mean_average_precision.low)
    yield (
        "How certain this number is.",
        f"{counted(scores.pictures, 'test picture')} determine the mean average precision to within about ±{half:.1f} "
        "points; smaller differences between two models may be chance.",
    )
    seen = [one for one in scores.per_class if one.average_precision is not None]
    weakest = min(seen, key=lambda one: one.average_precision.value if one.average_precision else 0.0)
    if len(seen) > 1 and weakest.average_precision is not None and weakest.recall is not None:
        yield (
            "The weakest label",
            "is ",
            name(weakest.name),
            f": average precision {percent(weakest.average_precision.value)}; it is given to "
            f"{percent(weakest.recall.value)} of the {counted(weakest.pictures, 'picture')} that have it.",
        )
    few = sum(one.pictures < FEW_OF_A_LABEL for one in scores.per_class)
    if few:
        yield (
            "Per-label numbers are rough.",
            f"{few} of {len(scores.per_class)} labels are on fewer than {FEW_OF_A_LABEL} test pictures.",
        )


def cautions_of_confidence(result: ClassFitted) -> Iterator[tuple[Content, ...]]:
    found = of_labels(result)
    if not found.validation_pictures or result.account.val is None:
        yield "Not calibrated.", "There was no validation part: a label is given at a probability of one half or more."
        return
    counts = (result.account.val.labels > 0).sum(dim=0)
    rough = int((counts < FEW_TO_CHOOSE).sum())
    if rough:
        yield (
            "Rough thresholds.",
            f"{rough} of {len(counts)} labels are on fewer than {FEW_TO_CHOOSE} validation pictures, on which their "
            "thresholds were chosen.",
        )
