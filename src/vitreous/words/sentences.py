"""Pieces by the `sentencepiece` library, as SigLIP has them."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from vitreous.errors import UserError, first_line
from vitreous.words.cleaning import needed
from vitreous.words.tokenizer import Pieces

SPACE = "▁"  # represents a space in pieces


class SentencePieces(Pieces):
    def __init__(self, model: bytes, where: str) -> None:
        """`model`: the contents of a spiece.model."""
        self.model = model
        try:
            self.processor = needed("sentencepiece").SentencePieceProcessor(model_proto=model)
        except UserError:
            raise
        except Exception as error:  # the library may raise anything
            raise UserError(f"{where}: the library sentencepiece does not take it ({first_line(error)})") from None
        self._unknown = self.processor.id_to_piece(self.processor.unk_id())
        self._skipped = len(self.processor.encode(self._unknown))

    def __len__(self) -> int:
        return int(self.processor.get_piece_size())

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Every text begins with a space, like a word inside a sentence. The library drops spaces at the start, so
        something is put before it, and removed again."""
        found = self.processor.encode([f"{self._unknown}{SPACE}{text}" if text else self._unknown for text in texts])
        return [list(ids[self._skipped :]) for ids in found]

    def document(self) -> dict[str, Any]:
        return {"kind": "sentencepiece", "model": base64.b64encode(self.model).decode()}

    @classmethod
    def of_document(cls, document: Mapping[str, Any], where: str) -> "SentencePieces":
        try:
            return cls(base64.b64decode(str(document.get("model")), validate=True), where)
        except binascii.Error:
            raise UserError(f"{where}: its pieces are damaged") from None
