"""Tokenizers in others' formats: files by name, and what is lost in them, one line each."""

import gzip
import json
from typing import Any

from vitreous.errors import UserError
from vitreous.words.files import CONFIG, DOCUMENT, PAIRS, SENTENCES, VOCABULARY
from vitreous.words.pairs import END, START, PairPieces
from vitreous.words.sentences import SentencePieces
from vitreous.words.tokenizer import Tokenizer

Files = tuple[dict[str, bytes], tuple[str, ...]]
THEIR_NAMES = {START: "<|startoftext|>", END: "<|endoftext|>"}  # of open_clip's marks, in transformers
NO_REPAIRS = "texts are not repaired there (ftfy, HTML's entities), so that odd ones get other tokens than here"


def for_clip(tokenizer: Tokenizer) -> Files:
    """A compressed list of merges, as OpenAI's code and open_clip read it."""
    model = _model(tokenizer)
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    packed = gzip.compress("\n".join(lines).encode() + b"\n", mtime=0)  # the same bytes every time
    notes = () if tokenizer.cleaning == "clip" else ("texts are repaired there (ftfy, HTML's entities), and not here",)
    return {"bpe_simple_vocab_16e6.txt.gz": packed}, notes


def for_transformers(tokenizer: Tokenizer, kind: str) -> Files:
    config: dict[str, Any] = {"tokenizer_class": kind, "model_max_length": tokenizer.context}
    if isinstance(tokenizer.pieces, SentencePieces):
        if tokenizer.cleaning != "siglip":
            raise UserError(f"transformers has no cleaning such as {tokenizer.cleaning!r} before sentencepiece")
        words = {
            f"{name}_token": tokenizer.pieces.processor.id_to_piece(getattr(tokenizer, place))
            for name, place in (("eos", "end"), ("pad", "padding"))
        }
        return {SENTENCES: tokenizer.pieces.model, CONFIG: _json(config | words)}, ()
    model = _model(tokenizer)
    if tokenizer.cleaning == "none":
        named = tokenizer.pieces.tokenizer.id_to_token  # type: ignore[attr-defined]
        words = {"eos_token": named(tokenizer.end), "pad_token": named(tokenizer.padding)}
        words |= {} if tokenizer.start is None else {"bos_token": named(tokenizer.start)}
        definition = tokenizer.pieces.document()["definition"]
        return {DOCUMENT: _json(definition), CONFIG: _json(config | words)}, ()
    vocabulary = {THEIR_NAMES.get(word, word): number for word, number in model["vocab"].items()}
    merges = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]) + "\n"
    return {VOCABULARY: _json(vocabulary), PAIRS: merges.encode(), CONFIG: _json(config)}, (NO_REPAIRS,)


def _model(tokenizer: Tokenizer) -> dict[str, Any]:
    """The vocabulary and merges of byte pairs."""
    if not isinstance(tokenizer.pieces, PairPieces):
        raise UserError("CLIP's tokens are byte pairs, and this model's are of another kind; write another format")
    model = tokenizer.pieces.document()["definition"]["model"]
    if not {"vocab", "merges"} <= model.keys():
        raise UserError("CLIP's tokens are byte pairs, and this model's are of another kind; write another format")
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    return {"vocab": model["vocab"], "merges": pairs}


def _json(document: Any) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
