"""vitreous list"""

import argparse

HELP = "List recipes, models, encoders, data sets and formats."


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="?", choices=("recipes", "models", "encoders", "data", "formats"), help="only these"
    )


def run(options: argparse.Namespace) -> None:
    from vitreous.terminal import table

    if options.what in (None, "recipes"):
        from vitreous.recipes import RECIPES

        rows = [(name, (recipe.__doc__ or "").strip().splitlines()[0]) for name, recipe in RECIPES.items()]
        print("Recipes (vitreous train RECIPE)\n" + table(rows, ("name", "what")) + "\n")
    if options.what in (None, "models"):
        from vitreous.models.names import MODELS

        title = "Models (vitreous.create_model(NAME); any patch size: vit_s8, vit_b32 ...)"
        print(title + "\n" + table(list(MODELS.items()), ("name", "what")) + "\n")
    if options.what in (None, "encoders"):
        from vitreous.weights.describe import describe
        from vitreous.weights.shipped import megabytes, shipped
        from vitreous.weights.trained import Trained

        sizes = [(name, f"{megabytes(name):.1f} MB", describe(Trained.load(name).card)) for name in shipped()]
        print("Encoders that ship (vitreous fit DATA --from NAME)\n" + table(sizes, ("name", "size", "what")) + "\n")
    if options.what in (None, "data"):
        rows = [
            ("fashion", "embedded: 12,000 + 2,000 pictures of clothes, 28 px, 10 classes"),
            ("cifar10, imagenette224, oxford_pets", "in the folder that VITREOUS_DATA names"),
            ("camvid, pets_trimaps", "there too: pictures, each with a mask"),
            ("PATH", "a folder of class folders, or of images/ and masks/; parquet, tar shards, or a CSV of paths"),
            (
                "rendered:TASK",
                "drawn from a seed: location, orientation, count, distance, size; segment, objects, captions",
            ),
            ("hf:NAME", "a data set of the Hugging Face hub (needs the `datasets` library)"),
        ]
        print("Data\n" + table(rows, ("name", "what")) + "\n")
    if options.what in (None, "formats"):
        from vitreous.weights.formats import formats

        ours = ("vitreous", "folder", "ours: safetensors and JSON, with labels and preprocessing")
        theirs = [(one.name, f".{one.container}", one.title) for one in formats().values()]
        print("Formats (vitreous convert IN OUT --to FORMAT)\n" + table([ours, *theirs], ("name", "file", "what")))
