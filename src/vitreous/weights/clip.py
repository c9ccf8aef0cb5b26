"""CLIP (Radford et al. 2021), both towers or the visual one alone: OpenAI's own names, which open_clip keeps, and
transformers'.

A norm before the first block, the sigmoid GELU, patches without a bias, a last norm on the class token alone, and a
projection to the space that the text tower shares.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.models.text import TextSettings
from vitreous.tasks import ImageTextSettings
from vitreous.weights import processors
from vitreous.weights.card import Card
from vitreous.weights.formats import Format, Given
from vitreous.weights.rules import Rule, aside, layer, prefixed, same, transposed
from vitreous.weights.text_towers import (
    OLD_END,
    block,
    check_towers,
    number,
    openai_block,
    openai_text,
    openai_text_as_read,
    openai_text_rules,
    openai_tokenizer,
    refuse_other_text,
    transformers_text,
    transformers_text_rules,
    transformers_tokenizer,
    written_openai_text,
    written_text,
)
from vitreous.weights.transformers import patches, positions, refuse_others, vit
from vitreous.weights.transformers_config import CONFIG, GELUS, WRITTEN_GELUS, Config, config_in
from vitreous.words import written
from vitreous.words.tokenizer import Tokenizer

PREPROCESSING = Preprocessing(
    crop="centre",
    crop_fraction=1.0,
    interpolation="bicubic",
    mean=processors.CLIP_MEAN,
    std=processors.CLIP_STD,
)
PARTS: dict[str, Any] = {"pre_norm": True, "patch_bias": False, "pool_norm": "after"}


def _class_token(theirs: str) -> Rule:
    """(D,) in theirs, a table of one row in ours."""
    return Rule(("encoder.prefix.tokens",), (theirs,), lambda token: (token[None],), lambda table: (table[0],))


# ---- transformers

TEXT_DEFAULTS = {
    "vocab_size": 49_408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "eos_token_id": 49_407,
}


@dataclass(frozen=True)
class TransformersClip(Format):
    name: str = "transformers-clip"
    title: str = "transformers' CLIP: both towers, or the visual one with or without its projection"
    container: Literal["safetensors", "npz"] = "safetensors"
    start: str = "vision_model."  # what stands before the tower's parts

    def fits(self, given: Given) -> bool:
        return any(name.endswith("pre_layrnorm.weight") for name in given.tensors)

    def found_in(self, given: Given) -> "TransformersClip":
        """CLIPVisionModel alone, as version 5 saves it, has nothing before its parts."""
        return self if f"{self.start}pre_layrnorm.weight" in given.tensors else replace(self, start="")

    def card(self, given: Given, picture_px: tuple[int, int] | None = None) -> Card:
        document = config_in(given.documents, given.where)
        projection = given.tensors.get("visual_projection.weight")
        model = self._model(document, f"{given.where}: {CONFIG}", None if projection is None else len(projection))
        assumed = replace(PREPROCESSING, size_px=model.picture_px, odd_margin="down", skip_fitting=False)
        preprocessing = processors.preprocessing_in(given.documents, given.where) or assumed
        return Card(model=model, task=self._task(given, document), preprocessing=preprocessing)

    def _task(self, given: Given, document: Mapping[str, Any]) -> ImageTextSettings | None:
        if not {"text_projection.weight", "visual_projection.weight", "logit_scale"} <= set(given.tensors):
            return None
        text = self._text(document.get("text_config") or {}, f"{given.where}: {CONFIG}")
        return ImageTextSettings(width=None, text=text)

    def _text(self, document: Mapping[str, Any], where: str) -> TextSettings:
        text = transformers_text(document, TEXT_DEFAULTS, where)
        end = Config(document, TEXT_DEFAULTS, where).integer("eos_token_id")
        return replace(text, end=text.vocabulary - 1 if end == OLD_END else end)

    def tokenizer(self, folder: Path, card: Card) -> Tokenizer | None:
        task = check_towers(card, self.name)
        return None if task is None else transformers_tokenizer(folder, task.text)

    def token_files(self, tokenizer: Tokenizer) -> tuple[dict[str, bytes], tuple[str, ...]]:
        return written.for_transformers(tokenizer, "CLIPTokenizer")

    def _model(self, document: Mapping[str, Any], where: str, projection: int | None) -> ViTSettings:
        defaults = {
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "num_channels": 3,
            "image_size": 224,
            "patch_size": 32,
            "hidden_act": "quick_gelu",
            "layer_norm_eps": 1e-5,
        }
        # With the text tower beside it, the visual one has its own part in the config.
        config = Config(document.get("vision_config") or document, defaults, where)
        return ViTSettings.of(
            picture_px=config.pair("image_size"),
            patch=config.integer("patch_size"),
            channels=config.integer("num_channels"),
            width=config.integer("hidden_size"),
            depth=config.integer("num_hidden_layers"),
            heads=config.integer("num_attention_heads"),
            mlp_width=config.integer("intermediate_size"),
            gelu=config.choice("hidden_act", GELUS),
            norm_epsilon=config.number("layer_norm_eps"),
            projection=projection,
            **PARTS,
        )

    def rules(self, card: Card) -> list[Rule]:
        model, task = vit(card, self.name), check_towers(card, self.name)
        start, embeddings = self.start, f"{self.start}embeddings."
        rules = [
            *patches(model, f"{embeddings}patch_embedding"),
            _class_token(f"{embeddings}class_embedding"),
            positions(model, f"{embeddings}position_embedding.weight", batched=False),
            *layer("encoder.pre_norm", f"{start}pre_layrnorm"),
            *layer("encoder.norm", f"{start}post_layernorm"),
        ]
        rules += [same("encoder.projection.weight", "visual_projection.weight")] if model.ends.projection else []
        for i in range(model.depth):
            rules += block(f"encoder.blocks.{i}.", f"{start}encoder.layers.{i}.")
        rules += [aside(r".*embeddings\.position_ids$")]  # a count that older versions saved
        if task is None:
            return [*rules, aside(r"text_model\.|text_projection\.|logit_scale$")]
        return [*rules, *transformers_text_rules(task.text, "text_projection"), number("log_scale", "logit_scale")]

    def architecture(self, card: Card) -> str:
        if card.task is not None:
            return "CLIPModel"
        return "CLIPVisionModelWithProjection" if vit(card, self.name).ends.projection else "CLIPVisionModel"

    def run_as(self, card: Card) -> Card:
        self.documents(card)  # refuses, by its field, a model that no config can describe
        return replace(card, preprocessing=processors.as_written(card.preprocessing))

    def documents(self, card: Card) -> dict[str, Any]:
        model, task = vit(card, self.name), check_towers(card, self.name)
        height = model.picture_px[0]
        config: dict[str, Any] = {
            "architectures": [self.architecture(card)],
            "model_type": "clip_vision_model",
            "hidden_size": model.width,
            "intermediate_size": model.block.mlp_width or 4 * model.width,
            "projection_dim": model.ends.projection or 512,
            "num_hidden_layers": model.depth,
            "num_attention_heads": model.heads,
            "num_channels": model.channels,
            "image_size": height,
            "patch_size": model.patch if isinstance(model.patch, int) else model.patch[0],
            "hidden_act": WRITTEN_GELUS[model.block.gelu],
            "layer_norm_eps": model.block.norm_epsilon,
            "attention_dropout": 0.0,
        }
        refuse_others(self.name, model, self._model(config, CONFIG, model.ends.projection))
        if task is not None:
            config = self._both(config, task.text)
        return {CONFIG: config, processors.FILE: processors.write_preprocessing(card.preprocessing)}

    def _both(self, vision: dict[str, Any], text: TextSettings) -> dict[str, Any]:
        """The config of a model with a text tower, from that of the visual one."""
        width = vision["projection_dim"]
        config = {**written_text(text), "eos_token_id": text.end, "projection_dim": width}
        refuse_other_text(self.name, text, self._text(config, CONFIG))
        inner = {name: value for name, value in vision.items() if name != "architectures"}
        return {
            "architectures": vision["architectures"],
            "model_type": "clip",
            "projection_dim": width,
            "text_config": {"model_type": "clip_text_model", **config},
            "vision_config": inner,
        }


# ---- OpenAI's names

# What OpenAI's archives hold beside the weights; and with it the text tower.
NUMBERS = r"(input_resolution|context_length|vocab_size|attn_mask)$"
TEXT = (
    r"(transformer|token_embedding|ln_final)\."
    rf"|(positional_embedding|text_projection|logit_scale|logit_bias)(\.|$)|{NUMBERS}"
)
# What stands before the names: in a state dict, in one of several GPUs, and in a checkpoint of open_clip's training.
STARTS = ("", "module.", "state_dict.", "state_dict.module.")
CHECKPOINT = r"(optimizer|scaler)\."


@dataclass(frozen=True)
class OpenAiClip(Format):
    """Without a config it is one of OpenAI's own, or a checkpoint of open_clip's training: heads of width 64. With its
    config, open_clip's may differ."""

    name: str = "clip"
    title: str = "OpenAI's CLIP and open_clip: both towers, or the visual one"
    container: Literal["safetensors", "npz"] = "safetensors"
    config: str = "open_clip_config.json"
    start: str = ""  # what stands before all names

    def fits(self, given: Given) -> bool:
        names = {f"{_start(given)}visual.{name}" for name in ("conv1.weight", "class_embedding", "ln_pre.weight")}
        return names <= set(given.tensors)

    def found_in(self, given: Given) -> "OpenAiClip":
        return replace(self, start=_start(given))

    def card(self, given: Given, picture_px: tuple[int, int] | None = None) -> Card:
        start = _start(given)
        names = {name: name.removeprefix(start) for name in given.tensors if name.startswith(start)}
        given = replace(given, tensors={bare: given.tensors[name] for name, bare in names.items()})
        document = given.documents.get(self.config) or {}
        cfg = document.get("model_cfg") or {}
        where = f"{given.where}: {self.config}"
        tower = Config(cfg.get("vision_cfg") or {}, {"head_width": 64}, where)
        for name in ("ls_init_value", "attentional_pool", "input_patchnorm", "no_ln_pre", "timm_model_name"):
            tower.demand(name, None, False)
        for name in ("act_kwargs", "norm_kwargs"):
            tower.demand(name, None, {})
        tower.demand("pool_type", None, "tok")
        kernel = given.tensors["visual.conv1.weight"]
        width, channels, *patch = kernel.shape
        depth = sum(name.endswith(".attn.in_proj_weight") and name.startswith("visual.") for name in given.tensors)
        projection = given.tensors.get("visual.proj")
        heads, rest = divmod(width, tower.integer("head_width"))
        if rest:
            raise UserError(f"{given.where}: width {width} is no multiple of a head's {tower['head_width']}")
        # A config that is silent has the exact GELU, as open_clip's training; a bare state dict is OpenAI's.
        quick = cfg.get("quick_gelu", False) if document else not start
        model = ViTSettings.of(
            picture_px=_picture(given, (patch[0], patch[1]), picture_px),
            patch=patch[0] if patch[0] == patch[1] else (patch[0], patch[1]),
            channels=channels,
            width=width,
            depth=depth,
            heads=heads,
            mlp_width=len(given.tensors["visual.transformer.resblocks.0.mlp.c_fc.weight"]),
            gelu="quick" if quick else "erf",
            norm_epsilon=1e-5,
            projection=None if projection is None else projection.shape[1],
            **PARTS,
        )
        task = None
        if {"token_embedding.weight", "text_projection", "visual.proj", "logit_scale"} <= set(given.tensors):
            text = openai_text(given, cfg.get("text_cfg") or {}, quick, where)
            task = ImageTextSettings(width=None, text=text)
        return Card(model=model, task=task, preprocessing=self._preprocessing(document, model.picture_px, where))

    def tokenizer(self, folder: Path, card: Card) -> Tokenizer | None:
        task = check_towers(card, self.name)
        return None if task is None else openai_tokenizer(folder, task.text)

    def token_files(self, tokenizer: Tokenizer) -> tuple[dict[str, bytes], tuple[str, ...]]:
        return written.for_clip(tokenizer)

    def _preprocessing(self, document: Mapping[str, Any], size: tuple[int, int], where: str) -> Preprocessing:
        found = Config(document.get("preprocess_cfg") or {}, {"interpolation": "bicubic"}, where)
        found.demand("resize_mode", None, "shortest", "squash")
        mean, std = (
            tuple(found.get(name) or usual)
            for name, usual in (("mean", PREPROCESSING.mean), ("std", PREPROCESSING.std))
        )
        return replace(
            PREPROCESSING,
            size_px=size,
            crop="squash" if found.get("resize_mode") == "squash" else "centre",
            interpolation=found.choice("interpolation", {name: name for name in ("bicubic", "bilinear")}),  # type: ignore[arg-type]
            mean=mean,
            std=std,
        )

    def assumed(self, given: Given, card: Card) -> list[str]:
        if given.documents.get(self.config):
            return []
        whose = "a model that open_clip trained, with the exact" if _start(given) else "OpenAI's own, with the quick"
        return [f"no {self.config}: read as {whose} GELU and heads 64 wide"]

    def rules(self, card: Card) -> list[Rule]:
        model, task = vit(card, self.name), check_towers(card, self.name)
        rules = [
            *patches(model, "visual.conv1"),
            _class_token("visual.class_embedding"),
            positions(model, "visual.positional_embedding", batched=False),
            *layer("encoder.pre_norm", "visual.ln_pre"),
            *layer("encoder.norm", "visual.ln_post"),
        ]
        rules += [transposed("encoder.projection.weight", "visual.proj")] if model.ends.projection else []
        for i in range(model.depth):
            rules += openai_block(f"encoder.blocks.{i}.", f"visual.transformer.resblocks.{i}.")
        rules += [] if task is None else [*openai_text_rules(task.text), number("log_scale", "logit_scale")]
        besides = rf"{CHECKPOINT}|{re.escape(self.start)}({TEXT if task is None else NUMBERS})"
        return [*(prefixed(rule, self.start) for rule in rules), aside(besides)]

    def run_as(self, card: Card) -> Card:
        document = self.documents(card)[self.config]
        return replace(card, preprocessing=self._preprocessing(document, card.preprocessing.size_px, self.config))

    def documents(self, card: Card) -> dict[str, Any]:
        model, task = vit(card, self.name), check_towers(card, self.name)
        usual = ViTSettings.of(
            picture_px=model.picture_px,
            patch=model.patch,
            channels=model.channels,
            width=model.width,
            depth=model.depth,
            heads=model.heads,
            mlp_width=model.block.mlp_width,
            gelu="erf" if model.block.gelu == "erf" else "quick",
            norm_epsilon=1e-5,
            projection=model.ends.projection,
            **PARTS,
        )
        refuse_others(self.name, model, usual)
        p = card.preprocessing
        if p.crop == "centre" and p.crop_fraction != 1:
            raise UserError(f"{self.name} cannot store a crop_fraction of {p.crop_fraction:g}: its crops keep all")
        height, width = model.picture_px
        tower = {
            "image_size": height if height == width else [height, width],
            "layers": model.depth,
            "width": model.width,
            "head_width": model.width // model.heads,
            "mlp_ratio": (model.block.mlp_width or 4 * model.width) / model.width,
            "patch_size": model.patch,
        }
        preprocess = {
            "mean": list(p.mean),
            "std": list(p.std),
            "interpolation": p.interpolation,
            "resize_mode": "squash" if p.crop in ("squash", "letterbox") else "shortest",
        }
        cfg: dict[str, Any] = {
            "embed_dim": model.ends.projection or model.width,
            "quick_gelu": model.block.gelu == "quick",
            "vision_cfg": tower,
        }
        if task is not None:
            refuse_other_text(self.name, task.text, openai_text_as_read(task.text, model.block.gelu))
            cfg["text_cfg"] = written_openai_text(task.text)
        return {self.config: {"model_cfg": cfg, "preprocess_cfg": preprocess}}


def _start(given: Given) -> str:
    return next((start for start in STARTS if f"{start}visual.conv1.weight" in given.tensors), "")


def _picture(given: Given, patch: tuple[int, int], picture_px: tuple[int, int] | None) -> tuple[int, int]:
    """From the number of positions, of which one is the class token's: a square, unless the size is given."""
    cells = len(given.tensors["visual.positional_embedding"]) - 1
    if picture_px is not None and (picture_px[0] // patch[0]) * (picture_px[1] // patch[1]) == cells:
        return picture_px
    side = round(cells**0.5)
    if side * side != cells:
        raise UserError(f"{given.where}: {cells} positions are not a square grid; say which picture size they are for")
    return side * patch[0], side * patch[1]


FORMATS = (TransformersClip(), OpenAiClip())
