"""vitreous finetune"""

import argparse

from vitreous.errors import UserError
from vitreous.verbs import add_device, add_quiet, with_device
from vitreous.verbs.recipes import SETTINGS_HELP, print_fields
from vitreous.verbs.train import train_and_report

HELP = "Fine-tune a run on data, at a higher resolution (paper 3.2)."
TAKES_SETTINGS = True


def add(parser: argparse.ArgumentParser) -> None:
    parser.epilog = SETTINGS_HELP
    parser.add_argument("start", nargs="?", metavar="RUN", help="a finished run, or a folder of weights")
    parser.add_argument("data", nargs="?", metavar="DATA", help="a folder of pictures, a file, or a data set's name")
    parser.add_argument("--out", metavar="DIR", help="the run directory (default: runs/finetune- and both names)")
    add_device(parser)
    add_quiet(parser)


def run(options: argparse.Namespace, changes: dict[str, str]) -> None:
    if options.start is None or options.data is None:
        if not options.help:
            raise UserError("finetune needs a run to start from and data: vitreous finetune RUN DATA")
        options.parser.print_help()
        return
    from vitreous.recipes import finetune_recipe

    recipe = finetune_recipe(options.start, options.data, with_device(changes, options))
    if options.help:
        print_fields(recipe)
        return
    train_and_report(recipe, options.out or f"runs/{recipe.name}", options.quiet)
