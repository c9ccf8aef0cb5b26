"""One class per picture, in words: how often it is right, and what to be careful about."""

from collections.abc import Iterator

from vitreous.data.skipped import listed
from vitreous.display.words import counted
from vitreous.evaluation.calibration import Calibration
from vitreous.evaluation.metrics import ClassScores
from vitreous.fitting.class_choices import IMBALANCE
from vitreous.report.class_judgement import ClassFitted, chance_of_classes, most_frequent, of_classes, pixels_score
from vitreous.report.html import Content, Html, name, together
from vitreous.report.judgement import is_guessing, is_of_pixels, loses_to
from vitreous.report.words import INTERVAL, interval, percent

FEW_OF_A_CLASS = 30  # test pictures, below which a class's own numbers are rough
FEW_TO_CALIBRATE = 100  # validation pictures
WELL_CALIBRATED, POORLY_CALIBRATED = 0.05, 0.1  # calibration errors
UNEVEN = 0.03  # between accuracy and balanced accuracy, from which the difference is named


def lead(result: ClassFitted) -> Html:
    accuracy = of_classes(result).scores.top1
    return together(
        f"of {counted(len(result.account.test), 'test picture')} are classified correctly "
        f"({INTERVAL}: {interval(accuracy)}). ",
        _compared(result),
    )


def _compared(result: ClassFitted) -> Html:
    frequent, share = most_frequent(result)
    baseline = result.account.baseline
    regression = "" if baseline is None else f", and logistic regression on the pixels {percent(baseline.score)}"
    return together(
        "For comparison: always saying the most frequent class, ",
        name(frequent),
        f", gives {percent(share.value)}{regression}.",
    )


def cautions(result: ClassFitted) -> Iterator[tuple[Content, ...]]:
    yield from _about_accuracy(result)
    yield from _about_classes(result)


def _about_accuracy(result: ClassFitted) -> Iterator[tuple[Content, ...]]:
    accuracy, num = of_classes(result).scores.top1, len(result.account.test)
    frequent, share = most_frequent(result)
    if is_guessing(result, chance_of_classes(result)):
        yield (
            "Not clearly better than guessing.",
            "The interval of its accuracy reaches down to what always saying ",
            name(frequent),
            f" gives ({percent(share.value)}). Do not rely on this model.",
        )
    if is_of_pixels(result):
        yield (
            "It is logistic regression on the pixels.",
            "Nothing else that was tried was clearly better: try more time, or trained weights to start from.",
        )
    elif (bar := pixels_score(result)) is not None and loses_to(result, bar):
        yield (
            "Not clearly better than logistic regression",
            f"on the pixels ({percent(bar)}): try more time, or trained weights to start from.",
        )
    half = 100 * (accuracy.high - accuracy.low) / 2
    yield (
        "How certain this number is.",
        f"{counted(num, 'test picture')} determine the accuracy to within about ±{half:.1f} points; smaller "
        "differences between two models may be chance.",
    )


def _about_classes(result: ClassFitted) -> Iterator[tuple[Content, ...]]:
    scores, data = of_classes(result).scores, result.data
    seen = [one for one in scores.per_class if one.recall is not None]
    weakest = min(seen, key=_recall)
    if len(seen) > 1 and _recall(weakest) < scores.top1.low:
        yield (
            "The weakest class",
            "is ",
            name(weakest.name),
            f": {percent(_recall(weakest))} of its {counted(weakest.pictures, 'picture')} are recognised",
            *_mostly_taken_for(result, scores.per_class.index(weakest)),
            ".",
        )
    if data.imbalance > IMBALANCE:
        balance = next((one for one in result.plan.choices if one.name == "balance"), None)
        if balance is not None:
            yield "Unequal classes.", f"{balance.reason[0].upper()}{balance.reason[1:]} (balance: {balance.value})."
    if abs(scores.top1.value - scores.balanced.value) > UNEVEN:
        yield (
            "Accuracy depends on the mix of classes.",
            f"With every class counted the same it is {percent(scores.balanced.value)} ({interval(scores.balanced)}).",
        )
    few = sum(one.pictures < FEW_OF_A_CLASS for one in scores.per_class)
    if few:
        yield (
            "Per-class numbers are rough.",
            f"{few} of {len(scores.per_class)} classes have fewer than {FEW_OF_A_CLASS} test pictures.",
        )
    if data.small_classes:
        yield "Too few to learn from.", f"Training pictures by class: {listed(data.small_classes, 8)}."


def _recall(one: ClassScores) -> float:
    return 0.0 if one.recall is None else one.recall.value


def _mostly_taken_for(result: ClassFitted, label: int) -> tuple[Content, ...]:
    """Where more than half of several mistakes are the same one."""
    wrong = [(num, taken) for row, taken, num in of_classes(result).scores.confusion if row == label != taken]
    num, taken_for = max(wrong, default=(0, 0))
    is_so = num > 1 and 2 * num > sum(count for count, _ in wrong)
    return ("; the others are mostly taken for ", name(result.data.classes[taken_for])) if is_so else ()


def cautions_of_confidence(result: ClassFitted) -> Iterator[tuple[Content, ...]]:
    found = of_classes(result)
    if not found.validation_pictures:
        yield "Not calibrated.", "There was no validation part, so its confidence is not calibrated."
        return
    error = found.after.ece
    yield (
        "Confidence.",
        f"As trained the model was {_manner(found.before)}: mean confidence {percent(found.before.confidence)}, "
        f"calibration error {percent(found.before.ece.value)}. With a temperature of {found.temperature:.2f} the "
        f"error is {percent(error.value)} ({interval(error)}).",
    )
    if error.value > POORLY_CALIBRATED:
        yield (
            "Do not treat its confidence as a probability.",
            f"Even calibrated, it is off by {percent(error.value)}; a better model, or more pictures, would help.",
        )
    if found.validation_pictures < FEW_TO_CALIBRATE:
        yield (
            "Roughly calibrated.",
            f"Only {counted(found.validation_pictures, 'validation picture')} were available to fit the temperature "
            "and the prediction sets.",
        )
    missed = [percent(one.coverage, 0) for one in found.sets if not one.holds]
    if missed:
        yield (
            "Prediction sets that promise too much.",
            f"At {', '.join(missed)} they hold the right class less often than chance explains; test pictures differ "
            "from validation pictures.",
        )


def _manner(found: Calibration) -> str:
    if found.confidence > found.accuracy.high:
        return "too sure of itself"
    if found.confidence < found.accuracy.low:
        return "not sure enough"
    if found.ece.value > WELL_CALIBRATED:
        return "too sure of some predictions and not sure enough of others"
    return "about as sure as it was right"
