"""Text towers in the layouts of others: transformers' names, which CLIP and SigLIP share, and OpenAI's; and where the
tokenizers of such models are found."""

import importlib.util
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from vitreous.errors import UserError
from vitreous.models.text import TextSettings
from vitreous.nn.blocks import Gelu
from vitreous.tasks import ImageTextSettings
from vitreous.weights.card import Card
from vitreous.weights.formats import Given
from vitreous.weights.rules import Rule, joined, layer, reshaped, same, transposed
from vitreous.weights.transformers_config import GELUS, WRITTEN_GELUS, Config
from vitreous.words.files import DOCUMENT, PAIRS, merges_in, read_tokenizer
from vitreous.words.pairs import clip_tokenizer
from vitreous.words.tokenizer import Tokenizer

BYTE_PAIRS = "bpe_simple_vocab_16e6.txt.gz"
OLD_END = 2  # that configs of transformers name by mistake: models then look for the token of the highest number


def image_text(card: Card) -> ImageTextSettings | None:
    return card.task if isinstance(card.task, ImageTextSettings) else None


def check_towers(card: Card, name: str) -> ImageTextSettings | None:
    """What formats of CLIP and SigLIP hold: an encoder, alone or beside a text tower."""
    if card.task is not None and image_text(card) is None:
        raise UserError(f"{name} holds an encoder alone or with a text tower, and this model has a head; write another")
    task = image_text(card)
    if task is not None and task.width is not None:
        raise UserError(f"{name} has no projection outside of the picture tower, and this model has one; keep ours")
    return task


def refuse_other_text(name: str, text: TextSettings, again: TextSettings) -> None:
    """An error where what was written would be read as another tower."""
    for field in fields(text):
        one, other = (_comparable(tower, field.name) for tower in (text, again))
        if one != other:
            raise UserError(f"{name} cannot store a text tower whose {field.name} is {one!r} (only {other!r})")


def _comparable(text: TextSettings, name: str) -> Any:
    return text.mlp_width or 4 * text.width if name == "mlp_width" else getattr(text, name)


# ---- transformers'


def block(ours: str, theirs: str) -> list[Rule]:
    """Of either tower."""
    three = [f"{theirs}self_attn.{each}_proj" for each in "qkv"]
    return [
        *(
            joined(f"{ours}attention.project_in.{kind}", [f"{each}.{kind}" for each in three])
            for kind in ("weight", "bias")
        ),
        *layer(f"{ours}attention.project_out", f"{theirs}self_attn.out_proj"),
        *layer(f"{ours}attention_norm", f"{theirs}layer_norm1"),
        *layer(f"{ours}mlp_norm", f"{theirs}layer_norm2"),
        *layer(f"{ours}mlp.expand", f"{theirs}mlp.fc1"),
        *layer(f"{ours}mlp.contract", f"{theirs}mlp.fc2"),
    ]


