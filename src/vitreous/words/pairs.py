"""Pieces by the `tokenizers` library: CLIP's byte pairs, and anything else that a tokenizer.json describes."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vitreous.errors import UserError, first_line
from vitreous.words.cleaning import needed
from vitreous.words.tokenizer import Pieces, Tokenizer

# Words, single digits, and everything else: as in GPT-2, without the spaces. For Python's regex, with which CLIP cuts
# texts, U+0345 is none of these if it ignores case.
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}\x{345}]+"
WORD_END = "</w>"
START, END = "<start_of_text>", "<end_of_text>"  # as open_clip writes them


def library() -> Any:
    """The library has threads, which is safe: the processes that read pictures are forked, and never call it."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    return needed("tokenizers")


class PairPieces(Pieces):
    def __init__(self, tokenizer: Any, marks: Mapping[str, int] | None = None) -> None:
        """`marks`: words in a text that are single tokens, by OpenAI's rule."""
        self.tokenizer, self.marks = tokenizer, dict(marks or {})
        tokenizer.no_padding()
        tokenizer.no_truncation()

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size(with_added_tokens=True))

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        if any(mark in text for text in texts for mark in self.marks):
            return [self._with_marks(text) for text in texts]
        return self._plain(texts)

    def _plain(self, texts: Sequence[str]) -> list[list[int]]:
        # A lone surrogate is not text: it comes from a broken file.
        readable = [text.encode(errors="replace").decode() for text in texts]
        return [found.ids for found in self.tokenizer.encode_batch(readable, add_special_tokens=False)]

    def _with_marks(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in marked(text, list(self.marks)):
            ids += [self.marks[part]] if part in self.marks else self._plain([part])[0]
        return ids

    def document(self) -> dict[str, Any]:
        return {"kind": "tokenizers", "marks": self.marks, "definition": json.loads(self.tokenizer.to_str())}

    @classmethod
    def of_document(cls, document: Mapping[str, Any], where: str) -> "PairPieces":
        match document:
            case {"marks": dict(marks), "definition": dict(definition)} if all(
                isinstance(number, int) for number in marks.values()
            ):
                return cls(defined(definition, where), marks)
        raise UserError(f"{where}: its pieces are damaged")


def marked(text: str, marks: Sequence[str]) -> list[str]:
    """A text cut around its marks. A mark counts after a space, a letter, a digit or another mark, where a word ends;
    after other signs it is read as more of these."""
    parts, begun, at = [], 0, 0
    while at < len(text):
        mark = next((mark for mark in marks if text.startswith(mark, at)), None)
        if mark is None or not (at == begun or text[at - 1].isspace() or text[at - 1].isalnum()):
            at += 1
            continue
        parts += [text[begun:at], mark]
        begun = at = at + len(mark)
    return [part for part in (*parts, text[begun:]) if part]


def defined(definition: Mapping[str, Any], where: str) -> Any:
    """The library's own tokenizer for a tokenizer.json."""
    try:
        return library().Tokenizer.from_str(json.dumps(definition))
    except UserError:
        raise
    except Exception as error:  # the library raises plain exceptions
        raise UserError(f"{where}: the library tokenizers does not take it ({first_line(error)})") from None


# ---- CLIP's byte pairs


def byte_letters() -> list[str]:
    """A visible letter for each of the 256 bytes, in the order of GPT-2's table: printable ones come first and are
    themselves, the others follow in order, as letters from 256 on."""
    own = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return [*map(chr, own), *(chr(256 + place) for place in range(256 - len(own)))]


def clip_tokenizer(merges: Sequence[tuple[str, str]], context: int = 77) -> Tokenizer:
    """OpenAI's: letters of bytes, those that end a word, the result of each merge, and two marks."""
    letters = byte_letters()
    words = [*letters, *(letter + WORD_END for letter in letters), *map("".join, merges), START, END]
    vocabulary = {word: number for number, word in enumerate(words)}
    marks = {START: vocabulary[START], END: vocabulary[END]}
    pieces = PairPieces(byte_pairs(vocabulary, merges), marks)
    return Tokenizer(pieces, "clip", context, start=marks[START], end=marks[END], padding=0)


def byte_pairs(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> Any:
    """The library's tokenizer for words of bytes whose last letter is marked."""
    tokenizers = library()
    found = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab=dict(vocabulary), merges=[tuple(pair) for pair in merges], end_of_word_suffix=WORD_END
        )
    )
    found.pre_tokenizer = _words()
    return found


def _words() -> Any:
    tokenizers = library()
    before = tokenizers.pre_tokenizers
    return before.Sequence(
        [
            before.Split(tokenizers.Regex(WORDS), behavior="removed", invert=True),
            before.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def train_tokenizer(captions: Iterable[str], size: int, context: int) -> Tokenizer:
    """Byte pairs learned from captions: at most `size` of them, fewer if the captions do not have that many."""
    tokenizers = library()
    from vitreous.words.cleaning import cleaning

    clean = cleaning("clip")
    letters = byte_letters()
    if size < 2 * len(letters) + 2:
        raise UserError(f"a vocabulary of {size} tokens: every byte needs two, so {2 * len(letters) + 2} are the least")
    learner = tokenizers.Tokenizer(tokenizers.models.BPE(end_of_word_suffix=WORD_END))
    learner.pre_tokenizer = _words()
    learner.train_from_iterator(
        (clean(caption) for caption in captions),
        tokenizers.trainers.BpeTrainer(
            vocab_size=size - len(letters) - 2, end_of_word_suffix=WORD_END, show_progress=False, min_frequency=2
        ),
    )
    merges = [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
    return clip_tokenizer(merges[: size - 2 * len(letters) - 2], context)
