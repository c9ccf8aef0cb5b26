"""Every link of the pages leads somewhere, and the numbers of their tables are those of the JSON beside them."""

import json
import re
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

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


# ---- numbers

NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")
UNITS = (1, 100, 1e3, 1e-3, 1e-6)  # as it is, per cent, ms; thousands, MB or millions


def tables(page: Path) -> Iterator[tuple[str, list[list[str]]]]:
    """Every table, as cells, with what was written before it under the same heading."""
    before, rows = "", []
    for line in [*page.read_text().splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            yield before, rows[2:]  # without its head
            rows = []
        before = "" if line.startswith("#") else before + line + "\n"


def values(document: Any) -> Iterator[float]:
    if isinstance(document, dict | list):
        parts = [*document, *document.values()] if isinstance(document, dict) else document
        yield from (value for part in parts for value in values(part))
    elif isinstance(document, str | int | float):
        yield from map(float, re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", str(document)))


def is_rounded(text: str, value: float) -> bool:
    """Whether a number is this value, rounded to its digits; one with a comma, to those before its zeros."""
    digits = text.replace(",", "")
    place = -len(digits.partition(".")[2]) or (len(digits) - len(digits.rstrip("0")) if "," in text else 0)
    return abs(float(digits) - value) <= 0.5 * 10**place * (1 + 1e-9)


def unproven(page: Path) -> list[str]:
    """The numbers of tables that the JSON linked before them does not have; neither do the commands, for settings. A
    row may say that it is not in the JSON. The first cell names what was measured."""
    found = []
    for before, rows in tables(page):
        files = [page.parent / name for name in re.findall(r"\]\(([^)\s]+\.json)\)", before)]
        commands = "".join(line for line in before.splitlines() if line.startswith("    "))
        known = {unit * value for file in files for value in values(json.loads(file.read_text())) for unit in UNITS}
        known |= set(values(commands))
        for row in [row for row in rows if files and "not in the JSON" not in row[0]]:
            for last, cell in pairwise(row):
                numbers = [float(one.replace(",", "")) for one in NUMBER.findall(last)]
                means = {mean(numbers)} if len(numbers) > 1 else set()
                found += [
                    f"{one} in | {' | '.join(row)} |"
                    for one in NUMBER.findall(cell)
                    if not any(is_rounded(one, value) for value in known | means)
                ]
    return found


def test_numbers_of_tables_are_those_of_the_json_beside_them():
    wrong = {page.name: unproven(page) for page in sorted((ROOT / "docs" / "results").glob("*.md"))}
    assert not {page: numbers for page, numbers in wrong.items() if numbers}


def test_a_number_that_was_not_measured_is_found(tmp_path):
    (tmp_path / "found.json").write_text(json.dumps({"runs": {"a": [0.84346, 0.9], "s": 203.1, "per_s": 44116}}))
    page = tmp_path / "page.md"
    head = "    train --epochs 40\n\n[JSON](found.json)\n\n| | of 7 | b |\n|---|---|---|\n"
    page.write_text(
        f"{head}| 5 | 84.3 % | 203 s, 44,100 |\n| 6 | 84.4 | 90, 40 |\n| c | 80, 82 | 81.0 |\n# other\n| 1 | 2 |\n"
    )
    assert [one.split()[0] for one in unproven(page)] == ["84.4", "80", "82"]
