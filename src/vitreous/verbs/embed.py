"""vitreous embed"""

import argparse

from vitreous.verbs import add_device, add_quiet
from vitreous.verbs.bulk import add_bulk, run_bulk

HELP = "Compute an encoder's embeddings of pictures, as vectors to compare and search."


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("start", metavar="MODEL", help="a run or weights")
    parser.add_argument(
        "pictures", nargs="+", metavar="PICTURES", help="files, folders, tar, parquet, lists, URLs, or -"
    )
    parser.epilog = "- reads paths or URLs from the standard input, one per line; so does a .txt file."
    parser.add_argument("--out", metavar="DIR", required=True, help="a folder or URL for the rows")
    parser.add_argument(
        "--normalise", action="store_true", help="scale to length 1, so that the dot product of two is their cosine"
    )
    parser.add_argument("--batch", type=int, metavar="N", help="pictures per batch (default: 16)")
    parser.add_argument("--npy", action="store_true", help="also write one array: embeddings.npy, with names.csv")
    add_bulk(parser, default="local")
    add_device(parser)
    add_quiet(parser)


def run(options: argparse.Namespace) -> None:
    from vitreous.bulk.arrays import write_arrays
    from vitreous.bulk.work import Embed

    run_bulk(options, Embed(model=options.start, normalise=options.normalise), write_arrays if options.npy else None)
