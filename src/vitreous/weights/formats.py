"""The formats there are, and the one way through which all of them are read and written.

A format is one file in this folder that defines a `Format`, and one line in FORMATS.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from vitreous.errors import UserError, did_you_mean
from vitreous.models.shapes import shapes_only
from vitreous.weights.card import Card
from vitreous.weights.containers import outlines
from vitreous.weights.describe import describe
from vitreous.weights.door import check_sizes, check_tensors, errors_of
from vitreous.weights.rules import Report, Rule, apply_read, apply_write
from vitreous.words.tokenizer import Tokenizer


@dataclass(frozen=True)
class Given:
    """What was found at a place: tensors by name, and the JSON documents beside them by file name."""

    tensors: Mapping[str, Tensor]
    documents: Mapping[str, Any]
    where: str
    heads: int | None = None  # of the attention, where the user says what the contents do not


class Format(ABC):
    """One layout of weights, both ways."""

    name: str  # as `--to` takes it
    title: str  # what it holds, in a line
    container: Literal["safetensors", "npz"]

    @abstractmethod
    def fits(self, given: Given) -> bool:
        """By contents (keys, shapes, config), never by a file's name."""

    @abstractmethod
    def card(self, given: Given, picture_px: tuple[int, int] | None = None) -> Card:
        """The model that the shapes and the config describe. `picture_px` settles what they cannot tell."""

    def assumed(self, given: Given, card: Card) -> list[str]:
        """What the contents cannot tell and how it was taken, a line each. What may not be guessed, `card` refuses."""
        return []

    def found_in(self, given: Given) -> "Format":
        """The same format with the names and shapes of these tensors, where those differ between files."""
        return self

    def run_as(self, card: Card) -> Card:
        """The card as the code that this format belongs to runs such a model: what no file of it can say is as that
        code has it for everybody. A UserError where that code cannot build the model at all."""
        return card

    @abstractmethod
    def rules(self, card: Card) -> list[Rule]: ...

    def documents(self, card: Card) -> dict[str, Any]:
        """What is written beside the tensors, by file name."""
        return {}

    def tokenizer(self, folder: Path, card: Card) -> Tokenizer | None:
        """That of the text tower, from the folder in which the weights lie; None where the card has no such tower."""
        return None

    def token_files(self, tokenizer: Tokenizer) -> tuple[dict[str, bytes], tuple[str, ...]]:
        """A tokenizer as the users of this format have it, by file name, and what it loses there, a line each."""
        raise UserError(f"{self.name} cannot store a tokenizer")


def formats() -> dict[str, Format]:
    """By name, in the order in which they are asked whether a file is theirs: the telling ones first."""
    from vitreous.weights import (
        clip,
        convnext,
        detr,
        eomt,
        google,
        mask2former,
        original,
        pvt,
        resnet_v1,
        siglip,
        swin,
        timm,
        torchvision,
        transformers,
    )

    found: Sequence[Format] = (
        *swin.FORMATS,
        *convnext.FORMATS,
        *pvt.FORMATS,
        *resnet_v1.FORMATS,
        *detr.FORMATS,
        *mask2former.FORMATS,
        *eomt.FORMATS,
        *transformers.FORMATS,
        *clip.FORMATS,
        *siglip.FORMATS,
        *google.FORMATS,
        *torchvision.FORMATS,
        *original.FORMATS,
        *timm.FORMATS,
    )
    return {one.name: one for one in found}


def named(name: str) -> Format:
    known = formats()
    if name not in known:
        raise UserError(f"there is no format {name!r}.{did_you_mean(name, list(known))} Known: {', '.join(known)}")
    return known[name]


def recognised(given: Given) -> Format:
    """The format whose contents these are."""
    outline = _outline(given)
    for one in formats().values():
        if one.fits(outline):
            return one
    some = ", ".join(sorted(given.tensors)[:3])
    raise UserError(f"{given.where}: no known format has tensors such as {some}")


def _outline(given: Given) -> Given:
    """Without values: names, shapes and types tell a format and its model, and a large file is read once only."""
    return replace(given, tensors=outlines(given.tensors))


def read(
    given: Given, format: Format, picture_px: tuple[int, int] | None = None, strict: bool = False
) -> tuple[Card, dict[str, Tensor], Report]:
    """The model that was found, checked against what describes it. With `strict`, nothing may be missing or left over.

    What cannot be right is refused by the outlines alone, before a value is read.
    """
    outline, where = _outline(given), given.where
    with errors_of(where), shapes_only():
        card = format.card(outline, picture_px)
        check_sizes(card, outline.tensors, where)
        rules = format.found_in(outline).rules(card)
        outlined, report = apply_read(rules, outline.tensors)
    theirs = {ours: rule.theirs[0] for rule in rules for ours in rule.ours}
    if strict and not report.is_exact:
        raise UserError(f"{where}: this is {describe(card)} ({format.name}), but {report.mismatch()}")
    check_tensors(card, outlined, where, theirs, whole=strict)
    weights, _ = apply_read(rules, given.tensors)
    return card, weights, replace(report, assumed=format.assumed(outline, card))


def write(card: Card, weights: Mapping[str, Tensor], format: Format) -> Given:
    written = Given(apply_write(format.rules(card), weights), {}, format.name)
    return replace(written, documents=format.found_in(written).documents(card))
