"""A real browser for tests of pages: the Chromium on PATH, headless; without one such tests skip and say so."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

# No sandbox, since tests run as root in containers; and nothing that a fresh browser does over the network by itself.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Opened:
    """A page, and what it did."""

    page: object
    requests: list[str] = field(default_factory=list)  # but for files and data: URIs
    problems: list[str] = field(default_factory=list)  # errors, warnings of the console, dialogs

    @property
    def scrolls_sideways(self) -> bool:
        return self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


@pytest.fixture(scope="module")
def chromium():
    """Not for the whole session: its driver keeps an event loop in this thread, beside which no other can run."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no chromium or google-chrome on PATH: pages are not tested in a browser")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def chromium_page(chromium):
    """`chromium_page(path or URL, width=360, dark=True)` opens it and watches what it does."""
    contexts = []

    def opened(where: Path | str, *, width: int = 1280, height: int = 900, dark: bool = False, **options) -> Opened:
        scheme = "dark" if dark else "light"
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **options)
        contexts.append(context)
        found = Opened(context.new_page())
        page = found.page
        page.on("request", lambda one: one.url.startswith(("file:", "data:")) or found.requests.append(one.url))
        page.on("pageerror", lambda error: found.problems.append(f"error: {error}"))
        page.on("dialog", lambda one: (found.problems.append(f"dialog: {one.message}"), one.dismiss()))
        page.on(
            "console",
            lambda one: one.type in ("error", "warning") and found.problems.append(f"{one.type}: {one.text}"),
        )
        page.goto(where.absolute().as_uri() if isinstance(where, Path) else where)
        return found

    yield opened
    for context in contexts:
        context.close()
