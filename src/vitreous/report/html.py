"""HTML that is escaped by construction: whatever is a str is text, and only elements built here are markup."""

import html
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

VOID = frozenset({"br", "hr", "img", "meta"})  # elements without an end


@dataclass(frozen=True)
class Html:
    """Markup. Made by `tag` and `together`; by hand only of what this package wrote itself."""

    markup: str

    def __str__(self) -> str:
        return self.markup


Content = Any  # Html; None, which is nothing; an iterable of contents; anything else is text


def together(*contents: Content) -> Html:
    """Contents in a row."""
    return Html("".join(_markup(content) for content in contents))


def _markup(content: Content) -> str:
    if isinstance(content, Html):
        return content.markup
    if content is None:
        return ""
    if isinstance(content, str) or not isinstance(content, Iterable):
        return html.escape(str(content))
    return "".join(_markup(part) for part in content)


def element(name: str, /, *contents: Content, **attributes: Any) -> Html:
    """`class_` is class and `aria_label` is aria-label; None and False leave an attribute out."""
    given = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{together(*contents)}</{name}>")


def _attribute(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    written = name.rstrip("_").replace("_", "-")
    return f" {written}" if value is True else f' {written}="{html.escape(str(value))}"'


class _Tags:
    """`tag.p("Fish & chips", class_="lead")`"""

    def __getattr__(self, name: str) -> Callable[..., Html]:
        return lambda *contents, **attributes: element(name, *contents, **attributes)


tag = _Tags()


# ---- What the sections are made of


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
