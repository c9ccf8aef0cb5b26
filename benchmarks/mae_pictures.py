"""What a masked autoencoder paints: of some test pictures what it saw, what it painted, and the original.

    python benchmarks/mae_pictures.py runs/cifar10_mae --out docs/results/mae_pictures

Writes a PNG and an SVG. The pictures are the first of the test part, and are not chosen. The decoder is read from the
run's last checkpoint: the model that a run leaves behind has none. Where the targets were normalised, a painted patch
is shown with the mean and contrast of the true one, which the model was never asked for.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from vitreous import figures, jobs, settings
from vitreous.data.loader import EvalLoader
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.objectives.mae import MAE
from vitreous.recipes.recipe import Recipe
from vitreous.training.run import RunDirectory

GREY = 0.5  # of a patch that was dropped
NAMES = ("seen", "painted", "original")


def painted(run: Path, num: int) -> list[Tensor]:
    """Three times (num, H, W, 3) in 0..1: seen, painted, original."""
    recipe = settings.load(Recipe, run / "recipe.json")
    splits = recipe.data.build()
    checkpoint = RunDirectory(run).latest_checkpoint()
    objective = jobs.build_objective(recipe, splits.train.classes).eval()
    if not isinstance(objective, MAE) or checkpoint is None:
        raise UserError(f"{run}: not the run of a masked autoencoder, or one without a checkpoint")
    objective.load_state_dict(checkpoint.tensors["objective"])
    assert splits.test is not None
    batch = next(iter(EvalLoader(splits.test, recipe.preprocessing, batch_size=num, device="cpu", workers=0)))
    whole, seen = objective.reconstruction(batch.images, batch.keys)
    original, whole = (levels(images, recipe.preprocessing) for images in (batch.images, whole))
    return [one.permute(0, 2, 3, 1) for one in (original * seen + GREY * (1 - seen), whole, original)]


def levels(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Normalised pictures back in 0..1."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (preprocessing.mean, preprocessing.std))
    return (images * std + mean).clamp(0, 1)


@figures.drawing
def drawn(rows: list[Tensor]) -> Figure:
    """A row of pictures each for what was seen, what was painted, and the original."""
    num = len(rows[0])
    figure = figures.figure(1.0 * num + 0.6, 3.2)
    axes = figure.subplots(len(rows), num, squeeze=False)
    for row, pictures, name in zip(axes, rows, NAMES, strict=True):
        for ax, picture in zip(row, pictures, strict=True):
            ax.imshow(picture.numpy(), interpolation="nearest")
            ax.set(xticks=[], yticks=[])
            ax.grid(False)
            ax.spines[:].set_visible(False)
        row[0].set_ylabel(name)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--num", type=int, default=8, help="pictures")
    parser.add_argument("--out", type=Path, required=True, help="where to, without an ending")
    options = parser.parse_args()
    figures.save(drawn(painted(options.run, options.num)), options.out)


if __name__ == "__main__":
    main()
