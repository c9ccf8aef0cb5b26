"""The paper's Figures 3, 4 and 5, and lines and bars for the other studies: means over seeds, with their spread."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogFormatterSciNotation, LogLocator, NullFormatter, PercentFormatter

from vitreous.display.figures import SERIES, drawing, figure
from vitreous.studies.curve import PowerLaw
from vitreous.studies.grid import Row

LOOK = {
    "ViT": (SERIES[0], "o"),
    "hybrid": (SERIES[1], "D"),
    "ResNet": (SERIES[2], "s"),
    "Swin": (SERIES[3], "^"),
    "PVT": (SERIES[4], "v"),
    "ConvNeXt": (SERIES[5], "P"),
}
MARKERS = "osD^vP*X"
BARS = "standard deviation over the seeds"  # what error bars show
NOTE_PLACES = ((0, 9), (0, -9), (13, 0), (-13, 0))  # offsets from a data point, in points: series often share one


@dataclass(frozen=True)
class Panel:
    title: str
    rows: Sequence[Row]
    value: str  # the column that is drawn
    label: str  # of the vertical axis


@dataclass(frozen=True)
class Point:
    x: float
    mean: float
    spread: float  # standard deviation over the seeds; 0 for one
    row: Row


def points(rows: Sequence[Row], x: str, value: str) -> list[Point]:
    """One for every x, over the seeds, in order of x."""
    found: dict[float, list[Row]] = {}
    for row in rows:
        if row.get(value) is not None and row.get(x) is not None:
            found.setdefault(row[x], []).append(row)
    return [
        Point(
            at,
            statistics.fmean(row[value] for row in some),
            statistics.stdev(row[value] for row in some) if len(some) > 1 else 0.0,
            some[0],
        )
        for at, some in sorted(found.items())
    ]


# ---- Figures 3 and 4: accuracy against the share of the data


@drawing
def curves_figure(panels: Sequence[Panel], x: str, x_label: str) -> Figure:
    """One line per model: colour and marker by family, larger markers for larger models, as in the paper."""
    rows = [row for panel in panels for row in panel.rows]
    drawn = figure(3.3 * len(panels) + 1.5, _height(rows))
    axes = drawn.subplots(1, len(panels), squeeze=False)[0]
    sizes = _marker_sizes(rows)
    for ax, panel in zip(axes, panels, strict=True):
        for model in dict.fromkeys(row["model"] for row in panel.rows):
            some = points([row for row in panel.rows if row["model"] == model], x, panel.value)
            if some:
                _errorbar(ax, some, some[0].row["family"], sizes[model], joined=True)
        ax.set_xscale("log")
        shares = sorted({row[x] for row in rows if row.get(x) is not None})
        ax.set_xticks(shares, [f"{100 * share:g} %" for share in shares])
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set(title=panel.title, ylabel=panel.label)
        _percent(ax)
    drawn.supxlabel(x_label, fontsize="medium")
    _model_legend(drawn, rows, sizes)
    return drawn


# ---- Figure 5: accuracy against compute


@drawing
def scaling_figure(panels: Sequence[Panel], curves: Sequence[dict[str, PowerLaw]]) -> Figure:
    rows = [row for panel in panels for row in panel.rows]
    drawn = figure(3.3 * len(panels) + 1.5, _height(rows))
    axes = drawn.subplots(1, len(panels), squeeze=False)[0]
    sizes = _marker_sizes(rows)
    for ax, panel, laws in zip(axes, panels, curves, strict=True):
        for model in dict.fromkeys(row["model"] for row in panel.rows):
            some = points([row for row in panel.rows if row["model"] == model], "pretraining_flops", panel.value)
            if some:
                _errorbar(ax, some, some[0].row["family"], sizes[model], joined=False)
        for family, law in laws.items():
            reached = [row["pretraining_flops"] for row in panel.rows if row["family"] == family]
            compute = np.geomspace(min(reached), max(reached), 100)
            ax.plot(compute, 1 - law.error(compute), color=_look(family)[0], linewidth=1.2, alpha=0.8, zorder=1)
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        ax.xaxis.set_major_formatter(LogFormatterSciNotation(labelOnlyBase=False, minor_thresholds=(99, 99)))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set(title=panel.title, ylabel=panel.label)
        _percent(ax)
    drawn.supxlabel("pre-training compute (FLOP)", fontsize="medium")
    _model_legend(drawn, rows, sizes, fitted=any(curves))
    return drawn


def _errorbar(ax: Axes, some: Sequence[Point], family: str, size: float, joined: bool) -> None:
    colour, marker = _look(family)
    ax.errorbar(
        [point.x for point in some],
        [point.mean for point in some],
        yerr=[point.spread for point in some],
        color=colour,
        marker=marker,
        markersize=size,
        markeredgecolor="white",
        markeredgewidth=0.5,
        linewidth=1.2 if joined else 0.0,
        elinewidth=1.0,
        capsize=2.0,
        alpha=0.9,
    )


def _height(rows: Sequence[Row]) -> float:
    """In inches: the legend has one line per model, and two more."""
    return max(3.6, 0.25 * (len({row["model"] for row in rows}) + 2))


def _look(family: str) -> tuple[str, str]:
    """Colour and marker."""
    return LOOK.get(family, (SERIES[6], "X"))


def _marker_sizes(rows: Sequence[Row]) -> dict[str, float]:
    """By the logarithm of the number of parameters."""
    parameters = {row["model"]: float(row["encoder_parameters"]) for row in rows}
    if not parameters:
        return {}
    least, most = min(parameters.values()), max(parameters.values())
    widest = np.log(max(most / least, 4.0))  # models of nearly the same size get similar markers
    return {model: 4.5 + 3.5 * float(np.log(number / least) / widest) for model, number in parameters.items()}


def _model_legend(drawn: Figure, rows: Sequence[Row], sizes: dict[str, float], fitted: bool = False) -> None:
    models = {row["model"]: row for row in rows}
    families = [*LOOK, *(row["family"] for row in rows)]
    order = sorted(models, key=lambda model: (families.index(models[model]["family"]), sizes[model]))
    handles = [
        Line2D(
            [],
            [],
            color=_look(models[model]["family"])[0],
            marker=_look(models[model]["family"])[1],
            markersize=sizes[model],
            markeredgecolor="white",
            linewidth=0.0 if fitted else 1.2,
            label=f"{model}  {models[model]['encoder_parameters'] / 1e6:.2g} M",
        )
        for model in order
    ]
    if fitted:
        handles.append(Line2D([], [], color=SERIES[6], linewidth=1.2, label="fit, by family"))
    if len({row["seed"] for row in rows}) > 1:
        handles.append(_bar_explained())
    if handles:
        drawn.legend(handles=handles, loc="outside right center", fontsize="small", labelspacing=0.9)


def _bar_explained() -> Line2D:
    """An error bar for the legend."""
    return Line2D(
        [], [], color=SERIES[6], marker="|", markersize=11, linewidth=0.0, label=BARS.replace(" over", "\nover")
    )


# ---- Lines and bars


@drawing
def lines_figure(
    rows: Sequence[Row],
    x: str,
    series: str,
    value: str,
    *,
    title: str,
    labels: tuple[str, str],
    log_y: bool = False,
    note: str | None = None,
) -> Figure:
    """One line per series over a logarithmic x; `note` names a column that is written beside each point."""
    drawn = figure(5.6, 3.6)
    ax, with_bars = drawn.subplots(), False
    for number, name in enumerate(dict.fromkeys(row[series] for row in rows)):
        some = points([row for row in rows if row[series] == name], x, value)
        if not some:
            continue
        with_bars |= any(point.spread for point in some)
        colour = SERIES[number % len(SERIES)]
        ax.errorbar(
            [point.x for point in some],
            [point.mean for point in some],
            yerr=[point.spread for point in some],
            color=colour,
            marker=MARKERS[number % len(MARKERS)],
            markersize=5.5,
            linewidth=1.3,
            elinewidth=1.0,
            capsize=2.0,
            label=str(name),
        )
        for point in some if note else ():
            _annotate(ax, str(point.row[note or ""]), point, number, colour)
    ax.set_xscale("log")
    places = sorted({row[x] for row in rows if row.get(x) is not None})
    if 0 < len(places) <= 8 and not note:
        ax.set_xticks(places, [f"{place:g}" for place in places])
        ax.xaxis.set_minor_formatter(NullFormatter())
    else:
        _label_1_2_5(ax.xaxis, "g")
    ax.margins(0.1)
    ax.set(title=title, xlabel=labels[0], ylabel=labels[1])
    if log_y:
        ax.set_yscale("log")
        _label_1_2_5(ax.yaxis, ",.0f")
    else:
        _percent(ax)
    if ax.has_data():
        handles, _ = ax.get_legend_handles_labels()
        ax.legend(handles=[*handles, _bar_explained()] if with_bars else handles, fontsize="small")
    return drawn


def _label_1_2_5(axis: Axis, form: str) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5 times every power of ten."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda number, _: format(number, form)))
    axis.set_minor_formatter(NullFormatter())


def _annotate(ax: Axes, text: str, point: Point, number: int, colour: str) -> None:
    """Beside a point, where notes of other series are not."""
    ax.annotate(
        text,
        (point.x, point.mean),
        NOTE_PLACES[number % len(NOTE_PLACES)],
        textcoords="offset points",
        ha="center",
        va="center",
        fontsize="x-small",
        color=colour,
    )


@drawing
def bars_figure(rows: Sequence[Row], category: str, series: str, value: str, *, title: str, label: str) -> Figure:
    """Means with error bars, one row per category, so that long names and small differences are legible."""
    rows = [row for row in rows if row.get(value) is not None]
    categories = list(dict.fromkeys(row[category] for row in rows))
    names = list(dict.fromkeys(row[series] for row in rows))
    drawn = figure(
        6.2, 1.3 + 0.2 * max(1, sum(len(_series_of(rows, category, one, series)) + 0.8 for one in categories))
    )
    ax = drawn.subplots()
    place, ticks, with_bars = 0.0, [], False
    for one in categories:
        present = [name for name in names if name in _series_of(rows, category, one, series)]
        ticks.append(place + (len(present) - 1) / 2)
        for name in present:
            values = [row[value] for row in rows if row[category] == one and row[series] == name]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            number = names.index(name)
            ax.errorbar(
                statistics.fmean(values),
                place,
                xerr=spread,
                color=SERIES[number % len(SERIES)],
                marker=MARKERS[number % len(MARKERS)],
                markersize=6,
                capsize=2.5,
                linestyle="none",
                label=str(name),
            )
            with_bars |= spread > 0
            place += 1.0
        place += 0.8
    ax.set_yticks(ticks, [str(one) for one in categories], parse_math=False)
    ax.set_ylim(place - 0.8, -1.0)  # the first on top
    ax.set(title=title, xlabel=f"{label} (bars: {BARS})" if with_bars else label)
    _percent(ax, axis="x")
    handles, words = ax.get_legend_handles_labels()
    unique = dict(zip(words, handles, strict=True))
    if names:
        drawn.legend(unique.values(), unique.keys(), loc="outside lower center", fontsize="small", ncols=3)
    return drawn


def _series_of(rows: Sequence[Row], category: str, one: Any, series: str) -> set[Any]:
    return {row[series] for row in rows if row[category] == one}


def _percent(ax: Axes, axis: str = "y") -> None:
    formatter: Callable[..., Any] = PercentFormatter(1.0, decimals=None, symbol=" %")
    (ax.yaxis if axis == "y" else ax.xaxis).set_major_formatter(formatter)
