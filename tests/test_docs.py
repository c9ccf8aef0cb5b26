"""Every link of the pages leads somewhere."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def pages() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings: lower case, spaces as hyphens, no other signs."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target or target.startswith("mailto:"):
            continue
        place, _, anchor = target.partition("#")
        path = (page.parent / place).resolve() if place else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            found.append(target)
    return found


def test_links_lead_somewhere():
    found = pages()
    if not found:
        pytest.skip("not a git checkout")
    wrong = {str(page.relative_to(ROOT)): broken(page) for page in found}
    assert not {page: links for page, links in wrong.items() if links}


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "there.md").write_text("# What `is`, there?\n")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md#what-is-there) [b](gone.md) [c](there.md#nothing) [d](https://x.y)")
    assert broken(page) == ["gone.md", "there.md#nothing"]
