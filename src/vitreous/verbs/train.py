"""vitreous train"""

import argparse
from typing import TYPE_CHECKING

from vitreous.verbs import add_device, add_quiet
from vitreous.verbs.recipes import SETTINGS_HELP, add_recipe, named_recipe

if TYPE_CHECKING:
    from vitreous.recipes.recipe import Recipe

HELP = "Train by a recipe; the same command again resumes."
TAKES_SETTINGS = True


def add(parser: argparse.ArgumentParser) -> None:
    parser.epilog = SETTINGS_HELP
    add_recipe(parser, "a recipe's name")
    parser.add_argument("--out", metavar="DIR", help="the run directory (default: runs/ and the recipe's name)")
    add_device(parser)
    add_quiet(parser)


def run(options: argparse.Namespace, changes: dict[str, str]) -> None:
    recipe = named_recipe(options, changes, what="train needs a recipe")
    if recipe is not None:
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
