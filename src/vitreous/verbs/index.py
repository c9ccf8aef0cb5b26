"""vitreous index"""

import argparse
from pathlib import Path

from vitreous.errors import UserError
from vitreous.verbs import add_device, add_quiet
from vitreous.verbs.bulk import add_bulk, run_bulk

HELP = "Make an index of pictures, to be searched with `vitreous search`."


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pictures", nargs="+", metavar="FOLDER", help="folders, files, tar, parquet, lists, URLs")
    parser.add_argument("--model", required=True, help="a run or weights; with a text tower, words find pictures")
    parser.add_argument("--out", metavar="INDEX", required=True, help="a folder for the index; a rerun goes on with it")
    parser.add_argument("--batch", type=int, metavar="N", help="pictures at a time (default: 16)")
    add_bulk(parser, default="local")
    add_device(parser)
    add_quiet(parser)


def run(options: argparse.Namespace) -> None:
    from vitreous.bulk.work import Index
    from vitreous.search.index import lay_out

    if "://" in options.out:
        raise UserError(f"--out {options.out}: an index lies on a disk of this machine, where it is searched")
    options.pictures = [_lasting(word) for word in options.pictures]
    run_bulk(options, Index(model=_lasting(options.model)), lay_out)


def _lasting(word: str) -> str:
    """A path by which a later search finds it from any folder."""
    path = Path(word).expanduser()
    return str(path.absolute()) if path.exists() else word
