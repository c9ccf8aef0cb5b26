"""The contact sheet: search results as one HTML page of thumbnails that needs no network and no script."""

from collections.abc import Sequence
from pathlib import Path, PurePath

from vitreous.data.images import BadPicture
from vitreous.display.html import Html, tag, together
from vitreous.display.thumbnails import picture
from vitreous.search.index import Hit
from vitreous.search.originals import original
from vitreous.storage import atomic

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
SIDE_PX = 192
STYLE = f"""
:root {{ color-scheme: light dark }}
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2rem }}
h1 {{ font-size: 1.4rem; overflow-wrap: anywhere; margin: 0 }}
p {{ opacity: .7; overflow-wrap: anywhere; margin: .3rem 0 0 }}
.sheet {{ display: grid; gap: 1rem; margin: 1rem 0 2rem }}
.sheet {{ grid-template-columns: repeat(auto-fill, minmax({SIDE_PX}px, 1fr)) }}
figure {{ margin: 0; overflow-wrap: anywhere; font-size: 12px }}
img, .gone {{ display: block; box-sizing: border-box; width: 100%; height: auto; aspect-ratio: 1 }}
img, .gone {{ margin: 0 0 .3rem; border-radius: 6px }}
img {{ object-fit: contain; background: rgb(128 128 128 / 15%) }}
.gone {{ display: grid; place-items: center; border: 1px dashed; opacity: 1 }}
.pixels {{ image-rendering: pixelated }}
"""


def write_sheet(title: str, explained: str, groups: Sequence[Sequence[Hit]], path: Path) -> None:
    head = tag.head(
        tag.meta(charset="utf-8"),
        tag.meta(http_equiv="Content-Security-Policy", content=POLICY),
        tag.meta(name="viewport", content="width=device-width"),
        tag.title(title),
        tag.style(Html(STYLE)),
    )
    sheets = [tag.div([_figure(hit) for hit in hits], class_="sheet") for hits in groups]
    page = together(
        Html("<!doctype html>"), tag.html(head, tag.body(tag.h1(title), tag.p(explained), sheets), lang="en")
    )
    atomic.write_bytes(page.markup.encode("utf-8", "backslashreplace"), path)


def _figure(hit: Hit) -> Html:
    """A thumbnail with its name; only the name if the picture has moved."""
    found = original(hit.name)
    shown = (
        tag.p("no preview", class_="gone")
        if isinstance(found, BadPicture)
        else picture(found, hit.name, most_px=SIDE_PX)
    )
    return tag.figure(shown, tag.figcaption(tag.b(f"{hit.score:.3f} "), PurePath(hit.name).name), title=hit.name)
