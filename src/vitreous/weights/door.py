"""The door that all weights come through: what a file holds is compared with the model that its card describes.

A header is enough for that (names, shapes, types of numbers), so it is done before a value is read. Sizes come first:
no number of the card may ask for more than the file's tensors can fill, so nothing larger than the file is ever built
or looped over, whatever a config says.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import UserError, first_line, shown
from vitreous.models import ModelSettings
from vitreous.models.base import Encoder, TokenEncoder
from vitreous.models.shapes import shapes_only
from vitreous.weights.card import Card
from vitreous.weights.containers import is_finite
from vitreous.weights.describe import describe
from vitreous.weights.rules import FLOATS

MAX_CELLS = 65_536  # patches of one picture: 4096 x 4096 px in patches of 16
MAX_MESSAGE = 400  # characters: what a file says is not repeated whole
# Settings that count layers, each of which has tensors of its own.
LAYERS = {"depth", "depths", "blocks", "residuals", "encoder_depth", "decoder_depth", "levels"}
# Settings that no tensor grows with: a card refuses pictures that are too large; points of masks are for learning.
NO_SIZES = {"picture_px", "number"}
# What reading raises where shapes or a config make no sense.
NONSENSE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError)


@contextmanager
def errors_of(where: str) -> Iterator[None]:
    """Whatever is found wrong inside becomes one line that names the place."""
    try:
        yield
    except UserError as error:
        text = str(error) if len(str(error)) <= MAX_MESSAGE else f"{str(error)[:MAX_MESSAGE]} ..."
        raise UserError(text if text.startswith(where) else f"{where}: {text}") from None
    except NONSENSE as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{where}: its tensors and config match no model that we have ({reason})") from None


# ---- Sizes, before anything is built


def check_sizes(card: Card, tensors: Mapping[str, Tensor], where: str) -> None:
    """Against the numbers of tensors and of values in the file. `tensors` may be outlines."""
    num_values = sum(tensor.numel() for tensor in tensors.values())
    # Of a task only what is counted: its losses may have any factors.
    counted = () if card.task is None else (pair for pair in _numbers(card.task) if isinstance(pair[1], int))
    for name, number in (*_numbers(card.model), *counted):
        if isinstance(number, float):
            if not math.isfinite(number) or number < 0 or (number == 0 and name.endswith("epsilon")):
                raise UserError(f"{where}: {name} is {shown(number)}, which no model can have")
            continue
        most, what = (len(tensors), "tensors") if name in LAYERS else (num_values, "values")
        if not 0 <= number <= most:
            raise UserError(f"{where}: {name} is {shown(number)}, but the file holds only {most:,} {what}")


def _numbers(model: Any) -> Iterator[tuple[str, int | float]]:
    """Every number of a model's settings and of their parts, by the name of its field."""
    for field in dataclasses.fields(model):
        value = getattr(model, field.name)
        if dataclasses.is_dataclass(value):
            yield from _numbers(value)
        elif field.name not in NO_SIZES:
            numbers = value if isinstance(value, tuple) else (value,)
            yield from ((field.name, number) for number in numbers if type(number) in (int, float))


# ---- Tensors, before their values are read


def check_tensors(
    card: Card,
    tensors: Mapping[str, Tensor],
    where: str,
    theirs: Mapping[str, str] | None = None,
    *,
    whole: bool = True,
) -> None:
    """Names, shapes and types of numbers, under our names. `tensors` may be outlines; `theirs` has the file's names.

    What is missing is an error only where the file is expected to be `whole`.
    """
    with errors_of(where):
        expected = _expected(card)
    names = {name for name in tensors if not name.startswith("extra.")}
    missing, unknown = sorted(expected.keys() - names), sorted(names - expected.keys())
    if (missing and whole) or unknown:
        odd = f"has no {missing[0]}" if missing and whole else f"has no place for {unknown[0]}"
        subject = "the file" if missing and whole else "that model"
        raise UserError(f"{where}: its card describes {describe(card)}, but {subject} {odd}")
    for name in sorted(names):
        found, wanted = tensors[name], expected[name]
        called = (theirs or {}).get(name, name)
        if not (found.dtype in FLOATS if wanted.dtype in FLOATS else found.dtype == wanted.dtype):
            kind = str(found.dtype).removeprefix("torch.")
            raise UserError(f"{where}: {called} holds {kind} numbers; save the weights as float32, float16 or bfloat16")
        if found.shape != wanted.shape:
            raise UserError(
                f"{where}: {called} has the shape {tuple(found.shape)} (as we lay it out), where {describe(card)} has "
                f"{tuple(wanted.shape)}"
            )


def _expected(card: Card) -> Mapping[str, Tensor]:
    """All that the card's model consists of, without values."""
    with shapes_only():
        encoder = _built(card.model)
        if card.preprocessing.size_px != card.model.picture_px:
            _built(dataclasses.replace(card.model, picture_px=card.preprocessing.size_px))
        if card.task is None:
            return encoder.state_dict(prefix="encoder.")
        return card.task.build(encoder, card.classes).state_dict()


def _built(model: ModelSettings) -> Encoder:
    encoder = model.build()
    if isinstance(encoder, TokenEncoder) and encoder.grid.cells > MAX_CELLS:
        raise UserError(f"pictures of {encoder.grid.cells:,} patches; at most {MAX_CELLS:,} are read")
    return encoder


# ---- Values


def check_values(weights: Mapping[str, Tensor], where: str) -> None:
    """All are finite, and float32, in which the model computes, can hold them: narrower numbers always fit."""
    for name, tensor in weights.items():
        if not is_finite(tensor):
            raise UserError(f"{where}: {name} holds values that are not finite (NaN or infinity)")
        if tensor.dtype == torch.float64 and not torch.equal(tensor.float().double(), tensor):
            raise UserError(f"{where}: {name} holds float64 numbers that float32 would round; save it as float32")
