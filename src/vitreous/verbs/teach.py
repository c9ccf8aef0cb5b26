"""vitreous teach"""

import argparse

from vitreous.errors import UserError
from vitreous.verbs import add_device, add_quiet
from vitreous.verbs.recipes import SETTINGS_HELP, add_recipe, named_recipe

HELP = "Ask a recipe's teacher about every view once, and store its predictions; the same command again continues."
TAKES_SETTINGS = True


def add(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"Students learn from them with --objective.stored DIR. {SETTINGS_HELP}"
    add_recipe(parser, "the student's recipe")
    parser.add_argument(
        "--epochs", type=int, metavar="N", help="how many epochs of views (default: all of the recipe's)"
    )
    parser.add_argument("--out", metavar="DIR", help="where the predictions go (default: runs/RECIPE-taught)")
    add_device(parser)
    add_quiet(parser)


def run(options: argparse.Namespace, changes: dict[str, str]) -> None:
    recipe = named_recipe(options, changes, what="teach needs the student's recipe")
    if recipe is None:
        return
    if options.epochs is not None and options.epochs < 1:
        raise UserError(f"--epochs is {options.epochs}: it must be at least 1")
    from vitreous.jobs.teach import teach
    from vitreous.terminal import quietly
    from vitreous.training.devices import World

    out = options.out or f"runs/{recipe.name}-taught"
    with quietly(options.quiet):
        stored = teach(recipe, out, options.epochs)
    if World.join(recipe.training.device).is_first:
        epochs = f"{stored['epochs']} epoch{'s' if stored['epochs'] > 1 else ''}"
        print(f"{stored['views']:,} views in {epochs}, {stored['asked']:,} of them computed now")
        print(f"Saved to {out}. Students learn from these predictions with --objective.stored {out}")
