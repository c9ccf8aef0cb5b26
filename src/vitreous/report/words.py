"""Numbers as words of the page, always written the same way."""

from vitreous.display.html import Html, tag, together
from vitreous.evaluation.metrics import Estimate
from vitreous.terminal import duration

DASH = "\N{EN DASH}"
NARROW, UNBROKEN = "\N{NARROW NO-BREAK SPACE}", "\N{NO-BREAK SPACE}"
INTERVAL = f"95{NARROW}% interval"
MEASURED = f"measured ({INTERVAL})"


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}{NARROW}%"


def interval(found: Estimate, digits: int = 1) -> str:
    return f"{100 * found.low:.{digits}f} to {percent(found.high, digits)}"


def share(found: Estimate | None, digits: int = 1) -> str:
    """With its interval, which is not broken into two lines."""
    if found is None:
        return DASH
    return f"{percent(found.value, digits)} ({interval(found, digits).replace(' ', UNBROKEN)})"


def cell(found: Estimate | None) -> Html:
    """The same in a column whose head says that these are per cents; the interval goes below where there is no room."""
    if found is None:
        return together(DASH)
    between = f" ({100 * found.low:.1f}{DASH}{100 * found.high:.1f})"
    return together(f"{100 * found.value:.1f}", tag.span(between, class_="interval"))


def number(found: Estimate) -> str:
    return f"{found.value:.3f} ({found.low:.3f}{UNBROKEN}to{UNBROKEN}{found.high:.3f})"


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 60 else f"{duration(value)} min" if value < 3600 else f"{duration(value)} h"


def large(value: float) -> str:
    """1234567 -> '1.23 M'; FLOPs are counted in these."""
    for size, letter in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g} "


def short(where: str) -> str:
    """The last part of a path."""
    return where.rstrip("/").rsplit("/", maxsplit=1)[-1] or where


def caption(where: str, data: str) -> str:
    """Where a picture lies below its data; elsewhere, with the folder that it lies in."""
    below = data.rstrip("/") + "/"
    return where.removeprefix(below) if where.startswith(below) else "/".join(where.rsplit("/", maxsplit=2)[-2:])
