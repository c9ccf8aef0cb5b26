"""The sections that a model of several labels per picture has of its own."""

from collections.abc import Sequence
from functools import partial

import torch

from vitreous.display.thumbnails import picture
from vitreous.display.words import counted
from vitreous.evaluation.figures import reliability
from vitreous.evaluation.many import LabelMistake, LabelScores, false_labels, label_probabilities, missed_labels
from vitreous.report.class_judgement import ClassFitted, of_labels
from vitreous.report.figures import inline
from vitreous.report.html import Content, Html, folded, name, paragraph, table, tag, together
from vitreous.report.pictures import readable
from vitreous.report.words import MEASURED, caption, cell, number, percent, share

LISTED = 30  # labels in the open table; of more, those with the lowest average precision
NUM_PAIRS, NUM_MISTAKES, MISTAKE_PX = 12, 12, 160

Sections = tuple[tuple[str, str, Html], ...]


def results(result: ClassFitted) -> Sections:
    return (
        ("results", "Results", _scores(result)),
        ("together", "Labels that go together", _together(result)),
        ("mistakes", "Missed and false labels", _mistakes(result)),
    )


def trust(result: ClassFitted) -> Sections:
    return (("calibration", "Calibration", _calibration(result)),)


def told(result: ClassFitted, index: int) -> str:
    evaluation, test = of_labels(result), result.account.test
    probabilities = label_probabilities(test, evaluation.temperature)[test.place(index)]
    given = probabilities >= torch.tensor(evaluation.thresholds)
    return ", ".join(test.classes[one] for one in given.nonzero()[:, 0].tolist())


def usage(result: ClassFitted) -> tuple[str, str]:
    return "", "print(outcome.labels)  # (name, probability) of each that the picture has\nprint(outcome.top(3))"


# ---- what was measured


def _scores(result: ClassFitted) -> Html:
    found = of_labels(result).scores
    rows: list[tuple[Content, ...]] = [
        (tag.b("mean average precision (mAP)"), tag.b(share(found.mean_average_precision))),
        ("F1: mean of the labels", share(found.macro_f1)),
        ("F1: all labels of all pictures together", share(found.micro_f1)),
        ("pictures whose labels are all right", share(found.all_right)),
        ("log-loss, summed over the labels", number(found.log_loss)),
        ("labels per picture", f"{found.labels:.2f}, given {found.labels_given:.2f}"),
    ]
    return together(
        table((counted(found.pictures, "test picture"), MEASURED), rows, numbers=(1,)),
        tag.h3("By label"),
        _labels(found.per_class),
    )


def _labels(labels: Sequence[LabelScores]) -> Html:
    meaning = paragraph(
        "Average precision: how well pictures that have the label are ranked above those that do not, whatever the "
        "threshold. A label is given at its threshold or above; recall: of the pictures that have it, how many get "
        "it; precision: of those that get it, how many have it. F1 joins both.",
        class_="note",
    )
    if len(labels) <= LISTED:
        return together(_label_table(labels), meaning)
    seen = [one for one in labels if one.average_precision is not None]
    low = sorted(seen, key=lambda one: one.average_precision.value if one.average_precision else 0.0)[:LISTED]
    return together(
        paragraph(f"The {len(low)} labels with the lowest average precision, of {len(labels):,}:"),
        _label_table(low),
        folded("All labels", _label_table(labels)),
        meaning,
    )


def _label_table(labels: Sequence[LabelScores]) -> Html:
    rows = [
        (
            name(one.name),
            f"{one.pictures:,}",
            cell(one.average_precision),
            cell(one.f1),
            cell(one.recall),
            cell(one.precision),
            f"{one.threshold:.2f}",
        )
        for one in labels
    ]
    header = ("label", "pictures", "AP (%)", "F1 (%)", "recall (%)", "precision (%)", "threshold")
    return table(header, rows, numbers=range(1, 7))


def _together(result: ClassFitted) -> Html:
    found = of_labels(result).scores
    pairs = [(name(one.one), name(one.other), f"{one.pictures:,}", f"{one.given:,}") for one in found.pairs[:NUM_PAIRS]]
    swaps = [(name(one.missed), name(one.false), f"{one.pictures:,}") for one in found.swaps[:NUM_PAIRS]]
    return together(
        paragraph("Labels that the same pictures have. A model that has learned them gives them together as often."),
        table(("label", "and", "test pictures", "given together"), pairs, numbers=(2, 3))
        if pairs
        else paragraph("No picture has two labels, or gets two.", class_="fine"),
        tag.h3("One for the other"),
        paragraph("A label that a picture has and does not get, and one that it gets and does not have."),
        table(("missed", "given instead", "test pictures"), swaps, numbers=(2,))
        if swaps
        else paragraph("None: no picture misses one label and gets another.", class_="fine"),
    )


def _mistakes(result: ClassFitted) -> Html:
    evaluation = of_labels(result)
    missed = missed_labels(result.account.test, evaluation, NUM_MISTAKES)
    false = false_labels(result.account.test, evaluation, NUM_MISTAKES)
    if not missed and not false:
        return paragraph("None: all labels of all test pictures are right.")
    return together(
        paragraph(
            "Wrong labels in the data show up here first: check for each whether the label or the model is wrong."
        ),
        tag.h3("Missed: the picture has the label, and the model was most confident that it does not"),
        _cards(result, missed) or paragraph("None.", class_="fine"),
        tag.h3("False: the picture does not have the label, and the model was most confident that it does"),
        _cards(result, false) or paragraph("None.", class_="fine"),
    )


def _cards(result: ClassFitted, mistakes: Sequence[LabelMistake]) -> Html | None:
    test = result.splits.test
    assert test is not None
    by_id = {one.id: one for one in mistakes}
    cards = [
        tag.figure(
            picture(pixels, test.where(index), most_px=MISTAKE_PX),
            tag.figcaption(
                tag.div(tag.b(name(by_id[index].label)), f" {percent(by_id[index].probability)}"),
                tag.div("labelled ", name(", ".join(by_id[index].labels) or "with nothing")),
                tag.div(name(caption(test.where(index), result.data.where)), class_="path"),
            ),
        )
        for index, pixels in readable(test, by_id)
    ]
    return tag.div(cards, class_="cards") if cards else None


# ---- how far its probabilities can be trusted


def _calibration(result: ClassFitted) -> Html:
    found = of_labels(result)
    fitted = (
        f"One number, a temperature of {found.temperature:.3f}, and the threshold of each label were fitted on "
        f"{counted(found.validation_pictures, 'validation picture')} and are stored with the model."
        if found.validation_pictures
        else "There was no validation part to fit a temperature on: this is the model as trained."
    )
    shown = [found.before, found.after] if found.validation_pictures else [found.before]
    rows: list[tuple[Content, ...]] = [
        ("expected calibration error", *(share(one.ece) for one in shown)),
        ("the same, bins of equal size", *(share(one.adaptive_ece) for one in shown)),
        ("mean confidence", *(percent(one.confidence) for one in shown)),
        ("decisions that are right", *(share(one.accuracy) for one in shown)),
    ]
    header = ("every yes or no to a label", *(("as trained", "calibrated")[: len(shown)]))
    return together(
        paragraph(
            "Of labels that a calibrated model gives a probability of 80 %, four out of five are there. ", fitted
        ),
        inline(partial(reliability, found.before, found.after if len(shown) > 1 else None), "Reliability of labels"),
        table(header, rows, numbers=range(1, 1 + len(shown))),
    )
