"""SigLIP (Zhai et al. 2023) of transformers: both towers, or the visual one alone.

The visual tower has no class token: a learned query pools the patches. The text tower reads in both directions, pools
the last token of a row that is always full, and projects it with a bias.
"""

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
from vitreous.weights.rules import Rule, aside, layer, reshaped, same
from vitreous.weights.text_towers import (
    block,
    check_towers,
    number,
    refuse_other_text,
    transformers_text,
    transformers_text_rules,
    transformers_tokenizer,
    written_text,
)
from vitreous.weights.transformers import patches, positions, refuse_others, vit
from vitreous.weights.transformers_config import CONFIG, GELUS, WRITTEN_GELUS, Config, config_in
from vitreous.words import written
from vitreous.words.tokenizer import Tokenizer

PREPROCESSING = Preprocessing(
    crop="squash", crop_fraction=1.0, interpolation="bicubic", odd_margin="down", skip_fitting=False
)
VISION_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
TEXT_DEFAULTS = {
    "vocab_size": 32_000,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 64,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
END = 1  # of T5's vocabulary, which SigLIP has; what is pooled does not depend on it


@dataclass(frozen=True)
class Siglip(Format):
    name: str = "transformers-siglip"
    title: str = "transformers' SigLIP: both towers, or the visual one"
    container: Literal["safetensors", "npz"] = "safetensors"
    start: str = "vision_model."  # what stands before the tower's parts

    def fits(self, given: Given) -> bool:
        return any(name.endswith("head.probe") for name in given.tensors)

    def found_in(self, given: Given) -> "Siglip":
        """SiglipVisionModel alone, as version 5 saves it, has nothing before its parts."""
        return self if f"{self.start}head.probe" in given.tensors else replace(self, start="")

    def card(self, given: Given, picture_px: tuple[int, int] | None = None) -> Card:
        document = config_in(given.documents, given.where)
        where = f"{given.where}: {CONFIG}"
        model = self._model(document.get("vision_config") or document, where)
        assumed = replace(PREPROCESSING, size_px=model.picture_px)
        preprocessing = processors.preprocessing_in(given.documents, given.where) or assumed
        task = None
        if {"text_model.head.weight", "logit_scale", "logit_bias"} <= set(given.tensors):
            text = self._text(document.get("text_config") or {}, where)
            task = ImageTextSettings(loss="sigmoid", width=None, text=text)
        return Card(model=model, task=task, preprocessing=preprocessing)

    def _model(self, document: Mapping[str, Any], where: str) -> ViTSettings:
        config = Config(document, VISION_DEFAULTS, where)
        config.demand("vision_use_head", None, True)
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
            num_prefix=0,
            pool="attention",
        )

    def _text(self, document: Mapping[str, Any], where: str) -> TextSettings:
        text = transformers_text(document, TEXT_DEFAULTS, where)
        return replace(text, attention="both", pool="last", end=min(END, text.vocabulary - 1), projection_bias=True)

    def rules(self, card: Card) -> list[Rule]:
        model, task = vit(card, self.name), check_towers(card, self.name)
        start, head, width = self.start, f"{self.start}head.", model.width
        rules = [
            *patches(model, f"{start}embeddings.patch_embedding"),
            positions(model, f"{start}embeddings.position_embedding.weight", batched=False),
            *layer("encoder.norm", f"{start}post_layernorm"),
            reshaped("encoder.pooling.query", f"{head}probe", (1, width), (1, 1, width)),
            same("encoder.pooling.project_in.weight", f"{head}attention.in_proj_weight"),
            same("encoder.pooling.project_in.bias", f"{head}attention.in_proj_bias"),
            *layer("encoder.pooling.project_out", f"{head}attention.out_proj"),
            *layer("encoder.pooling.norm", f"{head}layernorm"),
            *layer("encoder.pooling.mlp.expand", f"{head}mlp.fc1"),
            *layer("encoder.pooling.mlp.contract", f"{head}mlp.fc2"),
        ]
        for i in range(model.depth):
            rules += block(f"encoder.blocks.{i}.", f"{start}encoder.layers.{i}.")
        if task is None:
            return [*rules, aside(r"text_model\.|logit_scale$|logit_bias$")]
        rules += transformers_text_rules(task.text, "text_model.head")
        return [*rules, number("log_scale", "logit_scale", (1,)), number("bias", "logit_bias", (1,))]

    def architecture(self, card: Card) -> str:
        return "SiglipVisionModel" if card.task is None else "SiglipModel"

    def tokenizer(self, folder: Path, card: Card) -> Tokenizer | None:
        task = check_towers(card, self.name)
        return None if task is None else transformers_tokenizer(folder, task.text)

    def token_files(self, tokenizer: Tokenizer) -> tuple[dict[str, bytes], tuple[str, ...]]:
        return written.for_transformers(tokenizer, "SiglipTokenizer")

    def run_as(self, card: Card) -> Card:
        self.documents(card)  # refuses, by its field, a model that no config can describe
        return replace(card, preprocessing=processors.as_written(card.preprocessing))

    def documents(self, card: Card) -> dict[str, Any]:
        model, task = vit(card, self.name), check_towers(card, self.name)
        vision = {
            "model_type": "siglip_vision_model",
            "hidden_size": model.width,
            "intermediate_size": model.block.mlp_width or 4 * model.width,
            "num_hidden_layers": model.depth,
            "num_attention_heads": model.heads,
            "num_channels": model.channels,
            "image_size": model.picture_px[0],
            "patch_size": model.patch if isinstance(model.patch, int) else model.patch[0],
            "hidden_act": WRITTEN_GELUS[model.block.gelu],
            "layer_norm_eps": model.block.norm_epsilon,
            "attention_dropout": 0.0,
        }
        refuse_others(self.name, model, self._model(vision, CONFIG))
        config: dict[str, Any] = {"architectures": [self.architecture(card)], **vision}
        if task is not None:
            config = self._both(vision, task, model.width)
        return {CONFIG: config, processors.FILE: processors.write_preprocessing(card.preprocessing)}

    def _both(self, vision: dict[str, Any], task: ImageTextSettings, width: int) -> dict[str, Any]:
        text = {**written_text(task.text), "projection_size": width}
        again = replace(self._text(text, CONFIG), end=task.text.end)  # which is the tokenizer's business
        refuse_other_text(self.name, task.text, again)
        if task.loss != "sigmoid":
            raise UserError(f"{self.name} has a bias for its logits, and this model learned without one; write another")
        return {
            "architectures": ["SiglipModel"],
            "model_type": "siglip",
            "text_config": {"model_type": "siglip_text_model", **text},
            "vision_config": vision,
        }


FORMATS = (Siglip(),)
