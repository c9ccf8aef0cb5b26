"""Tokenizer files, recognised by their contents, or in the folder of a model.

OpenAI's and open_clip's is a compressed list of merges (bpe_simple_vocab_16e6.txt.gz). transformers has a
tokenizer.json, or a vocab.json with a merges.txt; for SigLIP a spiece.model.
"""

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous.errors import UserError, first_line
from vitreous.words.pairs import PairPieces, clip_tokenizer, defined, library
from vitreous.words.sentences import SentencePieces
from vitreous.words.tokenizer import Tokenizer

MAX_BYTES = 64 * 2**20  # twice the size of Gemma's tokenizer.json, which SigLIP 2 uses
MERGES = 49_152 - 256 - 2  # number that CLIP uses from its list
DOCUMENT, CONFIG, VOCABULARY, PAIRS, SENTENCES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "spiece.model",
)


def read_tokenizer(where: str | Path, context: int | None = None) -> Tokenizer:
    """`context`: tokens in a row, if it should not be what the files say."""
    path = Path(where).expanduser()
    if path.is_dir():
        found = _in_folder(path)
    elif not path.is_file():
        raise UserError(f"{where}: there is no tokenizer file or folder")
    elif path.suffix == ".json":
        found = _in_json(path)
    elif path.suffix == ".model":
        found = _siglip(path)
    else:
        found = clip_tokenizer(merges_in(path))
    found = found if context is None else replace(found, context=context)
    found.check(str(where))
    return found


def _in_folder(folder: Path) -> Tokenizer:
    folder = folder / "model" if (folder / "model" / DOCUMENT).is_file() else folder
    if (folder / SENTENCES).is_file() and (_is_siglip(folder) or not (folder / DOCUMENT).is_file()):
        return _siglip(folder / SENTENCES)
    if (folder / DOCUMENT).is_file():
        return _in_json(folder / DOCUMENT)
    if (folder / VOCABULARY).is_file() and (folder / PAIRS).is_file():
        return _in_two_files(folder)
    packed = sorted(folder.glob("bpe*.txt.gz"))
    if packed:
        return clip_tokenizer(merges_in(packed[0]))
    raise UserError(f"{folder}: no tokenizer in it ({DOCUMENT}, {VOCABULARY} with {PAIRS}, {SENTENCES}, bpe*.txt.gz)")


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            found = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if len(found) > MAX_BYTES:
        raise UserError(f"{path}: over {MAX_BYTES >> 20} MB, which is too large for a tokenizer")
    return found


def _text(path: Path) -> str:
    """Decompressed if necessary."""
    data = _bytes(path)
    try:
        if data.startswith(b"\x1f\x8b"):
            with gzip.open(path) as file:
                data = file.read(MAX_BYTES + 1)
        return data.decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a list of merges ({first_line(error)})") from None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_bytes(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({first_line(error)})") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: not a tokenizer")
    return found


def merges_in(path: Path) -> list[tuple[str, str]]:
    """CLIP's merges, from a list of them, compressed or not, or from a tokenizer.json."""
    if path.suffix != ".json":
        return _merges(_text(path), str(path))[:MERGES]
    match _json(path):
        case {"model": {"merges": [*merges]}}:
            lines = (pair if isinstance(pair, str) else " ".join(map(str, pair)) for pair in merges)
            return _merges("\n".join(lines), str(path))[:MERGES]
    raise UserError(f"{path}: a tokenizer without merges")


def _merges(text: str, where: str) -> list[tuple[str, str]]:
    """One pair per line, below a line of the version."""
    pairs = [tuple(line.split()) for line in text.split("\n")]
    pairs = pairs[1:] if "#version" in text.partition("\n")[0] else pairs
    while pairs and not pairs[-1]:
        pairs.pop()
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise UserError(f"{where}: not a list of merges, two pieces a line")
    return pairs  # type: ignore[return-value]


# ---- transformers'


