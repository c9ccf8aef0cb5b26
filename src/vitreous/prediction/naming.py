"""Classes by their names: how these are typed, and the sentences that they become."""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from vitreous.errors import UserError, shown

PLACE = "{}"  # of a class's name in a template
# Several ways of saying it, whose mean is steadier than each (Radford et al. 2021, section 3.1.4).
TEMPLATES = (
    "a photo of a {}",
    "a picture of a {}",
    "a close-up photo of a {}",
    "a small picture of a {}",
    "a blurry photo of a {}",
    "a drawing of a {}",
    "this is a {}",
)
AS_THEY_ARE = (PLACE,)
ARTICLE = re.compile(r"(a|an|the)\s+", re.IGNORECASE)
DETERMINED = re.compile(r"\b(a|an|the|my|your|one|this|that)\s+\{\}", re.IGNORECASE)  # a template that has one itself
MAX_BYTES = 2**20  # of a file of names or templates
LISTS = (".txt", ".csv", ".list")  # how the name of such a file ends


def sentences(name: str, templates: Sequence[str]) -> list[str]:
    """What is said of a class. A name that brings its article loses it where the template has one, or "my"."""
    bare = ARTICLE.sub("", name, count=1) if ARTICLE.match(name) else name
    return [template.replace(PLACE, bare if DETERMINED.search(template) else name) for template in templates]


def check(classes: Sequence[str], templates: Sequence[str], least: int = 2) -> None:
    for name, given in (("classes", classes), ("templates", templates)):
        if isinstance(given, str):
            raise UserError(f"{name}: {shown(given)} is one text; a list of them is needed")
    if len(classes) < least:
        raise UserError(
            f"classes: {len(classes)} given, and at least {least} are needed, with commas between them or one per line "
            "of a file"
        )
    twice = next((name for name, times in Counter(classes).items() if times > 1), None)
    if twice is not None:
        raise UserError(f"classes: {twice!r} is named twice")
    if not templates:
        raise UserError(f"templates: an empty list; {PLACE} alone takes the names as they are")
    wrong = next((template for template in templates if PLACE not in template), None)
    if wrong is not None:
        raise UserError(f"templates: {shown(wrong)}: each needs {PLACE} where the name goes")


# ---- as they are typed


def parse_classes(text: str) -> tuple[str, ...]:
    """'a cat,a dog', with quotes around names that contain commas; or a file with one name per line."""
    return _parsed(text, ",", "--classes")


def parse_templates(text: str | None) -> tuple[str, ...]:
    """'a photo of a {};a drawing of a {}', a file with one per line, or none: the names as they are."""
    if text is None:
        return TEMPLATES
    return AS_THEY_ARE if text == "none" else _parsed(text, ";", "--templates")


def listed(text: str, separator: str) -> tuple[str, ...]:
    """The parts between separators; a part in quotes may contain separators itself."""
    try:
        rows = list(csv.reader(text.splitlines(), delimiter=separator, skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise UserError(f"{shown(text)}: not a list of names ({error})") from None
    return _stripped([part for row in rows for part in row])


def _stripped(parts: Sequence[str]) -> tuple[str, ...]:
    return tuple(part.strip() for part in parts if part.strip())


def _parsed(text: str, separator: str, option: str) -> tuple[str, ...]:
    try:
        path = Path(text)
        if path.is_file():
            if path.stat().st_size > MAX_BYTES:
                raise UserError(f"{option} {text}: over {MAX_BYTES >> 20} MB is too long for a list of names")
            return _stripped(path.read_text(encoding="utf-8-sig").splitlines())
    except (OSError, ValueError) as error:  # too long for a file's name; or a file of something else
        if isinstance(error, UnicodeDecodeError):
            raise UserError(f"{option} {text}: not a text file in UTF-8") from None
    found = listed(text, separator)
    looks_like_a_path = path.suffix in LISTS or path.parent != Path()
    if len(found) == 1 and looks_like_a_path and PLACE not in text:
        raise UserError(f"{option} {text}: no such file")
    return found
