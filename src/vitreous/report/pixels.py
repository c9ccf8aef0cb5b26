"""What a report says of a model that classifies pixels: overlays, classes, confusions, calibration."""

import shlex
from collections.abc import Iterator
from functools import partial

import numpy as np

from vitreous.data.images import BadPicture
from vitreous.display.thumbnails import picture
from vitreous.evaluation.figures import confusion
from vitreous.evaluation.pixel_figures import class_ious, pixel_reliability
from vitreous.evaluation.pixel_scores import PixelEvaluation
from vitreous.fitting.pixels import PixelFit
from vitreous.prediction.painted import overlay
from vitreous.prediction.pixel_outcomes import PixelOutcome
from vitreous.prediction.predictor import Predictor
from vitreous.report import cost, dataset, inside, learning, opening, provenance
from vitreous.report.figures import inline
from vitreous.report.html import Content, Html, command, name, paragraph, table, tag, together
from vitreous.report.masked_data import legend
from vitreous.report.words import DASH, caption, counted, interval, percent, share

SHOWN_PX, OPACITY = 224, 0.55
NUM_SHOWN = 3  # pictures of each kind: the best, the typical, the worst
NUM_CONFUSIONS = 10
UNSURE_POINTS = 0.05  # half of an interval, from which it is said that the number is rough


def sections(result: PixelFit) -> tuple[tuple[str, str, Html], ...]:
    return (
        ("account", "In plain words", opening.account(_cautions(result), result.plan.choices)),
        ("examples", "The best, the typical, the worst", examples(result)),
        ("results", "Results", scores(result)),
        ("confusion", "Confusions", confusions(result)),
        ("data", "The data", dataset.section(result.data, result.splits.train)),
        ("training", "Training", learning.section(result)),
        ("calibration", "Calibration", calibration(result)),
        ("figure7", "Filters, positions, reach", inside.drawn(result.findings)),
        ("cost", "Cost", cost.section(result)),
        ("use", "How to use it", uses(result)),
        ("provenance", "Provenance", provenance.section(result)),
    )


def headline(result: PixelFit) -> Html:
    scores = _of(result).scores
    return opening.headline(
        result.data.where,
        scores.miou.value,
        f"mIoU on {counted(scores.pictures, 'test picture')} (95 % interval: {interval(scores.miou)}): what the "
        "model takes for a class and what is labelled so overlap by this share, on average over the classes. Of "
        f"single pixels, {percent(scores.pixel_accuracy.value)} are right.",
    )


