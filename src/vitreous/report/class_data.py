"""The data of classifiers: how many pictures there are of every class, and what they look like."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from vitreous.data.base import Source
from vitreous.data.check import DataReport
from vitreous.display.thumbnails import picture
from vitreous.display.words import counted
from vitreous.report.html import Html, name, paragraph, tag, together
from vitreous.report.pictures import readable

CHARTED = 30  # classes in the chart of balance; of more, the largest and the smallest
SHEET_CLASSES, SHEET_PICTURES, SHEET_PX = 24, 8, 72  # of the contact sheet


def facts(data: DataReport) -> Iterator[tuple[str, str]]:
    yield "balance", data.class_sizes


def balance(data: DataReport, train: Source) -> Html:
    """Bars of train, drawn by the page itself: names in any writing, at any width."""
    order = sorted(range(len(data.classes)), key=lambda place: -data.train_counts[place])
    most = data.train_counts[order[0]]

    def bars(places: Sequence[int]) -> Html:
        return tag.div(
            [
                tag.div(
                    tag.span(name(data.classes[place]), class_="label"),
                    tag.span(tag.span(style=f"width: {100 * data.train_counts[place] / most:.2f}%"), class_="track"),
                    tag.span(" + ".join(f"{part.counts[place]:,}" for part in data.parts), class_="number"),
                )
                for place in places
            ],
            class_="bars",
        )

    note = f"Bars: train. Numbers: {' + '.join(part.name for part in data.parts)}."
    if len(order) > CHARTED:
        half = CHARTED // 2
        note = f"The {half} largest and the {half} smallest of {len(order):,} classes. {note}"
        order = [*order[:half], *order[-half:]]
    return together(bars(order), paragraph(note, class_="note"))


def _places(train: Source, label: int) -> NDArray[np.int64]:
    """Of the pictures that have a label."""
    found = train.targets.small()
    wanted = found["label"] == label if "label" in found else found["labels"][:, label] > 0
    return np.flatnonzero(wanted.numpy())


def sheet(train: Source) -> Html:
    shown = []
    for label in range(min(len(train.classes), SHEET_CLASSES)):
        places = _places(train, label)
        chosen = places[np.unique(np.linspace(0, len(places) - 1, min(SHEET_PICTURES, len(places))).astype(int))]
        pictures = [
            picture(pixels, train.where(index), most_px=SHEET_PX, square=True)
            for index, pixels in readable(train, chosen.tolist())
        ]
        shown.append(tag.div(tag.div(name(train.classes[label]), class_="label"), tag.div(pictures, class_="strip")))
    left = len(train.classes) - SHEET_CLASSES
    note = "Training pictures, spread evenly over each class; the middle of each is shown."
    if left > 0:
        note += f" {counted(left, 'further class', 'further classes')} not shown."
    return together(tag.div(shown, class_="sheet"), paragraph(note, class_="note"))
