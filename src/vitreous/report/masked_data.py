"""The data of a model that classifies pixels: how much there is of every class, and pictures under their masks."""

from collections.abc import Sequence

import numpy as np

from vitreous.data.base import Source
from vitreous.data.check import DataReport
from vitreous.data.images import BadPicture
from vitreous.display.palette import palette
from vitreous.display.thumbnails import picture
from vitreous.display.words import counted
from vitreous.prediction.painted import overlay
from vitreous.report.html import Html, folded, name, paragraph, path, table, tag, together
from vitreous.report.words import percent

SHOWN, SHOWN_PX = 12, 240  # pictures
OPACITY = 0.5
LISTED = 20  # pictures of a kind that are named


def balance(data: DataReport, train: Source) -> Html:
    """A bar for every class, in the colour it has on the pictures: its share of the training pixels that count."""
    pixels = data.parts[0].pixels
    assert pixels is not None
    colours, shares = palette(len(data.classes)), pixels.shares()
    most = max(*shares, 1e-9)
    order = sorted(range(len(shares)), key=lambda place: -shares[place])
    bars = [
        tag.div(
            tag.span(name(data.classes[place]), class_="label"),
            tag.span(
                tag.span(style=f"width: {100 * shares[place] / most:.2f}%; background: rgb{colours[place]}"),
                class_="track",
            ),
            tag.span(f"{percent(shares[place], 2)} in {counted(data.train_counts[place], 'picture')}", class_="number"),
        )
        for place in order
    ]
    ignored = pixels.ignored / max(1, pixels.ignored + sum(pixels.counts))
    note = f"Shares of the labelled pixels of train. {percent(ignored)} of all its pixels are ignored."
    return together(tag.div(bars, class_="bars"), paragraph(note, class_="note"), *_problems(data))


def _problems(data: DataReport) -> list[Html]:
    """Classes that a part does not have, and pictures of which no pixel counts."""
    found = []
    for part in data.parts:
        missing = [data.classes[place] for place, count in enumerate(part.counts) if not count]
        if missing:
            found.append(paragraph(f"No pixel of {part.name} is of: ", name(", ".join(missing)), class_="note"))
        if part.pixels is not None and part.pixels.num_blank:
            heading = f"Pictures of {part.name} of which every pixel is ignored: {part.pixels.num_blank:,}"
            found.append(folded(heading, table(("picture",), [(path(one),) for one in part.pixels.blank[:LISTED]])))
    return found


def sheet(train: Source) -> Html:
    """Some pictures, each beside itself under its mask."""
    num = len(train.classes)
    places = np.unique(np.linspace(0, len(train) - 1, min(SHOWN, len(train))).astype(int))
    shown = [pair for place in places if (pair := _pair(train, int(place), num)) is not None]
    note = "Training pictures, spread evenly over the set: as given, and under their masks. Bare pixels are ignored."
    return together(legend(train.classes), tag.div(shown, class_="cards pairs"), paragraph(note, class_="note"))


def legend(classes: Sequence[str]) -> Html:
    """The colour of every class."""
    chips = [
        tag.span(
            tag.span(style=f"display: inline-block; width: 0.9em; height: 0.9em; background: rgb{colour}"),
            " ",
            name(one),
            style="margin-right: 1.1em; white-space: nowrap",
        )
        for one, colour in zip(classes, palette(len(classes)), strict=True)
    ]
    return paragraph(*chips)


def _pair(train: Source, index: int, num: int) -> Html | None:
    try:
        pixels, large = train.sample(index)
    except BadPicture:
        return None
    where = train.where(index)
    return tag.div(
        picture(pixels, where, most_px=SHOWN_PX),
        picture(overlay(pixels, large["mask"], num, OPACITY), f"{where}, under its mask", most_px=SHOWN_PX),
        class_="pair",
    )
