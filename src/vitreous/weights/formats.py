"""The formats there are, and the one way through which all of them are read and written.

A format is one file in this folder that defines a `Format`, and one line in FORMATS.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor

from vitreous.errors import UserError, did_you_mean
from vitreous.weights.card import Card
from vitreous.weights.containers import outlines
from vitreous.weights.rules import Report, Rule, apply_read, apply_write


@dataclass(frozen=True)
class Given:
    """What was found at a place: tensors by name, and the JSON documents beside them by file name."""

    tensors: Mapping[str, Tensor]
    documents: Mapping[str, Any]
    where: str


class Format(Protocol):
    @property
    def name(self) -> str:
        """As `--to` takes it."""
        ...

    @property
    def title(self) -> str:
        """What it holds, in a line."""
        ...

    @property
    def container(self) -> Literal["safetensors", "npz"]: ...

    def fits(self, given: Given) -> bool:
        """By contents (keys, shapes, config), never by a file's name."""
        ...

    def card(self, given: Given, picture_px: tuple[int, int] | None = None) -> Card:
        """The model that the shapes and the config describe. `picture_px` settles what they cannot tell."""
        ...

    def rules(self, card: Card) -> list[Rule]: ...

    def documents(self, card: Card) -> dict[str, Any]:
        """What is written beside the tensors, by file name."""
        ...


@runtime_checkable
class Adapting(Protocol):
    """A format whose names differ between files: with or without a prefix, of older and newer versions."""

    def found_in(self, given: Given) -> Format:
        """The same format with the names that these tensors have."""
        ...


def formats() -> dict[str, Format]:
    """By name, in the order in which they are asked whether a file is theirs: the telling ones first."""
    from vitreous.weights import clip, google, original, timm, torchvision, transformers

    found: Sequence[Format] = (
        *transformers.FORMATS,
        *clip.FORMATS,
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
    raise UserError(f"{given.where}: no format that we read has tensors such as {some}")


def _outline(given: Given) -> Given:
    """Without values: names, shapes and types tell a format and its model, and a large file is read once only."""
    return Given(outlines(given.tensors), given.documents, given.where)


def read(
    given: Given, format: Format, picture_px: tuple[int, int] | None = None
) -> tuple[Card, dict[str, Tensor], Report]:
    outline = _outline(given)
    card = format.card(outline, picture_px)
    adapted = format.found_in(outline) if isinstance(format, Adapting) else format
    weights, report = apply_read(adapted.rules(card), given.tensors)
    return card, weights, report


def write(card: Card, weights: Mapping[str, Tensor], format: Format) -> Given:
    written = Given(apply_write(format.rules(card), weights), {}, format.name)
    adapted = format.found_in(written) if isinstance(format, Adapting) else format
    return replace(written, documents=adapted.documents(card))
