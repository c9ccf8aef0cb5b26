"""vitreous search"""

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.display.words import counted
from vitreous.errors import UserError
from vitreous.terminal import printable, quietly
from vitreous.verbs import add_device, add_quiet

if TYPE_CHECKING:
    from vitreous.search.index import Hit, Index

HELP = "Search an index of pictures by words or by a picture, or for duplicates or outliers."
ALIKE = 0.98  # cosine from which two pictures count as duplicates


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("index", metavar="INDEX", help="an index made by `vitreous index`")
    parser.add_argument(
        "words", nargs="*", metavar="WORDS", help="such as red shoe on grass; needs a model with a text tower"
    )
    parser.add_argument("--picture", metavar="FILE", help="find pictures that look like this one")
    parser.add_argument("--duplicates", action="store_true", help="find groups of near-identical pictures")
    parser.add_argument("--outliers", action="store_true", help="find the pictures least like any others")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="number of pictures or groups (default: 20)")
    parser.add_argument(
        "--alike", type=float, default=ALIKE, metavar="S", help=f"least cosine of duplicates (default: {ALIKE})"
    )
    parser.add_argument(
        "--exact", action="store_true", help="compare with every picture, also where the index has a graph"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", metavar="FILE", help="write a contact sheet with thumbnails too")
    parser.add_argument("--model", help="the model's path, if it was moved since")
    add_device(parser)
    add_quiet(parser)


def run(options: argparse.Namespace) -> None:
    from vitreous.search.index import Index
    from vitreous.search.sheet import write_sheet

    _check(options)
    with quietly(options.quiet):
        index = Index.open(options.index, options.exact)
        groups = _found(index, options)
    if options.html:
        write_sheet(_title(groups, options), _explained(len(index.names), options), groups, Path(options.html))
    if options.json:
        rows = [[{"picture": hit.name, "score": round(hit.score, 6)} for hit in hits] for hits in groups]
        print(json.dumps(rows if options.duplicates else rows[0], indent=2))
    else:
        _print(groups)
        if options.html:
            print(f"Saved to {options.html}")


def _check(options: argparse.Namespace) -> None:
    asked = [bool(options.words), options.picture is not None, options.duplicates, options.outliers]
    if sum(asked) != 1:
        raise UserError('give one of these: "some words", --picture FILE, --duplicates, --outliers')
    if options.words and not "".join(options.words).strip():
        raise UserError("there are no words to search for")
    words = " ".join(options.words)
    if options.words and Path(words).is_file():
        raise UserError(
            f"{words} is a file, not words: --picture {shlex.quote(words)} finds pictures that look like it"
        )
    if options.top < 1:
        raise UserError(f"--top {options.top}: at least 1")
    if not 0 < options.alike <= 1:
        raise UserError(f"--alike {options.alike}: a cosine above 0 and at most 1")


def _found(index: "Index", options: argparse.Namespace) -> "list[list[Hit]]":
    if options.duplicates:
        return index.duplicates(options.alike, options.top)
    if options.outliers:
        return [index.outliers(options.top)]
    embedder = index.embedder(options.model, options.device)
    if options.picture is not None:
        return [index.by_picture(options.picture, embedder, options.top)]
    return [index.by_words(" ".join(options.words), embedder, options.top)]


# ---- the contact sheet


def _title(groups: "list[list[Hit]]", options: argparse.Namespace) -> str:
    if options.duplicates:
        return "Duplicates" if groups else "No duplicates"
    if options.outliers:
        return "Outliers"
    return " ".join(options.words) if options.picture is None else f"Like {options.picture}"


def _explained(total: int, options: argparse.Namespace) -> str:
    """What the numbers below the thumbnails are."""
    if options.duplicates:
        what = f"Groups with a cosine of at least {options.alike:g} to the first picture of each"
    elif options.outliers:
        what = "Those least like any others, with their mean cosine to the ten nearest"
    else:
        what = "The most similar first, with their cosine"
    return f"{what}. {counted(total, 'picture')} in {options.index}."


# ---- the terminal


def _print(groups: "list[list[Hit]]") -> None:
    if not groups:
        print("no duplicates")
    for number, hits in enumerate(groups):
        if number:
            print()
        for hit in hits:
            print(f"{hit.score:6.3f}  {printable(hit.name)}")
