"""A page as a parser sees it."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"br", "hr", "img", "meta"}


@dataclass
class Element:
    kind: str
    attributes: dict[str, str | None]
    parts: list["Element | str"] = field(default_factory=list)

    def all(self, kind: str | None = None) -> list["Element"]:
        found = [self] if kind in (None, self.kind) else []
        return found + [one for part in self.parts if isinstance(part, Element) for one in part.all(kind)]

    @property
    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.text for part in self.parts)

    def by_id(self, name: str) -> "Element":
        (found,) = [one for one in self.all() if one.attributes.get("id") == name]
        return found


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Element("document", {})]

    def handle_starttag(self, tag, attrs):
        made = Element(tag, dict(attrs))
        self.open[-1].parts.append(made)
        if tag not in VOID:
            self.open.append(made)

    def handle_startendtag(self, tag, attrs):
        self.open[-1].parts.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open[-1].kind == tag, f"</{tag}> closes <{self.open[-1].kind}>"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].parts.append(data)


def read(markup: str) -> Element:
    """The document; an element that is not closed where it should be is an error."""
    parser = _Parser()
    parser.feed(markup)
    parser.close()
    assert len(parser.open) == 1, f"<{parser.open[-1].kind}> is not closed"
    return parser.open[0]
