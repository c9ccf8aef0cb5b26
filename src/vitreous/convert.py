"""Convert: a model from any format to any other, read back and compared before it counts as written."""

from pathlib import Path

import torch

from vitreous.errors import UserError
from vitreous.trained import Trained
from vitreous.weights import formats
from vitreous.weights.describe import describe
from vitreous.weights.writing import write_weights


def convert(
    where: str, out: str | Path, to: str = "vitreous", picture_px: int | None = None, patch: int | None = None
) -> str:
    """Write the model at `where` to `out` in the format `to`. Answers what was done, in a line."""
    target = Path(out)
    if target.exists():
        raise UserError(f"{out}: already there; choose another place, or remove it first")
    trained = Trained.load(where, picture_px=picture_px, patch=patch)
    if to == "vitreous":
        trained.save(target)
    else:
        chosen = formats.named(to)
        write_weights(formats.write(trained.card, trained.weights, chosen), target, chosen.container)
    compare(trained, Trained.load(target))
    return f"{describe(trained.card)}: {where} ({trained.format}) -> {out} ({to}), read back bit for bit"


def compare(first: Trained, second: Trained) -> None:
    """Whether two are the same to the last bit; if not, which tensor differs."""
    names = sorted(first.weights.keys() ^ second.weights.keys())
    if names:
        raise UserError(f"{second.where}: {names[0]} was lost or added in writing ({len(names)} tensors in all)")
    for name, value in first.weights.items():
        if not torch.equal(value, second.weights[name]):
            raise UserError(f"{second.where}: {name} is not what was written")
