"""vitreous fit"""

import argparse
import time

from vitreous.errors import UserError
from vitreous.verbs import add_device, add_quiet, with_device

HELP = "From pictures to a trained, calibrated, tested model and its report; the same command again resumes."
TAKES_SETTINGS = True
SETTINGS_HELP = (
    "Model, resolution, recipe and length are chosen from the data and the hardware, and explained. Every choice can "
    "be overridden by its dotted name, such as --model.width 96, --training.epochs 5 or --data.val_fraction 0.2; "
    "--model takes a name of `vitreous list models`."
)


def add(parser: argparse.ArgumentParser) -> None:
    parser.epilog = SETTINGS_HELP
    parser.add_argument("data", nargs="?", metavar="DATA", help="a folder of pictures, a file, or a data set's name")
    parser.add_argument("--out", metavar="DIR", help="the run directory (default: runs/fit- and the data's name)")
    parser.add_argument(
        "--from",
        dest="start",
        metavar="WEIGHTS",
        help="start from a run, an encoder of `vitreous list encoders`, or any weights that can be read; none: from "
        "random weights (default: the best encoder that suits the hardware and the time)",
    )
    parser.add_argument("--minutes", type=float, metavar="N", help="time budget for the whole fit (default: 10)")
    parser.add_argument(
        "--unlabelled",
        metavar="PICTURES",
        help="a folder of pictures without labels: the best model names them, a student learns from them too, and is "
        "kept where it is better on the validation part",
    )
    parser.add_argument(
        "--balance",
        choices=("auto", "none", "sampling", "weights"),
        default="auto",
        help="for classes of unequal size (default: sampling where one has over 3 times the pictures of another)",
    )
    add_device(parser)
    add_quiet(parser)


def run(options: argparse.Namespace, changes: dict[str, str]) -> None:
    if options.help:
        options.parser.print_help()
        return
    if options.data is None:
        raise UserError("fit needs data: vitreous fit FOLDER_OF_PICTURES")
    began = time.monotonic()  # importing counts
    from vitreous.commands import fit
    from vitreous.fitting.fit import ending
    from vitreous.terminal import quietly

    with quietly(options.quiet):
        result = fit(
            options.data,
            options.out,
            start=options.start,
            minutes=options.minutes,
            unlabelled=options.unlabelled,
            balance=options.balance,
            changes=with_device(changes, options),
            began=began,
        )
    print(ending(result, time.monotonic() - began))
