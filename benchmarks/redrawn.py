"""Pictures as runs without labels draw them again, as figures (PNG and SVG).

    python benchmarks/redrawn.py runs/cifar10_mae runs/cifar10_tokeniser runs/cifar10_igpt --out docs/results

The first pictures of the test part, or all of a folder: --pictures docs/images/pictures.

mae, simmim what the encoder saw, what was painted, and the original
tokeniser   the picture, the word of each cell as a colour (equal words, equal colours, which mean nothing else), and
            what is drawn from the words
igpt        the upper half that was given, some samples of the rest, and the original

Decoders are read from a run's last checkpoint: the model that a run leaves behind has none.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.colors import hsv_to_rgb
from matplotlib.figure import Figure
from torch import Tensor

from vitreous import keys as K
from vitreous.batch import Batch
from vitreous.cli import one_line_errors
from vitreous.data.images import read_picture
from vitreous.data.loader import EvalLoader
from vitreous.data.transforms import Preprocessing
from vitreous.display import figures
from vitreous.errors import UserError
from vitreous.inspection.completions import as_pixels, complete, completions_figure
from vitreous.jobs.build import build_objective
from vitreous.objectives.base import Objective
from vitreous.objectives.igpt import NextPixel
from vitreous.objectives.mae import MAE
from vitreous.objectives.simmim import SimMIM
from vitreous.objectives.tokeniser import VisualTokens
from vitreous.prediction.pictures import picture_files
from vitreous.recipes.recipe import read_recipe
from vitreous.training.run import RunDirectory

GREY = 0.5  # of a patch that was dropped
GOLDEN = 0.61803398875  # of the circle of colours, from word to word: neighbours in number are far apart
SAMPLES = 4  # of the lower half of a picture


def redrawn(run: Path, num: int, folder: Path | None) -> Figure:
    recipe = read_recipe(run / "recipe.json")
    splits, checkpoint = recipe.data.build(), RunDirectory(run).latest_checkpoint()
    if checkpoint is None:
        raise UserError(f"{run}: a run without a checkpoint")
    objective = build_objective(recipe, splits.train.classes).eval()
    objective.load_state_dict(checkpoint.tensors["objective"])
    average = recipe.average.build(objective)
    average.load_state(checkpoint.tensors["average"])
    if folder is not None:
        batch = pictures_in(folder, recipe.preprocessing)
    elif splits.test is not None:
        batch = next(iter(EvalLoader(splits.test, recipe.preprocessing, batch_size=num, device="cpu", workers=0)))
    else:
        raise UserError(f"{run}: its data have no test part: give --pictures FOLDER")
    with average.swapped():  # as in the model that the run leaves behind
        if isinstance(objective, NextPixel):
            return completed(objective, batch, recipe.preprocessing)
        return grid(rows(objective, batch, recipe.preprocessing))


def pictures_in(folder: Path, preprocessing: Preprocessing) -> Batch:
    files = picture_files(folder)
    if not files:
        raise UserError(f"{folder} has no pictures: give a folder of some")
    resized = torch.stack([preprocessing.resized(read_picture(path.read_bytes())) for path in files])
    ids = torch.arange(len(files))
    return Batch(views=(preprocessing.normalised(resized),), targets={}, ids=ids, keys=K.sample_keys(0, 0, ids))


def rows(objective: Objective, batch: Batch, preprocessing: Preprocessing) -> dict[str, Tensor]:
    """Pictures (B, H, W, 3) in 0..1 by what they show."""
    original = levels(batch.images, preprocessing)
    if isinstance(objective, MAE | SimMIM):
        whole, kept = objective.reconstruction(batch.images, batch.keys)
        kept = kept.permute(0, 2, 3, 1)
        seen = original * kept + GREY * (1 - kept)
        return {"seen": seen, "painted": levels(whole, preprocessing), "original": original}
    if isinstance(objective, VisualTokens):
        codes, again = objective.reconstruct(batch.images)
        return {"original": original, "words": coloured(codes), "drawn": levels(again, preprocessing)}
    raise UserError(f"{type(objective).__name__} draws no pictures: give a run of mae, simmim, a tokeniser or igpt")


def levels(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Normalised pictures (B, 3, H, W) as (B, H, W, 3) in 0..1."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (preprocessing.mean, preprocessing.std))
    return (images * std + mean).clamp(0, 1).permute(0, 2, 3, 1)


def coloured(codes: Tensor) -> Tensor:
    """(B, h, w) -> (B, h, w, 3) in 0..1: a hue for every word, in three strengths."""
    hue, strength = (codes * GOLDEN) % 1, 0.5 + 0.25 * (codes % 3)
    return torch.from_numpy(hsv_to_rgb(torch.stack([hue, strength, 1.2 - 0.4 * strength], dim=-1).clamp(0, 1).numpy()))


@figures.drawing
def grid(rows: dict[str, Tensor]) -> Figure:
    num = len(next(iter(rows.values())))
    figure = figures.figure(1.0 * num + 0.6, 3.2)
    axes = figure.subplots(len(rows), num, squeeze=False)
    for row, (name, pictures) in zip(axes, rows.items(), strict=True):
        for ax, picture in zip(row, pictures, strict=True):
            ax.imshow(picture.numpy(), interpolation="nearest")
            ax.set(xticks=[], yticks=[])
            ax.grid(False)
            ax.spines[:].set_visible(False)
        row[0].set_ylabel(name)
    return figure


def completed(objective: NextPixel, batch: Batch, preprocessing: Preprocessing) -> Figure:
    def pixels(images: Tensor) -> list:
        return as_pixels(images, preprocessing.mean, preprocessing.std)

    model, keep_rows = objective.encoder, batch.images.shape[2] // 2
    samples = [
        pixels(complete(model, batch.images, K.mix(batch.keys + number), keep_rows=keep_rows))
        for number in range(SAMPLES)
    ]
    return completions_figure(pixels(batch.images), list(zip(*samples, strict=True)), keep_rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--num", type=int, default=8, help="pictures of the test part")
    parser.add_argument("--pictures", type=Path, help="a folder of pictures instead")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    options = parser.parse_args()
    if options.num < 1:
        raise UserError(f"--num is {options.num}: it must be at least 1")
    for run in options.runs:
        figures.save(redrawn(run, options.num, options.pictures), options.out / f"redrawn_{run.name}")


if __name__ == "__main__":
    with one_line_errors():
        main()
