"""How every report begins, whatever was learned: the score, then what to be careful about and what was chosen."""

from collections.abc import Iterable

from vitreous.fitting.plan import Choice
from vitreous.report.html import Content, Html, bullets, facts, name, paragraph, tag, together
from vitreous.report.words import percent, short


def headline(where: str, score: float, lead: Content) -> Html:
    return tag.header(
        paragraph("Vitreous fit report", class_="eyebrow"),
        tag.h1(name(short(where))),
        paragraph(percent(score), class_="score"),
        paragraph(lead, class_="lead"),
        id="answer",
    )


def account(cautions: Iterable[tuple[Content, ...]], choices: Iterable[Choice]) -> Html:
    """A caution is its heading, then its words."""
    return together(
        tag.h3("What to be careful about"),
        bullets(together(tag.b(heading), " ", *words) for heading, *words in cautions),
        tag.h3("What was chosen, and why"),
        facts([(one.what, together(tag.b(name(one.value)), tag.div(one.why, class_="why"))) for one in choices]),
        paragraph("Every choice can be overridden; ", tag.code("vitreous fit --help"), " says how.", class_="note"),
    )
