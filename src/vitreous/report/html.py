"""What the sections are made of."""

from collections.abc import Iterable
from typing import Any

from vitreous.display.html import Content, Html, element, tag, together

__all__ = [
    "Content",
    "Html",
    "bullets",
    "command",
    "facts",
    "folded",
    "name",
    "paragraph",
    "path",
    "table",
    "tag",
    "together",
]


def name(text: str) -> Html:
    """A name out of the data: its own writing direction stays its own."""
    return element("bdi", text)


def path(text: str) -> Html:
    return element("code", element("bdi", text), class_="path")


def paragraph(*contents: Content, **attributes: Any) -> Html:
    return element("p", *contents, **attributes)


def bullets(items: Iterable[Content]) -> Html:
    return element("ul", [element("li", item) for item in items])


def table(header: Iterable[Content], rows: Iterable[Iterable[Content]], *, numbers: Iterable[int] = ()) -> Html:
    """In a box of its own that scrolls where the page is too narrow; columns of `numbers` stand at the right."""
    right = set(numbers)

    def cells(kind: str, row: Iterable[Content]) -> list[Html]:
        return [
            element(kind, cell, class_="number" if column in right else None, scope="col" if kind == "th" else None)
            for column, cell in enumerate(row)
        ]

    head = element("thead", element("tr", cells("th", header)))
    body = element("tbody", [element("tr", cells("td", row)) for row in rows])
    # What scrolls must be reachable by keyboard.
    return element("div", element("table", head, body), class_="scroll", tabindex=0)


def facts(pairs: Iterable[tuple[Content, Content]]) -> Html:
    """Terms and what is to be said of them."""
    return element("dl", [element("div", element("dt", term), element("dd", fact)) for term, fact in pairs])


def folded(summary: Content, *contents: Content) -> Html:
    """Closed until somebody wants to know."""
    return element("details", element("summary", summary), *contents)


def command(text: str) -> Html:
    return element("pre", element("code", text), tabindex=0)
