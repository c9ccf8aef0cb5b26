"""The data: how much of what, what is wrong with it, what it looks like."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from vitreous.data.base import Source
from vitreous.data.check import CONFLICTS, NAMED, DataReport
from vitreous.display.thumbnails import picture
from vitreous.report import boxed_data, masked_data
from vitreous.report.html import Html, facts, folded, name, paragraph, path, table, tag, together
from vitreous.report.pictures import readable
from vitreous.report.words import counted, percent

CHARTED = 30  # classes in the chart of balance; of more, the largest and the smallest
SHEET_CLASSES, SHEET_PICTURES, SHEET_PX = 24, 8, 72  # of the contact sheet
LISTED = 20  # problems of a kind that are named; data.json has more


def section(data: DataReport, train: Source) -> Html:
    heading, balance, sheet = _of_its_kind(data, train)
    return together(
        _parts(data),
        facts(_looks(data)),
        tag.h3(heading),
        balance,
        tag.h3("Problems found"),
        _problems(data),
        tag.h3("Contact sheet"),
        sheet,
    )


def _of_its_kind(data: DataReport, train: Source) -> tuple[str, Html, Html]:
    """A heading, what there is of each class, and pictures with what is known of them."""
    pixels, boxes = data.parts[0].pixels, data.parts[0].boxes
    if pixels is not None:
        return "Pixels of each class", masked_data.balance(data, pixels), masked_data.sheet(train)
    if boxes is not None:
        return "Boxes of each class", boxed_data.balance(data, train), boxed_data.sheet(train)
    return "Pictures of each class", _balance(data), _contact_sheet(train)


def _parts(data: DataReport) -> Html:
    uses = {"train": "learned from", "val": "for choices and calibration", "test": "measured on"}
    rows = [
        (
            tag.b(part.name),
            f"{part.pictures:,}",
            f"{sum(count > 0 for count in part.counts):,}",
            uses[part.name] + (f"; {len(data.left_out):,} left out" if part.name == "train" and data.left_out else ""),
        )
        for part in data.parts
    ]
    return table(("part", "pictures", "classes", "use"), rows, numbers=(1, 2))


def _looks(data: DataReport) -> Iterable[tuple[str, str | Html]]:
    (low_h, height, high_h), (low_w, width, high_w) = data.heights, data.widths
    yield "source", path(data.where)
    if (low_h, low_w) == (high_h, high_w):
        yield "size", f"{width} x {height} px, all of them"
    else:
        yield "size", f"{low_w} x {low_h} to {high_w} x {high_h} px, median {width} x {height}"
    grey = {0.0: "in colour", 1.0: "all grey"}
    yield "colour", grey.get(data.grey_share, f"{percent(data.grey_share)} grey")
    if data.parts[0].pixels is not None or data.parts[0].boxes is not None:
        return  # the chart tells
    if data.imbalance == 1:
        yield "balance", "every class has the same number of training pictures"
    else:
        yield "balance", f"the largest class has {data.imbalance:.1f} times as many training pictures as the smallest"


def _balance(data: DataReport) -> Html:
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


# ---- Problems


def _problems(data: DataReport) -> Html:
    unreadable = [(part.name, name(one)) for part in data.parts for one in part.unreadable]
    leaks = [(f"{one.part} / {one.also_in}", path(one.picture), path(one.twin), _how(one.equal)) for one in data.leaks]
    twins = [(path(one.one), path(one.other), _how(one.equal)) for one in data.twins]
    conflicts = [(path(one.one), path(one.other), _how(one.equal)) for one in data.two_labels]
    pairs = ("picture", "twin", "equal")
    more = " or more"
    two = CONFLICTS[data.task].capitalize()
    return together(
        boxed_data.problems(data),
        _problem(f"Pictures in two parts: {len(data.leaks):,}", ("parts", *pairs), leaks),
        _problem(f"{two}: {data.num_two_labels:,}", pairs, conflicts),
        _problem(f"Duplicates within a part: {data.num_equal:,} exact, {data.num_near:,} near", pairs, twins),
        _problem(f"Unreadable files: {len(unreadable):,}", ("part", "file, and why"), unreadable),
        _problem(
            "Notes on how the data was read" if data.notes else "Nothing was skipped when the data was opened",
            ("note",),
            [(name(one),) for one in data.notes],
        ),
        _problem(
            f"Tiny pictures: {len(data.tiny):,}{more * (len(data.tiny) == NAMED)}",
            ("picture",),
            [(path(one),) for one in data.tiny],
        ),
        _problem(
            f"Pictures of one colour: {len(data.flat):,}{more * (len(data.flat) == NAMED)}",
            ("picture",),
            [(path(one),) for one in data.flat],
        ),
    )


def _how(equal: bool) -> str:
    return "in every pixel" if equal else "nearly"


def _problem(heading: str, header: tuple[str, ...], rows: Sequence[tuple[str | Html, ...]]) -> Html:
    if not rows:
        return paragraph(heading, class_="fine")
    rest = f"The first {LISTED} are shown; data.json names more." if len(rows) > LISTED else ""
    return folded(heading, table(header, rows[:LISTED]), paragraph(rest, class_="note") if rest else None)


# ---- Contact sheet


def _places(train: Source, label: int) -> NDArray[np.int64]:
    """Of the pictures that have a label."""
    found = train.targets.small()
    wanted = found["label"] == label if "label" in found else found["labels"][:, label] > 0
    return np.flatnonzero(wanted.numpy())


def _contact_sheet(train: Source) -> Html:
    sheet = []
    for label in range(min(len(train.classes), SHEET_CLASSES)):
        places = _places(train, label)
        chosen = places[np.unique(np.linspace(0, len(places) - 1, min(SHEET_PICTURES, len(places))).astype(int))]
        shown = [
            picture(pixels, train.where(index), most_px=SHEET_PX, square=True)
            for index, pixels in readable(train, chosen.tolist())
        ]
        sheet.append(tag.div(tag.div(name(train.classes[label]), class_="label"), tag.div(shown, class_="strip")))
    left = len(train.classes) - SHEET_CLASSES
    note = "Training pictures, spread evenly over each class; the middle of each is shown."
    if left > 0:
        note += f" {counted(left, 'further class', 'further classes')} not shown."
    return together(tag.div(sheet, class_="sheet"), paragraph(note, class_="note"))
