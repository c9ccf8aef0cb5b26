"""Table: rows under a header, the same for a terminal and for a notebook."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vitreous.display.html import Content, Html, tag, together
from vitreous.terminal import table

# A notebook's own styles align text to the right; its colours stay, light or dark.
CELL = "text-align: left; padding: 0.25em 1.2em 0.25em 0"
APART = "margin: 0.5em 0 1em"


@dataclass(frozen=True)
class Table:
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""  # a line below

    def text(self) -> str:
        return table(self.rows, self.header) + (f"\n{self.note}" if self.note else "")

    def html(self) -> Html:
        return together(html_table(self.header, self.rows), tag.p(self.note) if self.note else None)

    def _repr_html_(self) -> str:
        return self.html().markup


def html_table(header: Iterable[Content], rows: Iterable[Iterable[Content]]) -> Html:
    return tag.table(
        tag.thead(tag.tr([tag.th(cell, style=CELL) for cell in header])),
        tag.tbody([tag.tr([tag.td(cell, style=CELL) for cell in row]) for row in rows]),
        style=APART,
    )
