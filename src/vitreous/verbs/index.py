"""vitreous index"""

import argparse
from functools import partial
from pathlib import Path

from vitreous.errors import UserError
from vitreous.verbs import add_device, add_quiet
from vitreous.verbs.bulk import add_bulk, run_bulk

HELP = "Make an index of pictures, to be searched with `vitreous search`."


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pictures", nargs="+", metavar="FOLDER", help="folders, files, tar, parquet, lists, URLs")
    parser.add_argument(
        "--model", required=True, help="a run or weights; with a text tower, pictures can be found by words"
    )
    parser.add_argument("--out", metavar="INDEX", required=True, help="a folder for the index; a rerun continues it")
    parser.add_argument(
        "--approximate", action="store_true", help="add a graph of neighbours: for searches beyond a million pictures"
    )
    parser.add_argument("--batch", type=int, metavar="N", help="pictures per batch (default: 16)")
    add_bulk(parser, default="local")
    add_device(parser)
    add_quiet(parser)


def run(options: argparse.Namespace) -> None:
    from vitreous.bulk.work import Index
    from vitreous.search.index import lay_out
    from vitreous.search.neighbours import check_installed

    if "://" in options.out:
        raise UserError(f"--out {options.out}: an index is searched on a disk of this machine; give a local folder")
    if options.approximate:
        check_installed()  # before hours of work
    options.pictures = [_lasting(word) for word in options.pictures]
    run_bulk(options, Index(model=_lasting(options.model)), partial(lay_out, approximate=options.approximate))


def _lasting(word: str) -> str:
    """A path that is valid from any folder, for later searches."""
    path = Path(word).expanduser()
    return str(path.absolute()) if path.exists() else word
