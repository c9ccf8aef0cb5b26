"""What the page has of its own for each kind of task: one line in KINDS."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from vitreous.data.kinds import TaskKind
from vitreous.fitting.fitted import Fitted
from vitreous.report import (
    box_account,
    box_page,
    class_account,
    class_page,
    label_account,
    label_page,
    pixel_account,
    pixel_page,
)
from vitreous.report.class_judgement import chance_of_classes, chance_of_labels, pixels_score
from vitreous.report.html import Content, Html

Cautions = Callable[[Fitted[Any]], Iterator[tuple[Content, ...]]]  # a heading, and what follows it
Sections = Callable[[Fitted[Any]], tuple[tuple[str, str, Html], ...]]  # id, title, content


def _nothing(result: Fitted[Any]) -> tuple[tuple[str, str, Html], ...]:
    return ()


class Kind(NamedTuple):
    lead: Callable[[Fitted[Any]], Content]  # the sentence after the headline number
    cautions: Cautions
    cautions_of_confidence: Cautions
    chance: Callable[[Fitted[Any]], float]  # the headline of whoever does not look
    results: Sections  # what was measured, and what went wrong
    trust: Sections  # how far its confidence can be trusted
    usage: Callable[[Fitted[Any]], tuple[str, str]]  # options of `vitreous predict`, and lines of Python
    features: Sections = _nothing  # what its features know
    bar: Callable[[Fitted[Any]], float | None] = lambda result: None  # what logistic regression on pixels scores
    told: Callable[[Fitted[Any], int], str] | None = None  # what it predicts for a test picture, as `Source.described`


OBJECTS = Kind(
    box_account.lead,
    box_account.cautions,
    box_account.cautions_of_confidence,
    box_account.chance,
    box_page.results,
    box_page.trust,
    box_page.usage,
)
KINDS: dict[TaskKind, Kind] = {
    "classify": Kind(
        class_account.lead,
        class_account.cautions,
        class_account.cautions_of_confidence,
        chance_of_classes,
        class_page.results,
        class_page.trust,
        class_page.usage,
        features=class_page.features,
        bar=pixels_score,
        told=class_page.told,
    ),
    "label": Kind(
        label_account.lead,
        label_account.cautions,
        label_account.cautions_of_confidence,
        chance_of_labels,
        label_page.results,
        label_page.trust,
        label_page.usage,
        bar=pixels_score,
        told=label_page.told,
    ),
    "segment": Kind(
        pixel_account.lead,
        pixel_account.cautions,
        pixel_account.cautions_of_confidence,
        pixel_account.chance,
        pixel_page.results,
        pixel_page.trust,
        pixel_page.usage,
    ),
    "detect": OBJECTS,
    "instances": OBJECTS,
}


def kind_of(result: Fitted[Any]) -> Kind:
    return KINDS[result.data.task]
