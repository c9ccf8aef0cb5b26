"""What the page has of its own for each kind of task: one line in KINDS."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from vitreous.evaluation.full import ClassEvaluation
from vitreous.evaluation.many import ManyEvaluation
from vitreous.fitting.fit import FitResult
from vitreous.report import class_account, class_page, label_account, label_page
from vitreous.report.html import Content, Html

Cautions = Callable[[FitResult], Iterator[tuple[Content, ...]]]  # a heading, and what follows it
Sections = Callable[[FitResult], tuple[tuple[str, str, Html], ...]]  # id, title, content


class Kind(NamedTuple):
    lead: Callable[[FitResult], Html]  # the sentence after the headline number
    cautions: Cautions
    cautions_of_confidence: Cautions
    results: Sections  # what was measured, and what went wrong
    trust: Sections  # how far its confidence can be trusted
    features: Sections  # what its features know
    told: Callable[[FitResult, int], str]  # what it says of a test picture, as `Source.described` says what is so
    usage: Callable[[FitResult], tuple[str, str]]  # options of `vitreous predict`, and lines of Python


KINDS: dict[type, Kind] = {
    ClassEvaluation: Kind(
        class_account.lead,
        class_account.cautions,
        class_account.cautions_of_confidence,
        class_page.results,
        class_page.trust,
        class_page.features,
        class_page.told,
        class_page.usage,
    ),
    ManyEvaluation: Kind(
        label_account.lead,
        label_account.cautions,
        label_account.cautions_of_confidence,
        label_page.results,
        label_page.trust,
        label_page.features,
        label_page.told,
        label_page.usage,
    ),
}


def kind_of(result: FitResult) -> Kind:
    return KINDS[type(result.evaluation)]
