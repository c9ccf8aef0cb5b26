"""Curves of a run, and the way of any figure into the page."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from vitreous.display.figures import SERIES, drawing, figure, svg
from vitreous.report.html import Html, tag

Rows = Sequence[Mapping[str, Any]]  # of metrics.jsonl

PX_PER_PT = 1.4  # the size at which a figure's 9 pt letters look as the page's small ones


def inline(draw: Callable[[], Figure], alt: str, *, caption: str = "", wide: bool = False) -> Html:
    """A figure in the page, as wide as its place; `wide` ones keep a readable size and scroll in their own box.

    `alt` says what it shows, and names it: no two figures of a page have the same.
    """
    with warnings.catch_warnings():
        # The browser has fonts for names in any writing; matplotlib, which only measures them here, may not.
        warnings.filterwarnings("ignore", message=r"(?s)Glyph .* missing from font")
        drawn = draw()
        markup = svg(drawn)
    width = round(PX_PER_PT * 72 * drawn.get_figwidth())
    least = f"; min-width: {round(0.72 * width)}px" if wide else ""
    image = tag.div(
        Html(_part_of_page(markup, re.sub(r"\W+", "-", alt.lower()))),
        role="img",
        aria_label=alt,
        style=f"max-width: {width}px{least}",
        class_="drawn",
    )
    box = tag.div(image, class_="scroll", tabindex=0) if wide else image
    return tag.figure(box, tag.figcaption(caption) if caption else None)


def _part_of_page(markup: str, own: str) -> str:
    """An SVG without what it needs only as a file of its own; its colours are the page's, for light and dark, and the
    names of its parts begin with its own, which no other figure has. Text, which may be anything, stays as it is."""

    def changed(found: re.Match[str]) -> str:
        words = re.sub(r' xmlns(:\w+)?="[^"]*"', "", found.group())
        words = re.sub(r'\sid="', rf"\g<0>{own}-", words)
        words = re.sub(r'(?:url\(|href=")#', rf"\g<0>{own}-", words)
        for number, colour in enumerate(SERIES):
            words = words.replace(colour, f"var(--series-{number})")
        return words

    markup = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", markup, flags=re.DOTALL)
    return re.sub(r"<[^>]+>", changed, markup)


# ---- Curves


def series(rows: Rows, name: str) -> tuple[list[float], list[float]]:
    """Epochs, and what was logged under that name at their end."""
    found = [(row["epoch"], float(row[name])) for row in rows if name in row]
    return [epoch for epoch, _ in found], [value for _, value in found]


def _marker(values: Sequence[float]) -> str:
    """A line of one point cannot be seen."""
    return "o" if len(values) == 1 else ""


@drawing
def loss_curve(rows: Rows) -> Figure:
    drawn = figure(4.6, 3.0)
    axes = drawn.subplots()
    epochs, values = series(rows, "loss")
    axes.plot(epochs, values, color=SERIES[6], marker=_marker(values), markersize=3.5, linewidth=1.2, label="training")
    for name, label, colour in (
        ("val/log_loss", "validation", SERIES[0]),
        ("val_average/log_loss", "validation, averaged weights", SERIES[1]),
    ):
        epochs, values = series(rows, name)
        if values:
            axes.plot(epochs, values, color=colour, marker="o", markersize=3.5, linewidth=1.2, label=label)
    axes.set(xlabel="epoch", ylabel="loss", xlim=(0, None), ylim=(0, None))
    axes.legend()
    return drawn


@drawing
def headline_curve(rows: Rows, headline: str) -> Figure:
    drawn = figure(4.6, 3.0)
    axes = drawn.subplots()
    for name, label, colour in (
        (f"val/{headline}", "validation", SERIES[0]),
        (f"val_average/{headline}", "validation, averaged weights", SERIES[1]),
    ):
        epochs, values = series(rows, name)
        if values:
            shares = [100 * value for value in values]
            axes.plot(epochs, shares, color=colour, marker="o", markersize=3.5, linewidth=1.2, label=label)
    axes.set(xlabel="epoch", ylabel=f"{headline} (%)", xlim=(0, None))
    axes.legend()
    return drawn


@drawing
def rate_curve(rows: Rows, rate: float) -> Figure:
    drawn = figure(4.6, 3.0)
    axes = drawn.subplots()
    epochs, factors = series(rows, "rate_factor")
    axes.plot(
        epochs,
        [rate * factor for factor in factors],
        color=SERIES[2],
        marker=_marker(factors),
        markersize=3.5,
        linewidth=1.4,
    )
    axes.set(xlabel="epoch", ylabel="learning rate", xlim=(0, None), ylim=(0, None))
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=False)
    return drawn
