"""The page: sections in their order, one style, one file."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from vitreous.errors import UserError
from vitreous.fitting.fitted import Fitted
from vitreous.report import candidates, cost, dataset, inside, learning, opening, provenance, unlabelled, usage
from vitreous.report.html import Html, tag, together
from vitreous.report.kinds import kind_of
from vitreous.report.words import short

# Nothing is fetched and nothing runs, whatever the data are called.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write_report(result: Fitted[Any], path: Path) -> Path:
    """The whole account of a fit as one HTML file, which opens from disk and needs no network and no script."""
    markup = report(result).markup
    beside = path.with_name(f".{path.name}.new")
    try:
        # File names need not be text; their odd bytes are shown as such.
        beside.write_bytes(markup.encode("utf-8", "backslashreplace"))
        beside.rename(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
    return path


def report(result: Fitted[Any]) -> Html:
    sections = _sections(result)
    links = [tag.li(tag.a(title, href=f"#{name}")) for name, title, _ in sections]
    body = (
        tag.nav(tag.ol(tag.li(tag.a("The result", href="#headline")), links), aria_label="Contents"),
        tag.main(
            opening.headline(result),
            [tag.section(tag.h2(title), content, id=name) for name, title, content in sections],
        ),
    )
    return _document(f"{short(result.data.where)}: fit report", together(*body))


def _sections(result: Fitted[Any]) -> tuple[tuple[str, str, Html], ...]:
    kind = kind_of(result)
    return (
        ("account", "In plain words", opening.account(result)),
        ("candidates", "What was tried", candidates.section(result)),
        *kind.results(result),
        ("data", "The data", dataset.section(result.data, result.splits.train)),
        *((("unlabelled", "Pictures without labels", unlabelled.section(result)),) if result.lesson else ()),
        ("training", "Training", learning.section(result)),
        *kind.trust(result),
        *((("attention", "Attention", inside.attention(result)),) if kind.told else ()),
        ("figure7", "Filters, positions, reach", inside.figure7(result)),
        *kind.features(result),
        ("cost", "Cost", cost.section(result)),
        ("use", "How to use it", usage.section(result)),
        ("provenance", "Provenance", provenance.section(result)),
    )


def _document(title: str, body: Html) -> Html:
    css = files("vitreous.report").joinpath("page.css").read_text(encoding="utf-8")
    head = tag.head(
        tag.meta(charset="utf-8"),
        tag.meta(http_equiv="Content-Security-Policy", content=POLICY),
        tag.meta(name="viewport", content="width=device-width, initial-scale=1"),
        tag.meta(name="color-scheme", content="light dark"),
        tag.title(title),
        tag.style(Html(css)),
    )
    return together(Html("<!doctype html>\n"), tag.html(head, tag.body(body), lang="en"))
