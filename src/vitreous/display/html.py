"""HTML that is escaped by construction: every str is text, and only elements built here are markup."""

import html
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

VOID = frozenset({"br", "hr", "img", "meta"})  # elements without an end tag


@dataclass(frozen=True)
class Html:
    """Markup. Built by `tag` and `together`; by hand only from what this package wrote itself."""

    markup: str

    def __str__(self) -> str:
        return self.markup


Content = Any  # Html; None for nothing; an iterable of contents; anything else is text


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
