"""What a report says of a model that finds objects, by boxes or by shapes: pictures with them, curves, mistakes as
crops, calibration."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from vitreous.data.base import Source
from vitreous.data.images import BadPicture, Picture
from vitreous.data.outlines import run_mask
from vitreous.data.runs import Runs
from vitreous.display.palette import palette
from vitreous.display.thumbnails import picture
from vitreous.display.words import counted
from vitreous.evaluation.box_figures import class_precisions, error_kinds, precision_recall, score_reliability
from vitreous.evaluation.box_scores import TOO_FEW, BoxScores, Mistake, PictureBoxes, ScoreBin, can_be_judged
from vitreous.evaluation.metrics import Estimate
from vitreous.prediction.box_outcomes import BoxOutcome
from vitreous.prediction.drawn_boxes import THUMBNAIL_LINE, Drawn, drawn
from vitreous.prediction.drawn_shapes import DrawnShape, drawn_shapes
from vitreous.prediction.predictor import Predictor
from vitreous.report.box_account import BoxFitted, of_boxes
from vitreous.report.boxed_data import labelled_objects
from vitreous.report.examples import chosen
from vitreous.report.figures import inline
from vitreous.report.html import Content, Html, name, paragraph, table, tag, together
from vitreous.report.masked_data import legend
from vitreous.report.words import DASH, MEASURED, caption, percent, share

SHOWN_PX, CROP_PX = 320, 160
NUM_CROPS = 12  # mistakes
MARGIN = 0.6  # around a crop, in sides of the box
LEAST_CROP_PX = 24
TRUTH = (255, 255, 255)

KINDS = {
    "class": "found, and called something else",
    "place": "found roughly: an overlap of 10 to 50 %",
    "both": "found roughly, and called something else",
    "duplicate": "found again",
    "background": "nothing is there",
    "missed": "not found at all",
}
Sections = tuple[tuple[str, str, Html], ...]


def results(result: BoxFitted) -> Sections:
    found, test = of_boxes(result).scores, result.splits.test
    assert test is not None
    where = result.data.where
    return (
        ("examples", "The best, the typical, the worst", examples(result)),
        ("results", "Results", scores(found)),
        ("errors", "Kinds of error", errors(found)),
        ("alarms", "The surest false alarms", mistakes(found.alarms, test, found, where)),
        ("missed", "Missed objects", mistakes(found.missed, test, found, where)),
    )


def trust(result: BoxFitted) -> Sections:
    return (("calibration", "Calibration", calibration(result)),)


def usage(result: BoxFitted) -> tuple[str, str]:
    by_shapes = of_boxes(result).by == "masks"
    told = "one.shape.area, one.box" if by_shapes else "one.box"
    return f" --out {of_boxes(result).by}", f"for one in outcome.objects():\n    print(one.label, one.score, {told})"


# ---- pictures


def examples(result: BoxFitted) -> Html:
    """By the F1 of what is shown; among equals, the more objects the better known. Where nothing is, and nothing was
    found, there is nothing to see."""
    every = [one for one in of_boxes(result).scores.per_picture if one.objects or one.shown]
    order = sorted(every, key=lambda one: (-one.f1, -one.objects))
    kinds = chosen(order, sorted(order, key=lambda one: (one.f1, -one.objects)))
    predictor = Predictor.load(result.out)
    cards = {kind: [_example(result, predictor, one) for one in some] for kind, some in kinds.items()}
    return together(
        paragraph("Test pictures: as labelled, and as predicted, with the scores from the threshold on."),
        legend(result.card.classes),
        [together(tag.h3(kind), tag.div(some, class_="cards pairs wide")) for kind, some in cards.items()],
    )


def _example(result: BoxFitted, predictor: Predictor, one: PictureBoxes) -> Html | None:
    test = result.splits.test
    assert test is not None
    pixels = _read(test, one.id)
    if pixels is None:
        return None
    found, where = predictor(pixels), test.where(one.id)
    assert isinstance(found, BoxOutcome)
    labelled = labelled_objects(test, one.id, pixels, named=True)
    shown = (("as labelled", labelled), ("as predicted", found.drawn(pixels)))
    words = f"{one.right} of {counted(one.objects, 'object')} found, {counted(one.shown - one.right, 'false alarm')} "
    return tag.figure(
        tag.div([picture(each, f"{where}, {what}", most_px=SHOWN_PX) for what, each in shown], class_="pair"),
        tag.figcaption(words, tag.span(name(caption(where, result.data.where)), class_="path")),
    )


def mistakes(listed: Sequence[Mistake], test: Source, found: BoxScores, data: str) -> Html:
    """As crops: what was said in the colour of its class, as a box or as a shape; a white box around the object that it
    is about."""
    if not listed:
        return paragraph("None.")
    colours = dict(zip((one.name for one in found.per_class), palette(len(found.per_class)), strict=True))
    cards = [_crop(one, test, colours[one.label], data) for one in listed[:NUM_CROPS]]
    if listed[0].kind == "missed":
        words = f"The largest objects that no detection with a score of {found.least} matches."
    else:
        words = (
            "The wrong detections that the model was most confident of, with a white box around the object that each "
            "belongs to. Missing and wrong labels show up here first: check in each case whether the label or the "
            "model is wrong."
        )
    return together(paragraph(words), tag.div(cards, class_="cards"))


def _crop(one: Mistake, test: Source, colour: tuple[int, int, int], data: str) -> Html | None:
    pixels = _read(test, one.picture)
    if pixels is None:
        return None
    boxes = [one.box] if one.object_box is None else [one.box, one.object_box]
    left, top, right, bottom = _around(np.array(boxes), pixels.shape)
    frames = [] if one.object_box is None else [Drawn(one.object_box, TRUTH)]
    if one.shape is None:
        frames.append(Drawn(one.box, colour))
    else:
        runs = Runs.of(run_mask({"size": pixels.shape[:2], "counts": one.shape}), pixels.shape[:2])
        pixels = drawn_shapes(pixels, [DrawnShape(runs, colour)], words=False)
    moved = [
        frame._replace(box=(frame.box[0] - left, frame.box[1] - top, frame.box[2] - left, frame.box[3] - top))
        for frame in frames
    ]
    where = test.where(one.picture)
    said = "" if one.score is None else f" {percent(one.score)}"
    about = None if one.object is None or one.object == one.label else tag.div("labelled ", name(one.object))
    return tag.figure(
        picture(drawn(pixels[top:bottom, left:right], moved, CROP_PX, THUMBNAIL_LINE), where, most_px=2 * CROP_PX),
        tag.figcaption(
            tag.div(tag.b(name(one.label)), said),
            tag.div(KINDS[one.kind]),
            about,
            tag.div(name(caption(where, data)), class_="path"),
        ),
    )


def _around(boxes: np.ndarray, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """A part of the picture with room around all of them, as left, top, right, bottom."""
    low, high = boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)
    room = np.maximum((high - low) * MARGIN, (LEAST_CROP_PX - (high - low)) / 2)
    size = np.array([shape[1], shape[0]])
    first = np.clip(np.floor(low - room), 0, size - 1).astype(int)
    last = np.clip(np.ceil(high + room), first + 1, size).astype(int)
    return int(first[0]), int(first[1]), int(last[0]), int(last[1])


def _read(test: Source, index: int) -> Picture | None:
    try:
        return test.read(index)
    except BadPicture:
        return None


# ---- numbers


def scores(found: BoxScores) -> Html:
    shown = f"scores of {found.least}"
    rows: list[tuple[Content, ...]] = [
        (tag.b("AP: mean over classes and overlaps of 50 to 95 %"), tag.b(share(found.ap))),
        ("AP50: an overlap of 50 % is enough", share(found.ap50)),
        ("AP75: 75 % is required", share(found.ap75)),
        *((f"AP of {one.size} objects ({one.objects:,})", share(one.ap)) for one in found.by_size),
        (f"precision, {shown}", share(found.precision)),
        (f"recall, {shown}", share(found.recall)),
    ]
    by_class = [
        (
            name(one.name),
            f"{one.objects:,}",
            share(one.ap),
            share(one.ap50),
            DASH if one.recall is None else percent(one.recall),
            DASH if one.precision is None else percent(one.precision),
        )
        for one in found.per_class
    ]
    of = f"{counted(found.pictures, 'test picture')}, {counted(found.objects, 'object')}"
    return together(
        table((of, MEASURED), rows, numbers=(1,)),
        paragraph(
            "Intervals are over pictures. Small objects are below 32 x 32 px of the picture as it came, large ones "
            "above 96 x 96 px.",
            class_="note",
        ),
        tag.h3("By class"),
        inline(partial(class_precisions, found), "AP of each class"),
        table(("class", "objects", "AP", "AP50", "recall", "precision"), by_class, numbers=range(1, 6)),
        tag.h3("Precision and recall"),
        inline(
            partial(precision_recall, found),
            "Precision against recall",
            caption="Each threshold of the score is a point on these lines: the lower, the further to the right.",
        ),
    )


def errors(found: BoxScores) -> Html:
    rows = [
        (tag.b(one.kind), KINDS[one.kind], f"{one.number:,}", f"{100 * one.ap50:.1f}")
        for one in sorted(found.errors, key=lambda one: -one.ap50)
    ]
    worst = max(found.errors, key=lambda one: one.ap50)
    return together(
        paragraph(
            "What a wrong detection got wrong (Bolya et al. 2020), and what AP50 would gain if there were no errors "
            f"of that kind. Most is lost to errors of the kind {worst.kind!r}."
        ),
        inline(partial(error_kinds, found), "Kinds of error"),
        table(
            ("error", "", f"number, scores of {found.least}", "AP50 lost by it, in points"),
            rows,
            numbers=(2, 3),
        ),
    )


def _error(ece: Estimate, bins: Sequence[ScoreBin]) -> str:
    return share(ece) if can_be_judged(bins) else f"unknown ({TOO_FEW})"


def calibration(result: BoxFitted) -> Html:
    found = of_boxes(result)
    fitted = (
        f"Scores were calibrated on {counted(found.validation_pictures, 'validation picture')}: their error went from "
        f"{_error(found.ece_before, found.bins_before)} to {_error(found.scores.ece, found.scores.bins)}."
        if found.validation_pictures
        else f"There was no validation part to calibrate scores on: their error is "
        f"{_error(found.scores.ece, found.scores.bins)}."
    )
    thresholds = [(percent(wished, 0), f"{least:.3f}") for wished, least in found.calibration.thresholds]
    which = "the last of these" if len(thresholds) > 1 else "this one"
    return together(
        paragraph(
            "Of detections with a score of 80 %, four out of five should be right: an object of that class is there, "
            "with an overlap of at least one half. " + fitted
        ),
        inline(partial(score_reliability, found), "Reliability of scores"),
        tag.h3("What to show"),
        table(("share of shown objects that is right", "score threshold"), thresholds, numbers=(0, 1))
        if thresholds
        else paragraph("At no score is more than half of what is shown reliably right."),
        paragraph(
            "Chosen conservatively on validation pictures: "
            f"--precision {found.calibration.thresholds[-1][0]:g} asks for {which}.",
            class_="note",
        )
        if thresholds
        else None,
    )
