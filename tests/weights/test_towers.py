"""Both towers of CLIP and SigLIP, with their temperature and tokenizer, against transformers and open_clip."""

import json
import re
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from peers import assert_close_relative, randomise
from safetensors.torch import load_file, save_file

from vitreous import settings
from vitreous.conversion.convert import convert
from vitreous.conversion.verify import verify
from vitreous.errors import UserError
from vitreous.recipes.words import flickr8k_clip, flickr8k_siglip
from vitreous.tasks import ImageTextSettings
from vitreous.weights.card import Card
from vitreous.weights.peers import imported, quiet
from vitreous.weights.text_towers import some_rows
from vitreous.weights.trained import Trained
from vitreous.words.pairs import train_tokenizer
from vitreous.words.written import for_clip, for_transformers

TEXTS = ["A photo of a cat's tail", "“Zwei” Hunde & eine Kätzchen 😀", "", "long " * 40, "naÃ¯ve &amp; fixed"]
SIZES = {"hidden_size": 128, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION = SIZES | {"image_size": 24, "patch_size": 8}
WORDS = SIZES | {"hidden_size": 64, "max_position_embeddings": 16}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["a photo of a cat and a dog", "two dogs on the grass"] * 4, size=540, context=16)


@pytest.fixture(scope="module")
def library():
    found = imported("transformers")
    with quiet(found):
        yield found


def clip(library, folder, tokenizer, **changes):
    """A whole CLIPModel with its tokenizer, as transformers saves one."""
    text = WORDS | {"vocab_size": len(tokenizer), "bos_token_id": tokenizer.start, "eos_token_id": tokenizer.end}
    config = library.CLIPConfig(text_config=text | changes, vision_config=VISION, projection_dim=20)
    peer = library.CLIPModel(config)
    randomise(peer)
    peer.eval().save_pretrained(folder)
    for name, data in for_transformers(tokenizer, "CLIPTokenizer")[0].items():
        (folder / name).write_bytes(data)
    return peer


def siglip(library, folder):
    config = library.SiglipConfig(text_config=WORDS | {"vocab_size": 60, "projection_size": 128}, vision_config=VISION)
    peer = library.SiglipModel(config)
    randomise(peer)
    peer.eval().save_pretrained(folder)
    return peer


