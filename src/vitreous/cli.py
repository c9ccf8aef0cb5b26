"""The verbs. Parses and prints, holds no logic; torch is imported only when a verb needs it."""

import argparse
import sys
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

from vitreous.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from vitreous.recipes.recipe import Recipe

VERBS = ("list", "train", "finetune", "evaluate", "convert", "demo")


class Parser(argparse.ArgumentParser):
    """argparse, with errors of one line."""

    verbs: "dict[str, Parser]"  # of the top one

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; `{self.prog} --help` shows what it takes")

    def refuse(self, word: str) -> NoReturn:
        """An argument that nobody asked for."""
        known = [option for action in self._actions for option in action.option_strings]
        raise UserError(
            f"`{self.prog}` does not take {word}.{did_you_mean(word, known)} `{self.prog} --help` shows what it takes"
        )


def parser() -> Parser:
    top = Parser(
        prog="vitreous", description="Vision Transformers, from pictures to a trained model.", allow_abbrev=False
    )
    top.add_argument("--version", action="store_true", help="print the version")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)
    top.verbs = verbs.choices

    def verb(name: str, run: Callable[..., None], text: str, **options: Any) -> Parser:
        sub = verbs.add_parser(name, help=text, description=text, allow_abbrev=False, **options)
        sub.set_defaults(run=run)
        return sub

    lists = verb("list", list_things, "Show the recipes, models and data sets there are.")
    lists.add_argument("what", nargs="?", choices=("recipes", "models", "data", "formats"), help="only these")

    settings_help = (
        "Every field of the recipe can be set by its dotted name, such as --optimizer.lr 0.001 or "
        "--training.epochs 20; `vitreous train RECIPE --help` lists them with their values."
    )
    train = verb(
        "train",
        train_recipe,
        "Train by a recipe; the same command again resumes.",
        epilog=settings_help,
        add_help=False,
    )
    train.add_argument("recipe", nargs="?", metavar="RECIPE", help="a recipe's name, or the recipe.json of a run")
    train.add_argument("--out", metavar="DIR", help="the run directory (default: runs/ and the recipe's name)")
    train.add_argument("--help", "-h", action="store_true", help="show this, or a recipe's fields when one is named")

    finetune = verb(
        "finetune",
        finetune_run,
        "Fine-tune a run on data, at a higher resolution (paper 3.2).",
        epilog=settings_help,
        add_help=False,
    )
    finetune.add_argument("start", nargs="?", metavar="RUN", help="a finished run, or a folder of weights")
    finetune.add_argument("data", nargs="?", metavar="DATA", help="a folder of pictures, a file, or a data set's name")
    finetune.add_argument(
        "--out", metavar="DIR", help="the run directory (default: runs/finetune and the names of both)"
    )
    finetune.add_argument(
        "--help", "-h", action="store_true", help="show this, or the fields when RUN and DATA are named"
    )

    evaluate = verb("evaluate", evaluate_run, "Score a run on the test part of its data, or of other data.")
    evaluate.add_argument("start", metavar="RUN", help="a finished run, or a folder of weights")
    evaluate.add_argument("data", nargs="?", metavar="DATA", help="other data with the same classes")
    evaluate.add_argument(
        "--split", choices=("train", "val", "test"), default="test", help="which part (default: test)"
    )
    evaluate.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to compute")
    evaluate.add_argument("--json", action="store_true", help="print JSON")

    convert = verb("convert", convert_weights, "Write a model, of ours or anybody's, in another format.")
    convert.add_argument("start", metavar="IN", help="a run, a file or folder of weights, hf:owner/name or timm:name")
    convert.add_argument("out", metavar="OUT", help="a folder; or a file called .safetensors or .npz")
    convert.add_argument("--to", default="vitreous", help="the format (`vitreous list formats`; default: our own)")
    convert.add_argument("--picture-px", type=int, metavar="N", help="resize its positions for pictures of N px")
    convert.add_argument("--patch", type=int, metavar="N", help="resize its patches to N px (FlexiViT)")

    demo = verb(
        "demo", run_demo, "Pre-train, fine-tune and evaluate on the embedded data, in five minutes on two cores."
    )
    demo.add_argument("--out", metavar="DIR", default="runs/demo", help="where the runs go (default: runs/demo)")
    return top


