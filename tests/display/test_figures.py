"""Figures: one style, the same file each time, ink that follows the page."""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from vitreous.display import figures


@figures.drawing
def drawn() -> Figure:
    made = figures.figure()
    axes = made.subplots()
    axes.plot([1, 2, 3], color=figures.SERIES[0])
    axes.set_title("a < b")
    return made


def test_png_and_svg_are_written_and_repeat(tmp_path: Path):
    for name in ("one", "two"):
        figures.save(drawn(), tmp_path / "deep" / name)
    for ending in ("png", "svg"):
        one, two = (tmp_path / "deep" / f"{name}.{ending}" for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_in_a_page_the_ink_is_the_pages_own():
    text = figures.svg(drawn())
    assert text.startswith("<svg") and text.endswith("</svg>")
    assert "currentColor" in text and figures.INK not in text
    assert "a &lt; b" in text
    assert "#000000" not in text


def test_the_callers_style_is_left_alone():
    before = dict(matplotlib.rcParams)
    drawn()
    assert dict(matplotlib.rcParams) == before
