"""Tokenizer: texts in, rows of token ids of equal length out. It is saved with the model that reads them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import UserError, shown
from vitreous.words.cleaning import Cleaning, cleaning

FORMAT = 1  # of the document
Ids = NDArray[np.int32]


class Pieces(ABC):
    """Cuts cleaned texts into the ids of their pieces, without marks for beginning and end."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of ids: the rows of an embedding table."""

    @abstractmethod
    def ids(self, texts: Sequence[str]) -> list[list[int]]: ...

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """Plain JSON, with the kind of pieces under `kind`."""


@dataclass(frozen=True)
class Tokenizer:
    pieces: Pieces
    cleaning: Cleaning
    context: int  # tokens in a row; longer texts are truncated
    start: int | None  # the token before every text
    end: int  # the token after it
    padding: int  # the token that fills a row

    def __call__(self, texts: Sequence[str]) -> Ids:
        """(N, context)"""
        clean = cleaning(self.cleaning)
        rows = np.full((len(texts), self.context), self.padding, dtype=np.int32)
        first = [] if self.start is None else [self.start]
        room = self.context - len(first) - 1
        for row, ids in zip(rows, self.pieces.ids([clean(text) for text in texts]), strict=True):
            whole = [*first, *ids[:room], self.end]
            row[: len(whole)] = whole
        return rows

    def __len__(self) -> int:
        return len(self.pieces)

    # ---- as JSON

    def document(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "cleaning": self.cleaning,
            "context": self.context,
            "start": self.start,
            "end": self.end,
            "padding": self.padding,
            "pieces": self.pieces.document(),
        }

    @classmethod
    def of_document(cls, document: Any, where: str) -> "Tokenizer":
        if isinstance(document, dict) and isinstance(number := document.get("format"), int) and number > FORMAT:
            raise UserError(f"{where}: written by a later version of vitreous (format {number}); install that version")
        match document:
            case {
                "format": 1,
                "cleaning": str(how),
                "context": int(context),
                "start": int() | None as start,
                "end": int(end),
                "padding": int(padding),
                "pieces": dict(pieces),
            }:
                cleaning(how)
                found = cls(_pieces(pieces, where), how, context, start, end, padding)  # type: ignore[arg-type]
                found.check(where)
                return found
        raise UserError(f"{where}: not a tokenizer of ours")

    def check(self, where: str) -> None:
        """A UserError if the contents of a file make no sense, before a model looks up a token."""
        for name, number in (("start", self.start), ("end", self.end), ("padding", self.padding)):
            if number is not None and not 0 <= number < len(self):
                raise UserError(f"{where}: its {name} is token {shown(number)} of {len(self):,}")
        if not 3 <= self.context <= 65_536:
            raise UserError(f"{where}: texts of {shown(self.context)} tokens: from 3 to 65,536 are possible")


def _pieces(document: dict[str, Any], where: str) -> Pieces:
    from vitreous.words.pairs import PairPieces
    from vitreous.words.sentences import SentencePieces

    readers = {"tokenizers": PairPieces.of_document, "sentencepiece": SentencePieces.of_document}
    read = readers.get(str(document.get("kind")))
    if read is None:
        raise UserError(f"{where}: pieces of the kind {shown(document.get('kind'))} are not supported")
    return read(document, where)
