"""Effective receptive fields side by side: a row a model, a column a map along the way."""

import textwrap
from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vitreous.display.figures import drawing
from vitreous.inspection.mosaics import HEAT, bar, heat, picture_figure, say
from vitreous.inspection.receptive import ReceptiveField, ReceptiveFields

LEGEND = (
    "Which pixels the middle of a map depends on: the square root of the gradient, as a share of the largest. Half of "
    "the gradient lies in the white square, whose side is given"
)


@drawing
def receptive_figure(found: Mapping[str, ReceptiveFields | str]) -> Figure:
    """By the models' names. A line in place of fields says why there are none."""
    fields = {name: () if isinstance(each, str) else each.fields for name, each in found.items()}
    columns = max(1, *(len(each) for each in fields.values()))
    margin = 1.1 if any(found) else 0.1
    width = 1.9 * columns + margin + 0.5
    heading = textwrap.wrap(LEGEND + _pictures(found) + ".", int(14 * width))
    drawn = picture_figure(width, 2.15 * len(found) + 0.17 * len(heading) + 0.1)
    axes = drawn.subplots(len(found), columns, squeeze=False)
    for row, (name, each) in zip(axes, found.items(), strict=True):
        for ax in row:
            ax.axis("off")
        row[0].text(
            -0.08,
            0.5,
            _label(name, fields[name]),
            transform=row[0].transAxes,
            ha="right",
            va="center",
            parse_math=False,
        )
        if isinstance(each, str):
            say(row[0], "", each)
        for ax, field in zip(row, fields[name], strict=False):
            _draw(ax, field)
    bar(axes[0, -1], Normalize(0.0, 1.0), HEAT)
    drawn.suptitle("\n".join(heading), fontsize="medium")
    return drawn


def _label(name: str, fields: tuple[ReceptiveField, ...]) -> str:
    """The model, and the size of its pictures, of which fields are parts."""
    lines = textwrap.wrap(name, 16)
    if lines and fields:
        height, width = fields[0].field.shape
        lines.append(f"{width} x {height} px")
    return "\n".join(lines)


def _draw(ax: Axes, field: ReceptiveField) -> None:
    height, width = field.field.shape
    ax.imshow(heat(field.field.sqrt().float(), Normalize(0.0, 1.0), HEAT), extent=(0, width, height, 0))
    side, (down, right) = field.side_px(), field.centre_px
    corner = (right - side / 2, down - side / 2)
    ax.add_patch(Rectangle(corner, side, side, fill=False, edgecolor="white", linewidth=0.9, clip_on=True))
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.grid(visible=False)
    ax.set_title(f"{field.name}: {side} px", fontsize="small", parse_math=False)


def _pictures(found: Mapping[str, ReceptiveFields | str]) -> str:
    nums = {each.num_pictures for each in found.values() if not isinstance(each, str)}
    most = max(nums, default=0)
    return f" (over {most} picture{'s' if most > 1 else ''})" if nums else ""