def same_tensors(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


# ---- transformers


@pytest.mark.parametrize("changes", [{}, {"eos_token_id": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-3}])
def test_clip_of_transformers(library, tokenizer, tmp_path, changes):
    """An end of 2 is how old configs say that the highest token ends a text, which is what it is here."""
    peer = clip(library, tmp_path / "theirs", tokenizer, **changes)
    trained = Trained.load(tmp_path / "theirs")
    assert trained.format == "transformers-clip" and isinstance(trained.card.task, ImageTextSettings)
    assert trained.card.task.text.end == tokenizer.end
    images, ids = torch.randn(2, 3, 24, 24), torch.from_numpy(trained.tokenizer()(TEXTS)).long()
    with torch.no_grad(), quiet(library):
        model = trained.task()
        theirs = peer(input_ids=ids, pixel_values=images)
        assert_close_relative(model.embed_pictures(images), theirs.image_embeds, 1e-5)
        assert_close_relative(model.embed_texts(ids), theirs.text_embeds, 1e-5)
        similar = model.log_scale.exp() * model.embed_pictures(images) @ model.embed_texts(ids).T
        assert_close_relative(similar, theirs.logits_per_image, 1e-5)
        named = library.CLIPTokenizer.from_pretrained(tmp_path / "theirs")
        padded = named(TEXTS, padding="max_length", truncation=True, max_length=16)["input_ids"]
    assert np.array_equal(trained.tokenizer()(TEXTS), padded)
    verify(tmp_path / "theirs")


def test_clip_goes_around_the_world(library, tokenizer, tmp_path):
    """From transformers to ours, to OpenAI's names, and back: bit for bit, with its tokenizer."""
    clip(library, tmp_path / "theirs", tokenizer, hidden_act="quick_gelu")
    places = [tmp_path / name for name in ("theirs", "ours", "openai", "back")]
    for (source, target), to in zip(pairwise(places), ("vitreous", "clip", "transformers-clip"), strict=True):
        assert "with a text tower" in convert(str(source), target, to)
    same_tensors(load_file(places[0] / "model.safetensors"), load_file(places[-1] / "model.safetensors"))
    first, named = Trained.load(places[1]).tokenizer(), Trained.load(places[2]).tokenizer()
    assert np.array_equal(Trained.load(places[0]).tokenizer()(TEXTS), first(TEXTS))
    assert named.cleaning == "clip" and first.cleaning == "none"  # what open_clip does to texts is part of its format
    assert np.array_equal(first(["a photo"])[0, :3], named(["a photo"])[0, :3])
    assert "ftfy" in (places[3] / "NOTES.txt").read_text()


def test_siglip_of_transformers(library, tmp_path):
    peer = siglip(library, tmp_path / "theirs")
    trained = Trained.load(tmp_path / "theirs")
    assert trained.format == "transformers-siglip" and trained.card.task.loss == "sigmoid"
    images, ids = torch.randn(2, 3, 24, 24), some_rows(trained.card.task.text)
    with torch.no_grad():
        model, theirs = trained.task(), peer(input_ids=ids, pixel_values=images)
        assert_close_relative(model.embed_pictures(images), theirs.image_embeds, 1e-5)
        assert_close_relative(model.embed_texts(ids), theirs.text_embeds, 1e-5)
        similar = model.log_scale.exp() * model.embed_pictures(images) @ model.embed_texts(ids).T + model.bias
        assert_close_relative(similar, theirs.logits_per_image, 1e-5)
    verify(tmp_path / "theirs")
    with pytest.raises(UserError, match="no tokenizer in it"):
        trained.tokenizer()


def test_siglips_visual_tower_alone_goes_both_ways(library, tmp_path):
    peer = library.SiglipVisionModel(library.SiglipVisionConfig(**VISION))
    randomise(peer)
    peer.eval().save_pretrained(tmp_path / "theirs")
    trained = Trained.load(tmp_path / "theirs")
    images = torch.randn(2, 3, 24, 24)
    with torch.no_grad():
        features, theirs = trained.encoder().eval()(images), peer(images)
        assert_close_relative(features.pooled, theirs.pooler_output, 1e-5)
        assert_close_relative(features.maps[0].flatten(2).mT, theirs.last_hidden_state, 1e-5)
    convert(str(tmp_path / "theirs"), tmp_path / "back", "transformers-siglip")
    again, info = type(peer).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    same_tensors(peer.state_dict(), again.state_dict())


def test_siglips_sentencepiece_travels_with_it(library, tmp_path):
    sentencepiece = imported("sentencepiece")
    siglip(library, tmp_path / "theirs")
    (tmp_path / "texts.txt").write_text("\n".join(["a photo of a cat and two dogs on the grass"] * 30))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "texts.txt"),
        model_prefix=str(tmp_path / "theirs" / "spiece"),
        vocab_size=40,
        hard_vocab_limit=False,
        pad_id=-1,
        bos_id=-1,
        eos_id=1,
        unk_id=2,
        minloglevel=2,
    )
    convert(str(tmp_path / "theirs"), tmp_path / "ours")
    convert(str(tmp_path / "ours"), tmp_path / "back", "transformers-siglip")
    same_tensors(*(load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back")))
    with quiet(library):
        peer = library.SiglipTokenizer.from_pretrained(tmp_path / "back")
        theirs = peer(TEXTS, padding="max_length", truncation=True, max_length=16)["input_ids"]
    assert np.array_equal(Trained.load(tmp_path / "ours").tokenizer()(TEXTS), theirs)


# ---- open_clip and OpenAI


@pytest.fixture(scope="module")
def open_clip():
    return imported("open_clip", "open_clip.model")


VISUAL = {"layers": 2, "width": 128, "head_width": 32, "patch_size": 8, "image_size": 24}
TEXTUAL = {"context_length": 16, "vocab_size": 49408, "width": 64, "heads": 4, "layers": 2}


def whole(open_clip, quick, **text):
    visual, textual = open_clip.CLIPVisionCfg(**VISUAL), open_clip.CLIPTextCfg(**TEXTUAL | text)
    peer = open_clip.CLIP(20, visual, textual, quick_gelu=quick).eval()
    randomise(peer)
    return peer


@torch.no_grad()
def compare(trained, peer, ids):
    images = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-9)):
        model, theirs = trained.task().to(dtype), peer.to(dtype)
        expected = F.normalize(theirs.encode_image(images.to(dtype)), dim=1)
        assert_close_relative(model.embed_pictures(images.to(dtype)), expected, tolerance)
        assert_close_relative(model.embed_texts(ids), F.normalize(theirs.encode_text(ids), dim=1), tolerance)
        assert_close_relative(model.log_scale, theirs.logit_scale, tolerance)
    peer.float()


