"""How every report begins, whatever was learned: the score, then what to be careful about and what was chosen."""

import re
from collections.abc import Iterator
from typing import Any

from vitreous.data.check import CONFLICTS
from vitreous.display.words import counted
from vitreous.fitting.fitted import Fitted
from vitreous.report.html import Content, Html, bullets, facts, name, paragraph, tag, together
from vitreous.report.judgement import still_learning
from vitreous.report.kinds import kind_of
from vitreous.report.words import percent, short


def headline(result: Fitted[Any]) -> Html:
    return tag.header(
        paragraph("Vitreous fit report", class_="eyebrow"),
        tag.h1(name(short(result.data.where))),
        paragraph(percent(result.evaluation.headline.value), class_="score"),
        paragraph(kind_of(result).lead(result), class_="lead"),
        id="headline",
    )


def account(result: Fitted[Any]) -> Html:
    """A caution is its heading, then its words."""
    choices = result.plan.choices
    return together(
        tag.h3("What to be careful about"),
        bullets(together(tag.b(heading), " ", *map(_with_commands, words)) for heading, *words in _cautions(result)),
        tag.h3("What was chosen, and why"),
        facts(
            [
                (one.name, together(tag.b(name(one.value)), tag.div(_with_commands(one.reason), class_="why")))
                for one in choices
            ]
        ),
        paragraph("Every choice can be overridden; ", tag.code("vitreous fit --help"), " says how.", class_="note"),
    )


def _with_commands(words: Content) -> Content:
    """What stands between backticks, and options."""
    if not isinstance(words, str):
        return words
    parts = re.split(r"(`[^`]+`|--[a-z][\w-]*(?:\.\w+)*)", words)
    return together(tag.code(part.strip("`"), class_="whole") if at % 2 else part for at, part in enumerate(parts))


# ---- What to be careful about


def _cautions(result: Fitted[Any]) -> Iterator[tuple[Content, ...]]:
    kind = kind_of(result)
    yield from kind.cautions(result)
    yield from _about_scoring(result)
    yield from _about_training(result)
    yield from _about_data(result)
    yield from kind.cautions_of_confidence(result)
    yield (
        "Other pictures.",
        "All numbers hold for pictures like the test pictures: other cameras, places or years may be harder.",
    )


def _about_scoring(result: Fitted[Any]) -> Iterator[tuple[Content, ...]]:
    if result.on_a_part:
        yield (
            "Scored on a subset.",
            f"All test numbers are measured{result.on_a_part}, drawn at random before any was read: there was no time "
            "for all. To score them all: ",
            tag.code(f"vitreous evaluate {result.out}"),
            ".",
        )


def _about_training(result: Fitted[Any]) -> Iterator[tuple[Content, ...]]:
    if (loss := still_learning(result)) is not None:
        yield (
            "Still learning when it stopped.",
            "It was trained from scratch, and its validation loss was still falling "
            f"({loss.before:.2f} to {loss.after:.2f} in the last third of training): more training would likely raise "
            f"its {result.evaluation.headline_name}. Try more time (",
            tag.code("--minutes"),
            "), more pictures, or trained weights to start from (",
            tag.code("--from"),
            ").",
        )


def _about_data(result: Fitted[Any]) -> Iterator[tuple[Content, ...]]:
    data = result.data
    if data.left_out:
        num = len(data.left_out)
        yield (
            "Leaks.",
            f"{counted(num, 'training picture')} also {'appears' if num == 1 else 'appear'} in the validation or test "
            "part; left out of training. The test part is unchanged.",
        )
    others = len([leak for leak in data.leaks if leak.part != "train"])
    if others:
        yield (
            "Validation and test overlap.",
            f"{counted(others, 'picture')} in both: calibration may look a little better than it is.",
        )
    if data.num_two_labels:
        yield (
            "Contradictory labels.",
            f"{CONFLICTS[data.task].capitalize()}: {data.num_two_labels:,}. No model can be right about both.",
        )
    unreadable = sum(len(part.unreadable) for part in data.parts)
    if unreadable:
        yield "Unreadable files.", f"{counted(unreadable, 'file')} skipped; named below."
