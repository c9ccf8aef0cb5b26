"""vitreous train"""

import argparse
from typing import TYPE_CHECKING

from vitreous.errors import UserError
from vitreous.verbs import add_device, add_quiet, with_device

if TYPE_CHECKING:
    from vitreous.recipes.recipe import Recipe

HELP = "Train by a recipe; the same command again resumes."
TAKES_SETTINGS = True
SETTINGS_HELP = (
    "Every field of the recipe can be set by its dotted name, such as --optimizer.lr 0.001 or "
    "--training.epochs 20; `vitreous train RECIPE --help` lists them with their values."
)


def add(parser: argparse.ArgumentParser) -> None:
    parser.epilog = SETTINGS_HELP
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="a recipe's name, or the recipe.json of a run")
    parser.add_argument("--out", metavar="DIR", help="the run directory (default: runs/ and the recipe's name)")
    add_device(parser)
    add_quiet(parser)


def run(options: argparse.Namespace, changes: dict[str, str]) -> None:
    if options.recipe is None:
        if not options.help:
            raise UserError("train needs a recipe; `vitreous list recipes` shows them")
        options.parser.print_help()
        return
    from vitreous.recipes import find_recipe

    changes = with_device(changes, options)
    if options.help:
        print_recipe(options.recipe, changes)
        return
    recipe = find_recipe(options.recipe, changes)
    train_and_report(recipe, options.out or f"runs/{recipe.name}", options.quiet)


def train_and_report(recipe: "Recipe", out: str, is_quiet: bool) -> None:
    from vitreous.jobs.train import train
    from vitreous.terminal import quietly
    from vitreous.training.devices import World
    from vitreous.verbs.evaluate import scores_line

    with quietly(is_quiet):
        results = train(recipe, out)
    if not World.join(recipe.training.device).is_first:
        return
    for part in ("val", "test"):
        if part in results:
            print(f"{part:5} {scores_line(results[part])}")
    if unreadable := results.get("unreadable"):
        print(f"{len(unreadable):,} unreadable pictures were skipped; results.json names them")
    print(f"model {out}/model   curves {out}/metrics.jsonl   results {out}/results.json")


# ---- a recipe's own help


def print_recipe(name: str, changes: dict[str, str]) -> None:
    """What a recipe is, what it takes, and every setting of the result."""
    from inspect import cleandoc

    from vitreous.recipes import RECIPES, find_recipe, parameters
    from vitreous.terminal import table

    if name in RECIPES:
        taken = parameters(RECIPES[name])
        print(cleandoc(RECIPES[name].__doc__ or "") + "\n")
        if taken:
            print(
                table([(f"--{one.name}", one.value, one.type) for one in taken], ("argument", "value", "type")) + "\n"
            )
        missing = [f"--{one.name}" for one in taken if one.value == "needed" and one.name not in changes]
        if missing:
            print(f"Name {' and '.join(missing)} besides --help to see every setting.")
            return
    try:
        recipe = find_recipe(name, changes)
    except UserError as error:
        if changes or name not in RECIPES:
            raise
        # What it would start from by default is not there.
        print(f"To see every setting, choose names other than those above: {error}")
        return
    print_fields(recipe)


def print_fields(recipe: "Recipe") -> None:
    from vitreous.settings import fields, typed
    from vitreous.terminal import table

    shown = [(f"--{field.name}", typed(field.value), field.type, field.help) for field in fields(recipe)]
    print(table(shown, ("setting", "value", "type", "what it does")))
