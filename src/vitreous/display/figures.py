"""The look of every figure: one style, drawn without a display, for paper and page alike."""

import functools
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Distinguishable with colour blindness (Okabe and Ito 2008), readable on white and on dark grey.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")
INK = "#010203"  # a page replaces this exact colour by its own text colour

STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlesize": "medium",
    "font.size": 9.0,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",  # text stays text: searchable, readable aloud, recolourable
    "svg.hashsalt": "vitreous",  # so that the same figure gives the same file
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


P = ParamSpec("P")
T = TypeVar("T")


def drawing(draw: Callable[P, T]) -> Callable[P, T]:
    """Decorates a function that draws: the house style applies inside it, and the caller's style is not changed."""

    @functools.wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> T:
        with rc_context(STYLE):
            return draw(*args, **kwargs)

    return styled


def figure(width: float = 6.0, height: float = 3.6) -> Figure:
    """An empty figure, in inches. Without pyplot, so that nothing stays in memory and any thread may draw."""
    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made


def save(drawn: Figure, path: Path) -> None:
    """Saves a PNG to look at and an SVG for papers. `path`: without its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        drawn.savefig(path.with_name(path.name + ".png"), dpi=160, facecolor="white")
        drawn.savefig(path.with_name(path.name + ".svg"), facecolor="white", metadata={"Date": None})


def svg(drawn: Figure) -> str:
    """For a page: transparent, as wide as its place, in the page's text colour (light or dark)."""
    text = io.StringIO()
    with rc_context(STYLE):
        drawn.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    found = re.search(r"<svg.*</svg>", text.getvalue(), flags=re.DOTALL)
    assert found is not None
    inline = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", found.group(), count=1)
    inline = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", inline, count=1)
    return inline.replace(f": {INK}", ": currentColor")
