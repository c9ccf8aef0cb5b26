"""Pictures without labels: what was made of them, and what they gained."""

from typing import Any

from vitreous.display.words import counted
from vitreous.fitting.fitted import Fitted
from vitreous.fitting.student import STUDENT, Lesson
from vitreous.report.html import Content, Html, name, paragraph, path, table, tag, together
from vitreous.report.words import percent


def section(result: Fitted[Any]) -> Html:
    lesson = result.lesson
    assert lesson is not None
    scores = {one.name: one for one in result.candidates}
    there = (counted(lesson.pictures, "picture"), " without labels in ", path(lesson.where), ". ")
    if lesson.recipe is None:
        return paragraph(*there, f"None were used: {lesson.why_not}.")
    student, before = scores[STUDENT], scores[lesson.teacher]
    assert student.score is not None and before.score is not None
    gained = 100 * (student.score - before.score)
    return together(
        paragraph(
            *there,
            f"The best model without them ({lesson.teacher}, {percent(before.score)} on the validation part) was "
            f"shown {counted(lesson.shown, 'picture')} and labelled {counted(lesson.learned_from, 'picture')} "
            "confidently enough. A student learned from these and from the labels: ",
            tag.b(f"{percent(student.score)}, {gained:+.1f} points"),
            ". It was kept." if student.is_kept else ". That is not a clear gain, so it was not kept.",
        ),
        paragraph(*_leaked(lesson)),
        table(("named", "pictures", "mean confidence"), [_row(one) for one in lesson.by_class], numbers=(1, 2)),
    )


def _leaked(lesson: Lesson) -> tuple[Content, ...]:
    if not lesson.leaked:
        return ("None of them, and no near duplicate, is in the validation or test part.",)
    return (
        f"{counted(lesson.leaked, 'picture')} of them, or near duplicates, are in the validation or test part too, "
        "and were left out.",
    )


def _row(one: Any) -> tuple[Content, ...]:
    return name(one.name), f"{one.pictures:,}", percent(one.confidence) if one.pictures else ""
