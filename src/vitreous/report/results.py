"""What was measured on the test part: scores, classes, confusions, the surest mistakes."""

from collections.abc import Sequence
from functools import partial

from vitreous.display.thumbnails import picture
from vitreous.display.words import counted
from vitreous.evaluation.figures import NAMED, confusion
from vitreous.evaluation.logits import confident_mistakes
from vitreous.evaluation.metrics import ClassScores, Scores
from vitreous.report.class_judgement import ClassFitted, most_frequent, of_classes
from vitreous.report.figures import inline
from vitreous.report.html import Content, Html, folded, name, paragraph, table, tag, together
from vitreous.report.pictures import readable
from vitreous.report.words import MEASURED, caption, cell, number, percent, share

LISTED = 30  # classes in the open table; of more, those with the lowest recall
NUM_CONFUSIONS, NUM_MISTAKES, MISTAKE_PX = 10, 12, 160


def scores(result: ClassFitted) -> Html:
    found, baseline = of_classes(result).scores, result.account.baseline
    frequent, always = most_frequent(result)
    rows: list[tuple[Content, ...]] = [(tag.b("accuracy (top-1)"), tag.b(share(found.top1)))]
    if len(found.per_class) > 5:
        rows.append(("top-5 accuracy", share(found.top5)))
    rows.append(("balanced accuracy: every class counts the same", share(found.balanced)))
    rows.append(("log-loss", number(found.log_loss)))
    rows.append((together("always ", name(frequent)), share(always)))
    if baseline is not None:
        rows.append((f"logistic regression on pixels, penalty {baseline.penalty:g}", percent(baseline.score)))
    return together(
        table((counted(found.pictures, "test picture"), MEASURED), rows, numbers=(1,)),
        tag.h3("By class"),
        _classes(found),
    )


def _classes(found: Scores) -> Html:
    worst = sorted(found.per_class, key=lambda one: -1.0 if one.recall is None else one.recall.value)
    meaning = paragraph(
        "Recall: of the pictures of a class, how many are recognised. Precision: of the predictions that name it, how "
        "many are right. F1 joins both.",
        class_="note",
    )
    if len(worst) <= LISTED:
        return together(_class_table(found.per_class), meaning)
    low = [one for one in worst if one.recall is not None][:LISTED]
    return together(
        paragraph(f"The {len(low)} classes with the lowest recall, of {len(worst):,}:"),
        _class_table(low),
        folded("All classes", _class_table(found.per_class)),
        meaning,
    )


def _class_table(classes: Sequence[ClassScores]) -> Html:
    rows = [
        (name(one.name), f"{one.pictures:,}", cell(one.recall), cell(one.precision), cell(one.f1)) for one in classes
    ]
    return table(("class", "pictures", "recall (%)", "precision (%)", "F1 (%)"), rows, numbers=(1, 2, 3, 4))


def confusions(result: ClassFitted) -> Html:
    found = of_classes(result).scores
    wrong = sorted(((num, label, taken) for label, taken, num in found.confusion if label != taken), reverse=True)
    rows = [
        (
            name(found.per_class[label].name),
            name(found.per_class[taken].name),
            f"{num:,}",
            percent(num / found.per_class[label].pictures),
        )
        for num, label, taken in wrong[:NUM_CONFUSIONS]
    ]
    caption = "Rows are classes, columns are predictions; everything off the diagonal is wrong."
    if len(found.per_class) > NAMED:
        caption += " Classes are numbered from 0, in the order of the table of all classes."
    frequent = table(("pictures of", "taken for", "how many", "of the class"), rows, numbers=(2, 3)) if rows else None
    return together(
        inline(
            partial(confusion, found),
            "Confusion matrix: rows are labels, columns are predictions",
            caption=caption,
            wide=True,
        ),
        tag.h3("Most frequent confusions"),
        frequent or paragraph("None: every test picture is classified correctly."),
    )


def mistakes(result: ClassFitted) -> Html:
    test = result.splits.test
    assert test is not None
    temperature = of_classes(result).temperature
    worst = {one.id: one for one in confident_mistakes(result.account.test, NUM_MISTAKES, temperature)}
    cards = [
        tag.figure(
            picture(pixels, test.where(index), most_px=MISTAKE_PX),
            tag.figcaption(
                tag.div(tag.b(name(worst[index].predicted)), f" {percent(worst[index].confidence)}"),
                tag.div("labelled ", name(worst[index].label)),
                tag.div(name(caption(test.where(index), result.data.where)), class_="path"),
            ),
        )
        for index, pixels in readable(test, worst)
    ]
    if not cards:
        return paragraph("None: every test picture is classified correctly.")
    return together(
        paragraph(
            "The wrong predictions that the model was most confident of, in bold, with its calibrated confidence. "
            "Wrong labels show up here first: check in each case whether the label or the model is wrong."
        ),
        tag.div(cards, class_="cards"),
    )