def _in_json(path: Path) -> Tokenizer:
    document = _json(path)
    if "pieces" in document:
        return Tokenizer.of_document(document, str(path))
    return _of_library(defined(document, str(path)), _config(path.parent), str(path))


def _config(folder: Path) -> dict[str, Any]:
    return _json(folder / CONFIG) if (folder / CONFIG).is_file() else {}


def _of_library(tokenizer: Any, config: Mapping[str, Any], where: str) -> Tokenizer:
    """The tokens before and after a text are those of an empty text."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    around = tokenizer.encode("", add_special_tokens=True).ids
    if not 1 <= len(around) <= 2:
        raise UserError(f"{where}: {len(around)} tokens around every text; we support an end, or a start and an end")
    longest = config.get("model_max_length")
    context = longest if isinstance(longest, int) and longest <= 65_536 else 77
    padding = tokenizer.token_to_id(_word(config.get("pad_token")) or "")
    return Tokenizer(
        PairPieces(tokenizer),
        "none",
        context,
        start=around[0] if len(around) == 2 else None,
        end=around[-1],
        padding=around[-1] if padding is None else padding,
    )


def _word(token: Any) -> str | None:
    """A special token in a config."""
    found = token.get("content") if isinstance(token, Mapping) else token
    return found if isinstance(found, str) else None


def _in_two_files(folder: Path) -> Tokenizer:
    """Like transformers' CLIPTokenizer: with its own cleaning, and no repairs."""
    vocabulary, config = _json(folder / VOCABULARY), _config(folder)
    merges = _merges(_text(folder / PAIRS), str(folder / PAIRS))
    start = _word(config.get("bos_token")) or "<|startoftext|>"
    end = _word(config.get("eos_token")) or "<|endoftext|>"
    tokenizers, where = library(), str(folder / VOCABULARY)
    for mark in (start, end):
        if not isinstance(vocabulary.get(mark), int):
            raise UserError(f"{where}: has no token {mark!r}")
    special = r"<\|startoftext\|>|<\|endoftext\|>"
    words = rf"{special}|'s|'t|'re|'ve|'m|'ll|'d|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+"
    try:
        found = tokenizers.Tokenizer(
            tokenizers.models.BPE(vocab=vocabulary, merges=merges, end_of_word_suffix="</w>", unk_token=end)
        )
    except Exception as error:  # the library raises plain exceptions
        raise UserError(f"{where}: the library tokenizers does not take it ({first_line(error)})") from None
    cleaned, before = tokenizers.normalizers, tokenizers.pre_tokenizers
    found.normalizer = cleaned.Sequence(
        [cleaned.NFC(), cleaned.Replace(tokenizers.Regex(r"\s+"), " "), cleaned.Lowercase()]
    )
    found.pre_tokenizer = before.Sequence(
        [
            before.Split(tokenizers.Regex(words), behavior="removed", invert=True),
            before.ByteLevel(add_prefix_space=False),
        ]
    )
    found.add_special_tokens([tokenizers.AddedToken(mark, special=True) for mark in dict.fromkeys((start, end))])
    found.post_processor = tokenizers.processors.RobertaProcessing(
        (end, vocabulary[end]), (start, vocabulary[start]), trim_offsets=False, add_prefix_space=False
    )
    return _of_library(found, config, where)


# ---- SigLIP's


def _is_siglip(folder: Path) -> bool:
    return str(_config(folder).get("tokenizer_class", "")).startswith("Siglip")


def _siglip(path: Path) -> Tokenizer:
    pieces, config = SentencePieces(_bytes(path), str(path)), _config(path.parent)
    longest = config.get("model_max_length")
    end = pieces.processor.piece_to_id(_word(config.get("eos_token")) or "</s>")
    padding = pieces.processor.piece_to_id(_word(config.get("pad_token")) or "</s>")
    context = longest if isinstance(longest, int) and longest <= 65_536 else 64
    return Tokenizer(pieces, "siglip", context, start=None, end=end, padding=padding)