def _cautions(result: PixelFit) -> Iterator[tuple[Content, ...]]:
    scores = _of(result).scores
    half = (scores.miou.high - scores.miou.low) / 2
    rough = " A larger test part would tell more." if half > UNSURE_POINTS else ""
    yield (
        "How sure the number is.",
        f"{counted(scores.pictures, 'test picture')} tell the mIoU to about \N{PLUS-MINUS SIGN}{100 * half:.1f} "
        f"points; smaller differences between two models may be chance.{rough}",
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
        yield "Not measured.", f"No test picture has {', '.join(absent[:8])}."
    if scores.boundary_f.value < scores.miou.value:
        yield (
            "Outlines are rougher than areas.",
            f"The boundary F-score is {share(scores.boundary_f)}: sizes and places of things are known better than "
            "their edges. Smaller patches or larger pictures help.",
        )
    if not _of(result).validation_pictures:
        yield "Not calibrated.", "There was no validation part, so its confidence is as training left it."
    yield "Other pictures.", "All numbers hold for pictures like the test pictures."


def _of(result: PixelFit) -> PixelEvaluation:
    assert isinstance(result.evaluation, PixelEvaluation)
    return result.evaluation


# ---- overlays


def examples(result: PixelFit) -> Html:
    """The best, the typical, the worst."""
    order = sorted(_of(result).scores.picture_ious, key=lambda one: -one[1])
    order = [one for one in order if not np.isnan(one[1])]
    middle = max(0, len(order) // 2 - NUM_SHOWN // 2)
    kinds = {
        "The best": order[:NUM_SHOWN],
        "The typical": order[middle : middle + NUM_SHOWN],
        "The worst": order[::-1][:NUM_SHOWN],
    }
    predictor = Predictor.load(result.out)
    return together(
        paragraph("Test pictures: as given, as labelled, as predicted; with the mean IoU of the classes in each."),
        legend(result.card.classes),
        [
            together(tag.h3(kind), [_example(result, predictor, index, iou) for index, iou in chosen])
            for kind, chosen in kinds.items()
        ],
    )


def _example(result: PixelFit, predictor: Predictor, index: int, iou: float) -> Html | None:
    test, num = result.splits.test, len(result.card.classes)
    assert test is not None
    try:
        pixels, large = test.sample(index)
    except BadPicture:
        return None
    found = predictor(pixels)
    assert isinstance(found, PixelOutcome)
    shown = (
        ("as given", pixels),
        ("as labelled", overlay(pixels, large["mask"], num, OPACITY)),
        ("as predicted", overlay(pixels, found.labels, num, OPACITY)),
    )
    where = test.where(index)
    return tag.figure(
        tag.div(
            [picture(one, f"{where}, {what}", most_px=SHOWN_PX) for what, one in shown],
            class_="pair",
            style="grid-template-columns: repeat(3, minmax(0, 1fr))",
        ),
        tag.figcaption(f"IoU {percent(iou)} ", tag.span(name(caption(where, result.data.where)), class_="path")),
    )


# ---- numbers


def scores(result: PixelFit) -> Html:
    found = _of(result).scores
    rows: list[tuple[Content, ...]] = [
        (tag.b("mIoU"), tag.b(share(found.miou))),
        ("pixel accuracy", share(found.pixel_accuracy)),
        ("class accuracy: every class counts the same", share(found.class_accuracy)),
        ("boundary F-score, within 0.75 % of the diagonal", share(found.boundary_f)),
    ]
    by_class = [
        (
            name(one.name),
            percent(one.share),
            f"{one.pictures:,}",
            share(one.iou),
            _percent(one.recall),
            _percent(one.precision),
        )
        for one in found.per_class
    ]
    return together(
        table((counted(found.pictures, "test picture"), "measured (95 % interval)"), rows, numbers=(1,)),
        paragraph("Intervals are over pictures: pixels of one picture are alike.", class_="note"),
        tag.h3("By class"),
        inline(partial(class_ious, found), "IoU of each class"),
        table(("class", "pixels", "pictures", "IoU", "recall", "precision"), by_class, numbers=range(1, 6)),
        paragraph(
            "IoU: pixels both labelled and predicted so, over pixels either labelled or predicted so.", class_="note"
        ),
    )


def _percent(value: float | None) -> str:
    return DASH if value is None else percent(value)


def confusions(result: PixelFit) -> Html:
    found = _of(result).scores
    counts = np.array(found.confusion)
    of_label = np.maximum(counts.sum(axis=1), 1)
    wrong = sorted(
        ((int(counts[row, column]), row, column) for row, column in np.argwhere(counts) if row != column), reverse=True
    )
    rows = [
        (
            name(found.per_class[row].name),
            name(found.per_class[column].name),
            percent(num / counts.sum(), 2),
            percent(num / of_label[row]),
        )
        for num, row, column in wrong[:NUM_CONFUSIONS]
    ]
    return together(
        inline(
            partial(confusion, found),
            "Confusion matrix: rows are labels, columns are predictions",
            caption="A row is a class, a column what its pixels were taken for.",
            wide=True,
        ),
        tag.h3("Most frequent confusions"),
        table(("pixels of", "taken for", "of all pixels", "of the class"), rows, numbers=(2, 3))
        if rows
        else paragraph("None: every pixel is right."),
    )


def calibration(result: PixelFit) -> Html:
    found = _of(result)
    fitted = (
        f"A temperature of {found.temperature:.3f} was fitted on "
        f"{counted(found.validation_pictures, 'validation picture')} and is stored with the model. The calibration "
        f"error of single pixels went from {share(found.ece_before)} to {share(found.scores.ece)}."
        if found.validation_pictures
        else f"There was no validation part to fit a temperature on: the error of pixels is {share(found.scores.ece)}."
    )
    return together(
        paragraph("Of pixels that the model is 80 % sure of, four out of five should be right. " + fitted),
        inline(partial(pixel_reliability, found.scores), "Reliability of single pixels"),
    )


def uses(result: PixelFit) -> Html:
    run = shlex.quote(str(result.out))
    listed = (
        ("Masks, overlays, polygons and shares of pictures", f"vitreous predict {run} FOLDER_OF_PICTURES --out masks"),
        ("Measure it again, or on other pictures of the same classes", f"vitreous evaluate {run}"),
        ("Take it elsewhere, as an ONNX file with a certificate", f"vitreous export {run} --to onnx"),
        ("Serve it, with a page to try it on", f"vitreous serve {run}"),
    )
    python = f"""\
from vitreous import Predictor

predictor = Predictor.load({str(result.out)!r})
outcome = predictor("picture.jpg")
print(outcome.shares)  # (class, share of the picture)
print(outcome.labels)  # (height, width) numbers of classes"""
    return together(
        [together(paragraph(what, class_="use"), command(words)) for what, words in listed],
        paragraph("From Python", class_="use"),
        command(python),
    )