def main(arguments: list[str] | None = None) -> None:
    try:
        dispatch(sys.argv[1:] if arguments is None else arguments)
    except UserError as error:
        print(f"vitreous: {' '.join(str(error).splitlines())}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("vitreous: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # `vitreous list | head`
        sys.stderr.close()


def dispatch(arguments: list[str]) -> None:
    top = parser()
    if arguments and not arguments[0].startswith("-") and arguments[0] not in VERBS:
        raise UserError(
            f"there is no verb {arguments[0]!r}.{did_you_mean(arguments[0], VERBS)} `vitreous --help` lists them"
        )
    takes_settings = bool(arguments) and arguments[0] in ("train", "finetune")
    plain, settings = separated(arguments) if takes_settings else (arguments, [])
    options, unknown = top.parse_known_args(plain)
    if unknown:
        (top.verbs[options.verb] if options.verb else top).refuse(unknown[0])
    if options.version:
        from vitreous import __version__

        print(f"vitreous {__version__}")
    elif options.verb is None:
        top.print_help()
    elif takes_settings:
        options.run(options, dotted(settings), top)
    else:
        options.run(options)


def separated(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The words that argparse knows, and those of settings, each with its value."""
    plain, settings, words = [], [], iter(arguments)
    for word in words:
        if not word.startswith("--") or word.partition("=")[0] in ("--out", "--help"):
            plain.append(word)
        else:
            settings += [word] if "=" in word else [word, *islice(words, 1)]
    return plain, settings


def dotted(arguments: list[str]) -> dict[str, str]:
    """['--optimizer.lr', '0.1', '--a=b'] -> {'optimizer.lr': '0.1', 'a': 'b'}."""
    changes: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise UserError(f"{word!r} stands alone; settings are given as --name value")
        name, has_value, value = word.removeprefix("--").partition("=")
        if not has_value:
            if not rest or rest[0].startswith("--"):
                raise UserError(f"--{name} needs a value")
            value = rest.pop(0)
        changes[name.replace("-", "_")] = value
    return changes


# ---- the verbs


def list_things(options: argparse.Namespace) -> None:
    from vitreous.terminal import table

    if options.what in (None, "recipes"):
        from vitreous.recipes import RECIPES

        rows = [(name, (recipe.__doc__ or "").strip().splitlines()[0]) for name, recipe in RECIPES.items()]
        print("Recipes (vitreous train RECIPE)\n" + table(rows, ("name", "what")) + "\n")
    if options.what in (None, "models"):
        from vitreous.models.names import MODELS

        title = "Models (vitreous.create_model(NAME); any patch size: vit_s8, vit_b32 ...)"
        print(title + "\n" + table(list(MODELS.items()), ("name", "what")) + "\n")
    if options.what in (None, "data"):
        rows = [
            ("fashion", "embedded: 12,000 + 2,000 pictures of clothes, 28 px, 10 classes"),
            ("cifar10, imagenette224, oxford_pets", "in the folder that VITREOUS_DATA names"),
            ("PATH", "a folder of class folders, parquet, tar shards, or a CSV of paths and labels"),
            ("hf:NAME", "a data set of the Hugging Face hub (needs the `datasets` library)"),
        ]
        print("Data\n" + table(rows, ("name", "what")) + "\n")
    if options.what in (None, "formats"):
        from vitreous.weights.formats import formats

        ours = ("vitreous", "folder", "ours: safetensors and JSON, with labels and preprocessing")
        theirs = [(one.name, f".{one.container}", one.title) for one in formats().values()]
        print("Formats (vitreous convert IN OUT --to FORMAT)\n" + table([ours, *theirs], ("name", "file", "what")))


def train_recipe(options: argparse.Namespace, changes: dict[str, str], top: Parser) -> None:
    if options.recipe is None:
        if not options.help:
            raise UserError("train needs a recipe; `vitreous list recipes` shows them")
        top.verbs["train"].print_help()
        return
    from vitreous.recipes import find_recipe

    if options.help:
        print_recipe(options.recipe, changes)
        return
    recipe = find_recipe(options.recipe, changes)
    train_and_report(recipe, options.out or f"runs/{recipe.name}")


def finetune_run(options: argparse.Namespace, changes: dict[str, str], top: Parser) -> None:
    if options.start is None or options.data is None:
        if not options.help:
            raise UserError("finetune needs a run to start from and data: vitreous finetune RUN DATA")
        top.verbs["finetune"].print_help()
        return
    from vitreous.recipes import finetune_recipe

    recipe = finetune_recipe(options.start, options.data, changes)
    if options.help:
        print_fields(recipe)
        return
    train_and_report(recipe, options.out or f"runs/{recipe.name}")


def train_and_report(recipe: "Recipe", out: str) -> None:
    from vitreous.jobs import train
    from vitreous.training.devices import World

    results = train(recipe, out)
    if not World.join(recipe.training.device).is_first:
        return
    for part in ("val", "test"):
        if part in results:
            print(f"{part:5} {scores_line(results[part])}")
    print(f"model {out}/model   curves {out}/metrics.jsonl   results {out}/results.json")


def evaluate_run(options: argparse.Namespace) -> None:
    from vitreous.jobs import evaluate

    scores = evaluate(options.start, options.data, options.split, options.device)
    if options.json:
        import json

        print(json.dumps(scores))
    else:
        print(f"{options.split:5} {scores_line(scores)}")


def convert_weights(options: argparse.Namespace) -> None:
    from vitreous.convert import convert

    print(convert(options.start, options.out, options.to, options.picture_px, options.patch))


def run_demo(options: argparse.Namespace) -> None:
    from vitreous.demo import demo

    demo(options.out)


# ---- printing


def scores_line(scores: dict[str, float]) -> str:
    shares = "   ".join(f"{name} {scores[name]:.2%}" for name in ("accuracy", "top5") if name in scores)
    return f"{shares}   log-loss {scores['log_loss']:.4f}   ({scores['pictures']:,.0f} pictures)"


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
    print_fields(find_recipe(name, changes))


def print_fields(recipe: "Recipe") -> None:
    from vitreous.settings import fields
    from vitreous.terminal import table

    shown = [(f"--{field.name}", typed(field.value), field.type, field.help) for field in fields(recipe)]
    print(table(shown, ("setting", "value", "type", "what it does")))


def typed(value: Any) -> str:
    """A value as one would type it."""
    if isinstance(value, tuple):
        return ",".join(typed(item) for item in value)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
