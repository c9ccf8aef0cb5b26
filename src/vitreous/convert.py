"""Convert: a model from any format to any other, read back and compared before it counts as written."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from vitreous import atomic
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.trained import Trained
from vitreous.verify import verify
from vitreous.weights import formats
from vitreous.weights.describe import describe
from vitreous.weights.timm import TABLE, TOKENS
from vitreous.weights.writing import write_weights


def convert(
    where: str,
    out: str | Path,
    to: str = "vitreous",
    picture_px: int | None = None,
    patch: int | None = None,
    *,
    verified: bool = False,
    pictures: Sequence[str | Path] = (),
) -> str:
    """Write the model at `where` to `out` in the format `to`. Answers what was done, in a line, or in several.

    With `verified`, both sides are held against the libraries they belong to, on random pictures and on `pictures`.
    Where what was written is not what was read, nothing is left at `out`.
    """
    target = Path(out)
    if target.exists():
        raise UserError(f"{out}: already there; choose another place, or remove it first")
    chosen = None if to == "vitreous" else formats.named(to)
    trained = Trained.load(where, picture_px=picture_px, patch=patch)
    lines = [str(verify(where, pictures))] if verified and trained.format != "vitreous" else []
    if chosen is None:
        trained.save(target)
    else:
        _write_foreign(trained, target, chosen)
    height, width = trained.card.model.picture_px
    told = None if height == width else (height, width)  # how positions lie that are no square, some files do not tell
    try:
        compare(trained, Trained.load(target, picture_px=told))
        lines += [str(verify(target, pictures, told))] if verified and to != "vitreous" else []
    except UserError:
        atomic.remove(target)
        raise
    notes = [] if trained.report is None or verified else [f"note: {line}" for line in trained.report.assumed]
    task = trained.card.task
    if chosen is not None and task is not None and task.head == "distilled" and task.fusion == "softmax":
        notes.append(
            f"note: {to} averages the logits of the two heads, and this model their softmaxes: answers differ a little"
        )
    done = f"{describe(trained.card)}: {where} ({trained.format}) -> {out} ({to}), read back bit for bit"
    return "\n".join([*lines, *notes, done])


def _write_foreign(trained: Trained, target: Path, chosen: formats.Format) -> None:
    given = formats.write(trained.card, trained.weights, chosen)
    model_px, input_px = trained.card.model.picture_px, trained.card.preprocessing.size_px
    if chosen.card(given, model_px).preprocessing.size_px != input_px:
        raise UserError(
            f"{trained.where}: its positions are for pictures of {_sides(model_px)} px, its preprocessing makes "
            f"{_sides(input_px)}, and {chosen.name} has one size for both: add --picture-px {input_px[0]} (or "
            f"{model_px[0]})"
        )
    write_weights(given, target, chosen.container)


def _sides(size: tuple[int, int]) -> str:
    return str(size[0]) if size[0] == size[1] else f"{size[0]} x {size[1]}"


def compare(first: Trained, second: Trained) -> None:
    """Whether two are the same to the last bit; if not, which tensor differs."""
    # What a format's models carry along without our using it may stay behind.
    names = sorted(n for n in first.weights.keys() ^ second.weights.keys() if not n.startswith("extra."))
    if names:
        raise UserError(f"{second.where}: {names[0]} was lost or added in writing ({len(names)} tensors in all)")
    before, after = first.weights, second.weights
    if TABLE in before and not torch.equal(before[TABLE], after[TABLE]):
        before, after = _placed(first), _placed(second)  # some formats have no position for the class token
    for name, value in before.items():
        if name in after and not torch.equal(value, after[name]):
            raise UserError(f"{second.where}: {name} is not what was written")


def _placed(trained: Trained) -> dict[str, Tensor]:
    """With the positions of the prefix tokens as a part of the tokens."""
    tokens, table = trained.weights[TOKENS].clone(), trained.weights[TABLE].clone()
    num = trained.card.model.num_prefix if isinstance(trained.card.model, ViTSettings) else 0
    tokens[:num] += table[:num]
    table[:num] = 0
    return {**trained.weights, TOKENS: tokens, TABLE: table}