@pytest.mark.parametrize("quick", [True, False], ids=["quick-gelu", "gelu"])
def test_open_clip_answers_the_same_and_takes_it_back(open_clip, tmp_path, quick):
    peer = whole(open_clip, quick)
    (tmp_path / "theirs").mkdir()
    save_file(peer.state_dict(), tmp_path / "theirs" / "open_clip_model.safetensors")
    model = {"embed_dim": 20, "vision_cfg": VISUAL, "text_cfg": TEXTUAL} | ({"quick_gelu": True} if quick else {})
    document = {"model_cfg": model, "preprocess_cfg": {}}
    (tmp_path / "theirs" / "open_clip_config.json").write_text(json.dumps(document))
    trained = Trained.load(tmp_path / "theirs")
    assert trained.format == "clip" and trained.card.task.text.gelu == ("quick" if quick else "erf")
    ids = torch.from_numpy(trained.tokenizer()(TEXTS)).long()
    theirs = imported("open_clip", "open_clip.tokenizer").SimpleTokenizer(context_length=16)(TEXTS)
    assert torch.equal(ids, theirs)  # found where open_clip keeps it
    compare(trained, peer, ids)
    convert(str(tmp_path / "theirs"), tmp_path / "back", "clip")
    same_tensors(peer.state_dict(), load_file(tmp_path / "back" / "model.safetensors"))
    assert Trained.load(tmp_path / "back").card == trained.card


class Published(torch.nn.Module):
    """As OpenAI's code has it: the names of the towers, and three numbers beside them."""

    def __init__(self, peer):
        super().__init__()
        for name, part in peer.named_children():
            self.add_module(name, part)
        for name in ("positional_embedding", "text_projection", "logit_scale"):
            setattr(self, name, getattr(peer, name))
        for name, number in (("input_resolution", 24), ("context_length", 16), ("vocab_size", 49408)):
            self.register_buffer(name, torch.tensor(number))

    def forward(self, x):
        return self.visual(x)


def test_openais_archive_and_state_dict(open_clip, tmp_path):
    """Heads are 64 wide, the GELU is the quick one: no config says so."""
    visual = open_clip.CLIPVisionCfg(**VISUAL | {"head_width": 64})
    peer = open_clip.CLIP(20, visual, open_clip.CLIPTextCfg(**TEXTUAL | {"heads": 1}), quick_gelu=True).eval()
    randomise(peer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive = torch.jit.trace(Published(peer).eval(), torch.randn(1, 3, 24, 24), check_trace=False)
        torch.jit.save(archive, tmp_path / "ViT-B-32.pt")
    torch.save(Published(peer).state_dict(), tmp_path / "state.pt")
    for name in ("ViT-B-32.pt", "state.pt"):
        trained = Trained.load(tmp_path / name)
        assert "quick GELU" in trained.report.assumed[0]
        compare(trained, peer, torch.from_numpy(trained.tokenizer()(TEXTS)).long())


def test_a_checkpoint_of_open_clips_training(open_clip, tmp_path):
    """Beside its optimizer; from several GPUs, every name begins with `module.`."""
    visual = open_clip.CLIPVisionCfg(**VISUAL | {"head_width": 64})
    peer = open_clip.CLIP(20, visual, open_clip.CLIPTextCfg(**TEXTUAL | {"heads": 1})).eval()
    randomise(peer)
    optimizer = {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 1e-3, "params": [0]}]}
    for start in ("", "module."):
        state = {f"{start}{name}": value for name, value in peer.state_dict().items()}
        torch.save({"epoch": 3, "name": "run", "state_dict": state, "optimizer": optimizer}, tmp_path / "epoch_3.pt")
        trained = Trained.load(tmp_path / "epoch_3.pt")
        assert "open_clip trained, with the exact GELU" in trained.report.assumed[0]
        compare(trained, peer, torch.from_numpy(trained.tokenizer()(TEXTS)).long())


