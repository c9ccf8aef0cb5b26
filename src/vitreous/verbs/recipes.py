"""What the verbs that take a recipe share: the argument, its settings, and the help of a recipe itself."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitreous.errors import UserError
from vitreous.verbs import with_device

if TYPE_CHECKING:
    from vitreous.recipes.recipe import Recipe

SETTINGS_HELP = (
    "Every field of the recipe can be set by its dotted name, such as --optimizer.lr 0.001 or "
    "--training.epochs 20; `vitreous train RECIPE --help` lists them with their values. "
    "--model also takes a name of `vitreous list models`."
)


def add_recipe(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help=f"{what}, or the recipe.json of a run")


def named_recipe(options: argparse.Namespace, changes: dict[str, str], *, what: str) -> "Recipe | None":
    """The named recipe with its changed settings. None if help was asked for, which has then been printed."""
    if options.recipe is None:
        if not options.help:
            raise UserError(f"{what}; `vitreous list recipes` shows them")
        options.parser.print_help()
        return None
    changes = with_device(changes, options)
    if options.help:
        print_recipe(options.recipe, changes)
        return None
    from vitreous.recipes import find_recipe

    return find_recipe(options.recipe, changes)


# ---- a recipe's own help


def print_recipe(name: str, changes: dict[str, str]) -> None:
    """What a recipe is, its arguments, and every setting of the result."""
    from inspect import cleandoc

    from vitreous.recipes import RECIPES, find_recipe, parameters
    from vitreous.terminal import table

    if name in RECIPES:
        taken = parameters(RECIPES[name])
        print(cleandoc(RECIPES[name].__doc__ or "") + "\n")
        if taken:
            rows = [(f"--{one.name}", one.value, one.type) for one in taken]
            print(table(rows, ("argument", "value", "type")) + "\n")
        missing = [f"--{one.name}" for one in taken if one.value == "needed" and one.name not in changes]
        if missing:
            print(f"Give {' and '.join(missing)} as well as --help to see every setting.")
            return
    try:
        recipe = find_recipe(name, changes)
    except UserError as error:
        if changes or name not in RECIPES:
            raise
        # The weights that it starts from by default do not exist.
        print(f"To see every setting, give other values for the arguments above: {error}")
        return
    print_fields(recipe)


def print_fields(settings: object, without: Sequence[str] = ()) -> None:
    """Every field of a recipe or a study, but for those `without` a use."""
    from vitreous.settings import fields, typed
    from vitreous.terminal import table

    shown = [(f"--{one.name}", typed(one.value), one.type, one.help) for one in fields(settings)]
    shown = [row for row in shown if row[0].removeprefix("--") not in without]
    print(table(shown, ("setting", "value", "type", "what it does")))
