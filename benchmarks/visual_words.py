"""The visual words of some test pictures: the picture, the word of each cell as a colour, and what is drawn from them.

    python benchmarks/visual_words.py runs/cifar10_tokeniser --out docs/results/visual_words

Writes a PNG and an SVG. The pictures are the first of the test part, and are not chosen. Equal words have equal
colours, which mean nothing else. The decoder is read from the run's last checkpoint: the model that a run leaves behind
has none.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.colors import hsv_to_rgb
from matplotlib.figure import Figure
from torch import Tensor

from vitreous import figures, jobs, settings
from vitreous.data.loader import EvalLoader
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.objectives.tokeniser import VisualTokens
from vitreous.recipes.recipe import Recipe
from vitreous.training.run import RunDirectory

NAMES = ("picture", "words", "drawn")
GOLDEN = 0.61803398875  # of the circle of colours, from word to word: neighbours in number are far apart


def seen(run: Path, num: int) -> list[Tensor]:
    """Three times `num` pictures (H, W, 3) in 0..1; the words as small as their grid."""
    recipe = settings.load(Recipe, run / "recipe.json")
    splits = recipe.data.build()
    checkpoint = RunDirectory(run).latest_checkpoint()
    objective = jobs.build_objective(recipe, splits.train.classes).eval()
    if not isinstance(objective, VisualTokens) or checkpoint is None:
        raise UserError(f"{run}: not the run of a tokeniser, or one without a checkpoint")
    objective.load_state_dict(checkpoint.tensors["objective"])
    assert splits.test is not None
    batch = next(iter(EvalLoader(splits.test, recipe.preprocessing, batch_size=num, device="cpu", workers=0)))
    codes, again = objective.reconstruct(batch.images)
    pictures, again = (levels(images, recipe.preprocessing) for images in (batch.images, again))
    return [pictures, coloured(codes), again]


def levels(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Normalised pictures (B, 3, H, W) as (B, H, W, 3) in 0..1."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (preprocessing.mean, preprocessing.std))
    return (images * std + mean).clamp(0, 1).permute(0, 2, 3, 1)


def coloured(codes: Tensor) -> Tensor:
    """(B, h, w) -> (B, h, w, 3) in 0..1: a hue for every word, in three strengths."""
    hue, strength = (codes * GOLDEN) % 1, 0.5 + 0.25 * (codes % 3)
    return torch.from_numpy(hsv_to_rgb(torch.stack([hue, strength, 1.2 - 0.4 * strength], dim=-1).clamp(0, 1).numpy()))


@figures.drawing
def drawn(rows: list[Tensor]) -> Figure:
    """A row each for the pictures, their words, and what the decoder draws from these."""
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
    figures.save(drawn(seen(options.run, options.num)), options.out)


if __name__ == "__main__":
    main()
