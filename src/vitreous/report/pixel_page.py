"""What a report says of a model that classifies pixels: overlays, classes, confusions, calibration."""

from functools import partial

import numpy as np

from vitreous.data.images import BadPicture
from vitreous.display.thumbnails import picture
from vitreous.display.words import counted
from vitreous.evaluation.figures import confusion
from vitreous.evaluation.pixel_figures import class_ious, pixel_reliability
from vitreous.prediction.painted import overlay
from vitreous.prediction.pixel_outcomes import PixelOutcome
from vitreous.prediction.predictor import Predictor
from vitreous.report.examples import chosen
from vitreous.report.figures import inline
from vitreous.report.html import Content, Html, name, paragraph, table, tag, together
from vitreous.report.masked_data import legend
from vitreous.report.pixel_account import PixelFitted, of_pixels
from vitreous.report.words import DASH, MEASURED, caption, percent, share

SHOWN_PX, OPACITY = 224, 0.55
NUM_CONFUSIONS = 10

Sections = tuple[tuple[str, str, Html], ...]


def results(result: PixelFitted) -> Sections:
    return (
        ("examples", "The best, the typical, the worst", examples(result)),
        ("results", "Results", scores(result)),
        ("confusion", "Confusions", confusions(result)),
    )


def trust(result: PixelFitted) -> Sections:
    return (("calibration", "Calibration", calibration(result)),)


def usage(result: PixelFitted) -> tuple[str, str]:
    lines = "print(outcome.shares)  # (class, share of the picture)"
    return " --out masks", f"{lines}\nprint(outcome.labels)  # (height, width) numbers of classes"


# ---- overlays


def examples(result: PixelFitted) -> Html:
    """The best, the typical, the worst."""
    order = sorted(of_pixels(result).scores.picture_ious, key=lambda one: -one[1])
    order = [one for one in order if not np.isnan(one[1])]
    kinds = chosen(order, order[::-1])
    predictor = Predictor.load(result.out)
    return together(
        paragraph("Test pictures: as given, as labelled, as predicted; with the mean IoU of the classes in each."),
        legend(result.card.classes),
        [
            together(tag.h3(kind), [_example(result, predictor, index, iou) for index, iou in some])
            for kind, some in kinds.items()
        ],
    )


def _example(result: PixelFitted, predictor: Predictor, index: int, iou: float) -> Html | None:
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


def scores(result: PixelFitted) -> Html:
    found = of_pixels(result).scores
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
        table((counted(found.pictures, "test picture"), MEASURED), rows, numbers=(1,)),
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


def confusions(result: PixelFitted) -> Html:
    found = of_pixels(result).scores
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
            caption="A row is a class; a column is what its pixels were predicted to be.",
            wide=True,
        ),
        tag.h3("Most frequent confusions"),
        table(("pixels of", "taken for", "of all pixels", "of the class"), rows, numbers=(2, 3))
        if rows
        else paragraph("None: every pixel is right."),
    )


def calibration(result: PixelFitted) -> Html:
    found = of_pixels(result)
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