def test_merges_beside_the_weights_come_first(open_clip, tokenizer, tmp_path):
    peer = whole(open_clip, True, vocab_size=len(tokenizer))
    torch.save(peer.state_dict(), tmp_path / "model.pth")
    trained = Trained.load(tmp_path / "model.pth")
    with pytest.raises(UserError, match=r"49,408 tokens, and the text tower knows 5\d\d"):
        trained.tokenizer()
    for name, data in for_clip(tokenizer)[0].items():
        (tmp_path / name).write_bytes(data)
    assert np.array_equal(trained.tokenizer()(TEXTS), tokenizer(TEXTS))


# ---- what does not fit


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no_causal_mask", True),
        ("pool_type", "last"),
        ("hf_model_name", "roberta"),
        ("hf_tokenizer_name", "facebook/xlm-v-base"),
        ("tokenizer_kwargs", {"clean": "canonicalize"}),
        ("norm_kwargs", {"eps": 1e-6}),
        ("act_kwargs", {"approximate": "tanh"}),
    ],
)
def test_other_text_towers_of_open_clip_are_refused_by_their_field(open_clip, tmp_path, name, value):
    save_file(whole(open_clip, False).state_dict(), tmp_path / "model.safetensors")
    model = {"embed_dim": 20, "vision_cfg": VISUAL, "text_cfg": TEXTUAL | {name: value}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": model}))
    with pytest.raises(UserError, match=name):
        Trained.load(tmp_path)


def test_what_a_format_has_no_place_for_is_refused_in_one_line(library, tokenizer, tmp_path: Path):
    siglip(library, tmp_path / "siglip")
    clip(library, tmp_path / "clip", tokenizer, layer_norm_eps=1e-3)
    for name, to, words in (
        ("siglip", "transformers-clip", "pool"),
        ("siglip", "timm", "encoders and classifiers"),
        ("clip", "clip", "norm_epsilon"),
        ("clip", "transformers-siglip", "pool"),
    ):
        with pytest.raises(UserError, match=words) as raised:
            convert(str(tmp_path / name), tmp_path / "out", to)
        assert "\n" not in str(raised.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("recipe", "formats"),
    [(flickr8k_clip, ["clip", "transformers-clip"]), (flickr8k_siglip, ["transformers-siglip"])],
)
def test_what_the_page_says_makes_towers_for_others(library, tokenizer, tmp_path, recipe, formats):
    page = (Path(__file__).parents[2] / "docs" / "WORDS.md").read_text()
    clip, siglip = (found.split() for found in re.findall(r"with\s+`--start none ([^`]+)`", page))
    said = clip if recipe is flickr8k_clip else siglip
    changes = {name.removeprefix("--"): value for name, value in zip(said[::2], said[1::2], strict=True)}
    small = {"picture_px": "16,16", "width": "64", "depth": "1", "heads": "2"}
    text = {"width": "32", "depth": "1", "heads": "2", "vocabulary": str(len(tokenizer)), "end": str(tokenizer.end)}
    changes |= {f"model.{name}": value for name, value in small.items()}
    changes |= {f"objective.text.{name}": value for name, value in text.items()}
    made = settings.changed(recipe(start=None), changes)
    words = replace(tokenizer, context=made.objective.text.context)
    card = Card(model=made.model, task=made.objective, preprocessing=replace(made.normalise, size_px=(16, 16)))
    weights = made.objective.build(made.model.build(), ()).state_dict()
    Trained(card, weights, "here", words=lambda: words).save(tmp_path / "ours")
    for name in formats:
        assert "read back bit for bit" in convert(str(tmp_path / "ours"), tmp_path / name, name)
