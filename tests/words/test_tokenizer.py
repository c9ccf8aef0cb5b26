"""Tokenizers: equal to those of the libraries that their formats belong to, on texts that are hard to read."""

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hard_strings import hard_strings

from vitreous.errors import UserError
from vitreous.weights.peers import imported, quiet
from vitreous.words import cleaning
from vitreous.words.files import read_tokenizer
from vitreous.words.pairs import marked, train_tokenizer
from vitreous.words.tokenizer import Tokenizer

TEXTS = hard_strings()
CAPTIONS = [f"a {size} {colour} circle left of the café's square" for size in ("small", "large") for colour in "rgb"]


@pytest.fixture(scope="module")
def open_clip():
    imported("open_clip")
    return imported("open_clip", "open_clip.tokenizer")


def same(ours, theirs, texts=TEXTS):
    differ = [text for text, one, other in zip(texts, ours, theirs, strict=True) if not np.array_equal(one, other)]
    assert not differ, (len(differ), differ[:3])


def written(tokenizer, folder):
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer.document()))
    return read_tokenizer(folder)


# ---- OpenAI's and open_clip's


def test_clips_merges_give_open_clips_tokens(open_clip, tmp_path):
    ours = read_tokenizer(open_clip.default_bpe())
    marks = ["<start_of_text> a", "!!<end_of_text>", "a<end_of_text><END_OF_TEXT>b", "1<start_of_text>."]
    texts = [*TEXTS, *marks]
    theirs = open_clip.SimpleTokenizer()(texts).numpy()
    same(ours(texts), theirs, texts)
    assert (len(ours), ours.start, ours.end) == (49408, 49406, 49407)
    same(written(ours, tmp_path)(texts), theirs, texts)  # as it is saved with a model
    short = open_clip.SimpleTokenizer(context_length=16)(TEXTS).numpy()
    same(read_tokenizer(open_clip.default_bpe(), context=16)(TEXTS), short)


def test_marks_count_where_a_word_ends():
    assert marked("a<m>b !<m> <m><m>", ["<m>"]) == ["a", "<m>", "b !<m> ", "<m>", "<m>"]


# ---- transformers' CLIP


def test_transformers_clip_in_one_file_and_in_two(open_clip, tmp_path):
    transformers = imported("transformers")
    packed = Path(open_clip.default_bpe()).read_bytes()
    merges = gzip.decompress(packed).decode().split("\n")[1 : 49152 - 256 - 2 + 1]
    vocabulary = dict(open_clip.SimpleTokenizer().encoder)
    for new, old in (("<|startoftext|>", "<start_of_text>"), ("<|endoftext|>", "<end_of_text>")):
        vocabulary[new] = vocabulary.pop(old)
    two, one = tmp_path / "two", tmp_path / "one"
    two.mkdir()
    (two / "vocab.json").write_text(json.dumps(vocabulary))
    (two / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    (two / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 77, "tokenizer_class": "CLIPTokenizer"}))
    with quiet(transformers):
        peer = transformers.CLIPTokenizer.from_pretrained(two)
        peer.save_pretrained(one)
        texts = [*TEXTS, "a <|endoftext|> b", "<|STARTOFTEXT|>", "x<|endoftext|>y"]
        theirs = peer(texts, padding="max_length", truncation=True, max_length=77)["input_ids"]
    for folder in (two, one):
        ours = read_tokenizer(folder)
        same(ours(texts), theirs, texts)
        assert (ours.context, ours.start, ours.padding) == (77, 49406, 49407)
    assert not np.array_equal(read_tokenizer(open_clip.default_bpe())(TEXTS), read_tokenizer(one)(TEXTS))


# ---- SigLIP's


@pytest.fixture(scope="module")
def spiece(tmp_path_factory):
    """A small sentencepiece model, as the one of T5 that SigLIP has."""
    sentencepiece = imported("sentencepiece")
    folder = tmp_path_factory.mktemp("sentences")
    sentences = [text for text in TEXTS[:27] if text.strip()] + CAPTIONS * 20
    (folder / "texts.txt").write_text("\n".join(" ".join(text.split())[:400] for text in sentences))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "texts.txt"),
        model_prefix=str(folder / "spiece"),
        vocab_size=400,
        hard_vocab_limit=False,
        character_coverage=0.98,
        pad_id=-1,
        bos_id=-1,
        eos_id=1,
        unk_id=2,
        minloglevel=2,
    )
    return folder / "spiece.model"


def test_siglips_sentences_are_transformers(spiece, tmp_path):
    transformers = imported("transformers")
    with quiet(transformers):
        peer = transformers.SiglipTokenizer(str(spiece))
        theirs = peer(TEXTS, padding="max_length", truncation=True, max_length=64)["input_ids"]
    ours = read_tokenizer(spiece)
    assert (ours.cleaning, ours.context, ours.start, ours.end, ours.padding) == ("siglip", 64, None, 1, 1)
    same(ours(TEXTS), theirs)
    same(written(ours, tmp_path)(TEXTS), theirs)


# ---- ours


def test_one_is_learned_from_captions():
    learned = train_tokenizer(CAPTIONS * 3, size=600, context=24)
    again = train_tokenizer(CAPTIONS * 3, size=600, context=24)
    assert learned.document() == again.document() and len(learned) <= 600
    ids = learned([*CAPTIONS, "nothing of this 😀 was learned", ""])
    assert ids.shape == (8, 24) and ids.dtype == np.int32
    assert (ids[:, 0] == learned.start).all() and ((ids == learned.end).sum(axis=1) == 1).all()
    assert (ids[0] != learned.padding).sum() < 15  # words that are common are single tokens
    assert ids[-1].tolist() == [learned.start, learned.end, *[learned.padding] * 22]
    with pytest.raises(UserError, match="514 are the least"):
        train_tokenizer(CAPTIONS, size=100, context=24)


@pytest.mark.parametrize(
    "contents",
    [
        {"a.json": "{"},
        {"a.json": "[]"},
        {"a.json": '{"model": {"type": "BPE"}}'},
        {"a.json": '{"format": 1, "pieces": {}}'},
        {"a.json": '{"format": 9, "pieces": {}}'},
        {"a.model": "no model"},
        {"a.txt": "one two three\nfour"},
        {"a.gz": "\x1f\x8bdamaged"},
        {"vocab.json": "{}", "merges.txt": "#version: 0.2\na b\n"},
        {"other.txt": ""},
        {},
    ],
)
def test_what_is_no_tokenizer_is_refused_in_one_line(tmp_path, contents):
    for name, text in contents.items():
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    names = list(contents)
    where = tmp_path / names[0] if len(names) == 1 and names[0] != "other.txt" else tmp_path
    with pytest.raises(UserError) as raised:
        read_tokenizer(where)
    assert str(where) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "named"), [({"end": 10**6}, "end"), ({"start": -1}, "start"), ({"context": 2}, "tokens")]
)
def test_what_a_document_says_is_checked(changes, named):
    tokenizer = train_tokenizer(CAPTIONS, size=520, context=24)
    with pytest.raises(UserError, match=named):
        Tokenizer.of_document(replace(tokenizer, **changes).document(), "here")


def test_a_library_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ftfy", None)
    with pytest.raises(UserError, match=r"ftfy: pip install 'vitreous\[words\]'"):
        cleaning.cleaning("clip")