def transformers_text(document: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> TextSettings:
    """What both configs tell alike."""
    config = Config(document, defaults, where)
    return TextSettings(
        vocabulary=config.integer("vocab_size"),
        context=config.integer("max_position_embeddings"),
        width=config.integer("hidden_size"),
        depth=config.integer("num_hidden_layers"),
        heads=config.integer("num_attention_heads"),
        mlp_width=config.integer("intermediate_size"),
        gelu=config.choice("hidden_act", GELUS),  # type: ignore[arg-type]
        norm_epsilon=config.number("layer_norm_eps"),
    )


def written_text(text: TextSettings) -> dict[str, Any]:
    return {
        "vocab_size": text.vocabulary,
        "max_position_embeddings": text.context,
        "hidden_size": text.width,
        "num_hidden_layers": text.depth,
        "num_attention_heads": text.heads,
        "intermediate_size": text.mlp_width or 4 * text.width,
        "hidden_act": WRITTEN_GELUS[text.gelu],
        "layer_norm_eps": text.norm_epsilon,
        "attention_dropout": 0.0,
    }


def transformers_text_rules(text: TextSettings, projection: str) -> list[Rule]:
    start = "text_model."
    rules = [
        same("text.tokens.weight", f"{start}embeddings.token_embedding.weight"),
        same("text.positions", f"{start}embeddings.position_embedding.weight"),
        *layer("text.norm", f"{start}final_layer_norm"),
        *layer("text.projection", projection, bias=text.projection_bias),
    ]
    for i in range(text.depth):
        rules += block(f"text.blocks.{i}.", f"{start}encoder.layers.{i}.")
    return rules


def number(ours: str, theirs: str, shape: tuple[int, ...] = ()) -> Rule:
    """A single number, which some keep in a row of its own."""
    return reshaped(ours, theirs, (), shape)


# ---- OpenAI's


def openai_text(given: Given, cfg: Mapping[str, Any], quick: bool, where: str) -> TextSettings:
    """By its shapes; open_clip's config tells the heads, which are 64 wide in OpenAI's own."""
    tensors = given.tensors
    vocabulary, width = tensors["token_embedding.weight"].shape
    config = Config(cfg, {"heads": max(1, width // 64), "no_causal_mask": False, "pool_type": "argmax"}, where)
    for name, allowed in (
        ("no_causal_mask", (False,)),
        ("pool_type", ("argmax",)),
        ("embed_cls", (None, False)),
        ("hf_model_name", (None,)),
        ("ls_init_value", (None,)),
        ("proj_bias", (None, False)),
        ("act_kwargs", (None, {})),
        ("norm_kwargs", (None, {})),
        ("hf_tokenizer_name", (None,)),
        ("tokenizer_mode", (None,)),
        ("tokenizer_kwargs", (None, {})),
    ):
        config.demand(name, *allowed)
    return TextSettings(
        vocabulary=vocabulary,
        context=len(tensors["positional_embedding"]),
        width=width,
        depth=sum(name.startswith("transformer.") and name.endswith(".attn.in_proj_weight") for name in tensors),
        heads=config.integer("heads"),
        mlp_width=len(tensors["transformer.resblocks.0.mlp.c_fc.weight"]),
        gelu="quick" if quick else "erf",
        norm_epsilon=1e-5,
        end=vocabulary - 1,  # it pools the token of the highest number
    )


def openai_text_rules(text: TextSettings) -> list[Rule]:
    rules = [
        same("text.tokens.weight", "token_embedding.weight"),
        same("text.positions", "positional_embedding"),
        *layer("text.norm", "ln_final"),
        transposed("text.projection.weight", "text_projection"),
    ]
    for i in range(text.depth):
        rules += openai_block(f"text.blocks.{i}.", f"transformer.resblocks.{i}.")
    return rules


def openai_block(ours: str, theirs: str) -> list[Rule]:
    """Of either tower."""
    return [
        *(same(f"{ours}attention.project_in.{kind}", f"{theirs}attn.in_proj_{kind}") for kind in ("weight", "bias")),
        *layer(f"{ours}attention.project_out", f"{theirs}attn.out_proj"),
        *layer(f"{ours}attention_norm", f"{theirs}ln_1"),
        *layer(f"{ours}mlp_norm", f"{theirs}ln_2"),
        *layer(f"{ours}mlp.expand", f"{theirs}mlp.c_fc"),
        *layer(f"{ours}mlp.contract", f"{theirs}mlp.c_proj"),
    ]


def written_openai_text(text: TextSettings) -> dict[str, Any]:
    return {
        "context_length": text.context,
        "vocab_size": text.vocabulary,
        "width": text.width,
        "heads": text.heads,
        "layers": text.depth,
        "mlp_ratio": (text.mlp_width or 4 * text.width) / text.width,
    }


def openai_text_as_read(text: TextSettings, gelu: Gelu) -> TextSettings:
    """What such files can hold, of a tower with these sizes."""
    return TextSettings(
        vocabulary=text.vocabulary,
        context=text.context,
        width=text.width,
        depth=text.depth,
        heads=text.heads,
        mlp_width=text.mlp_width,
        gelu=gelu,
        end=text.vocabulary - 1,
    )


# ---- tokenizers


def openai_tokenizer(folder: Path, text: TextSettings) -> Tokenizer:
    """CLIP's own, whatever else lies beside the weights: by its merges, in a file of the folder, or as the packages
    clip and open_clip bring them."""
    packages = (importlib.util.find_spec(name) for name in ("open_clip", "clip"))
    homes = [Path(spec.origin).parent for spec in packages if spec is not None and spec.origin is not None]
    for place in (folder, *homes):
        if (place / BYTE_PAIRS).is_file():
            return _fitting(read_tokenizer(place / BYTE_PAIRS), text, str(place / BYTE_PAIRS))
        for name in (PAIRS, DOCUMENT):
            if place == folder and (folder / name).is_file():
                found = clip_tokenizer(merges_in(folder / name))
                return _fitting(found, text, str(folder / name))
    raise UserError(
        f"{folder}: no tokenizer beside the weights ({BYTE_PAIRS}, {PAIRS} or {DOCUMENT}): put it there, or install "
        "open_clip_torch, which brings it"
    )


def transformers_tokenizer(folder: Path, text: TextSettings) -> Tokenizer:
    return _fitting(read_tokenizer(folder), text, str(folder))


def _fitting(tokenizer: Tokenizer, text: TextSettings, where: str) -> Tokenizer:
    """For rows as long as the tower reads them."""
    if len(tokenizer) > text.vocabulary:
        raise UserError(
            f"{where}: a tokenizer of {len(tokenizer):,} tokens, and the text tower knows {text.vocabulary:,}"
        )
    return replace(tokenizer, context=text.context)


def some_rows(text: TextSettings, num: int = 3) -> torch.Tensor:
    """(num, context) int64, the same every time: tokens, an end, and padding, for proofs."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, text.vocabulary, (num, text.context), generator=generator)
    ids = ids.masked_fill(ids == text.end, (text.end + 1) % text.vocabulary)
    ends = (torch.arange(num) + 1) * (text.context - 1) // num
    ids[torch.arange(num), ends] = text.end
    return ids
