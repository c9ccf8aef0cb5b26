"""The data: how much of what, what is wrong with it, what it looks like."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from vitreous.data.base import Source
from vitreous.data.check import CONFLICTS, NAMED, DataReport
from vitreous.data.kinds import TaskKind
from vitreous.report import boxed_data, class_data, masked_data
from vitreous.report.html import Content, Html, facts, folded, name, paragraph, path, table, tag, together
from vitreous.report.words import percent

LISTED = 20  # problems of a kind that are named; data.json has more

Facts = Iterable[tuple[str, str | Html]]


class Kind(NamedTuple):
    """What is shown of the data of a kind of task."""

    heading: str
    balance: Callable[[DataReport, Source], Html]  # what there is of each class
    sheet: Callable[[Source], Html]  # pictures with what is known of them
    facts: Callable[[DataReport], Facts] = lambda data: ()
    problems: Callable[[DataReport], Content] = lambda data: None


CLASSES = Kind("Pictures of each class", class_data.balance, class_data.sheet, class_data.facts)
OBJECTS = Kind("Objects of each class", boxed_data.balance, boxed_data.sheet, problems=boxed_data.problems)
KINDS: dict[TaskKind, Kind] = {
    "classify": CLASSES,
    "label": CLASSES,
    "segment": Kind("Pixels of each class", masked_data.balance, masked_data.sheet),
    "detect": OBJECTS,
    "instances": OBJECTS,
}


def section(data: DataReport, train: Source) -> Html:
    kind = KINDS[data.task]
    return together(
        _parts(data),
        facts(_looks(data)),
        tag.h3(kind.heading),
        kind.balance(data, train),
        tag.h3("Problems found"),
        _problems(data),
        tag.h3("Contact sheet"),
        kind.sheet(train),
    )


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


def _looks(data: DataReport) -> Facts:
    (low_h, height, high_h), (low_w, width, high_w) = data.heights, data.widths
    yield "source", path(data.where)
    if (low_h, low_w) == (high_h, high_w):
        yield "size", f"{width} x {height} px, all of them"
    else:
        yield "size", f"{low_w} x {low_h} to {high_w} x {high_h} px, median {width} x {height}"
    grey = {0.0: "in colour", 1.0: "all grey"}
    yield "colour", grey.get(data.grey_share, f"{percent(data.grey_share)} grey")
    yield from KINDS[data.task].facts(data)


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
        KINDS[data.task].problems(data),
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
