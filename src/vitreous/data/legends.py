"""Which classes masks hold: from classes.json, from what a file says of itself, or from the masks themselves."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitreous.data.images import BadPicture, Values
from vitreous.data.masks import MOST, ColouredMask, Legend, colour_name, parsed_colour, read_values
from vitreous.data.names import class_rows
from vitreous.data.skipped import listed
from vitreous.data.threads import in_threads
from vitreous.errors import UserError

Stored = Callable[[int], bytes | Path]  # where the mask of a picture is, by the picture's number; raises BadPicture

NUM_PROBES = 16  # masks that are looked at to tell how they are written
MOST_FOUND = 256  # classes that masks without names may hold; more are instances, photos or soft edges
MOST_CLASSES = 32_767  # which 16 bits hold, with one number for what is ignored
IGNORED_VALUE = 255  # of pixels that do not count, in most data sets, where it is no class


class Entry(NamedTuple):
    """What is known of one value, before any mask is read."""

    name: str | None  # None: ignored
    number: int | None = None
    colour: int | None = None


def entries_of(folder: Path) -> list[Entry]:
    """From the folder's classes.json, where it is there. A name of null says that a value is ignored."""
    found = []
    for number, marks, name in class_rows(folder):
        colours = [colour for mark in sorted(marks) if (colour := parsed_colour(mark)) is not None]
        found.append(Entry(name, number if str(number) in marks else None, colours[0] if colours else None))
    return found


def numbered_entries(names: Sequence[str], ignored: Sequence[int] = ()) -> list[Entry]:
    return [Entry(None if number in ignored else name, number) for number, name in enumerate(names)]


def find_legend(
    num: int, stored: Stored, entries: Sequence[Entry], ignored: str | None, where: str
) -> tuple[Legend, tuple[str, ...]]:
    """The legend of `num` masks, and notes on what was decided. `ignored`: values that do not count, as the user
    writes them, in place of 255."""
    probes = _probed(num, stored)
    if entries:
        return _named(entries, probes, ignored, where)
    return _unnamed(num, stored, any(probe is None for probe in probes), ignored, where)


def _probed(num: int, stored: Stored) -> list[set[int] | None]:
    """The numbers in some masks; None where they hold colours."""
    found: list[set[int] | None] = []
    for index in np.unique(np.linspace(0, num - 1, NUM_PROBES).astype(int)):
        try:
            found.append(_present(read_values(stored(int(index)), coloured=False)))
        except ColouredMask:
            found.append(None)
        except BadPicture:
            continue
    return found


def _present(values: Values) -> set[int]:
    small = values.dtype == np.uint8  # counting them takes a fraction of the time of sorting them
    return set((np.flatnonzero(np.bincount(values.ravel())) if small else np.unique(values)).tolist())


def _named(
    entries: Sequence[Entry], probes: Sequence[set[int] | None], ignored: str | None, where: str
) -> tuple[Legend, tuple[str, ...]]:
    have_numbers = any(entry.number is not None for entry in entries)
    have_colours = any(entry.colour is not None for entry in entries)
    are_coloured = 2 * sum(probe is None for probe in probes) > len(probes)
    if are_coloured and not have_colours:
        raise UserError(
            f"{where}: masks hold colours, but classes are given by number. Write classes.json as "
            '{"#804080": "road", ...}.'
        )
    coloured = have_colours and (are_coloured or not have_numbers)
    values: dict[str, list[int]] = {}
    skipped = _parsed(ignored, coloured)
    for entry in entries:
        value = entry.colour if coloured else entry.number
        if value is None:
            raise UserError(f"{where}: the class {entry.name!r} has no {'colour' if coloured else 'number'}.")
        if not coloured and not 0 <= value <= MOST:
            raise UserError(f"{where}: the class {entry.name!r} has the number {value}; numbers go from 0 to {MOST:,}.")
        if entry.name is None or value in skipped:
            skipped.add(value)
        else:
            values.setdefault(entry.name, []).append(value)
    if not 0 < len(values) <= MOST_CLASSES:
        raise UserError(f"{where}: {len(values):,} classes in masks; there must be from 1 to {MOST_CLASSES:,}.")
    present = set().union(*(probe for probe in probes if probe is not None))
    notes: tuple[str, ...] = ()
    is_binary = not coloured and [*values.values()] == [[0], [1]] and 1 not in present
    if is_binary and IGNORED_VALUE in present and IGNORED_VALUE not in skipped:
        _, second = values
        values[second].append(IGNORED_VALUE)
        notes = (f"{where}: {IGNORED_VALUE} in masks is read as {second}, since they hold 0 and {IGNORED_VALUE}",)
    taken = {value for own in values.values() for value in own}
    if ignored is None and not coloured and IGNORED_VALUE not in taken:
        skipped.add(IGNORED_VALUE)
    return Legend(tuple(values), tuple(map(tuple, values.values())), tuple(sorted(skipped)), coloured), notes


def _unnamed(
    num: int, stored: Stored, coloured: bool, ignored: str | None, where: str
) -> tuple[Legend, tuple[str, ...]]:
    """Every value that occurs is a class. All masks are read for that."""
    found: set[int] = set()
    for result in in_threads(num, lambda index: _present(read_values(stored(index), coloured)), f"classes of {where}"):
        found |= set() if isinstance(result, BadPicture) else result
        if len(found) > MOST_FOUND:
            raise UserError(
                f"{where}: masks hold more than {MOST_FOUND} different {'colours' if coloured else 'values'}, too "
                "many for classes. Save masks without soft edges or instances, or name the classes in classes.json."
            )
    skipped = _parsed(ignored, coloured)
    if ignored is None and not coloured and len(found - {IGNORED_VALUE}) > 1:  # 0 and 255 alone are two classes
        skipped = {IGNORED_VALUE}
    values = sorted(found - skipped)
    if not values:
        raise UserError(f"{where}: every pixel of every mask is ignored.")
    names = tuple(colour_name(value) if coloured else str(value) for value in values)
    what = "colours" if coloured else "numbers"
    gone = sorted(found & skipped)
    left = f", {listed([_spelled(value, coloured) for value in gone])} ignored" if gone else ""
    notes = (f"{where}: no classes.json, so classes are named by their {what}: {listed(names)}{left}",)
    return Legend(names, tuple((value,) for value in values), tuple(sorted(skipped)), coloured), notes


def _spelled(value: int, coloured: bool) -> str:
    return colour_name(value) if coloured else str(value)


def _parsed(ignored: str | None, coloured: bool) -> set[int]:
    """'0,255' or '#000000' -> {0, 255} or {0}"""
    found = set()
    for word in (ignored or "").split(","):
        text = word.strip()
        value = parsed_colour(text) if coloured else int(text) if text.isdecimal() else None
        if text and value is None:
            kind = "a colour such as #000000" if coloured else "a number"
            raise UserError(f"--data.layout.ignored: {text!r} is not {kind}, which these masks need.")
        if value is not None:
            found.add(value)
    return found
