"""The visual tower of CLIP (Radford et al. 2021): OpenAI's own names, which open_clip keeps, and transformers'.

A norm before the first block, the sigmoid GELU, patches without a bias, a last norm on the class token alone, and a
projection to the space that the text tower shares. The text tower of a file is left where it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.weights import processors
from vitreous.weights.card import Card
from vitreous.weights.formats import Format, Given
from vitreous.weights.rules import Rule, aside, joined, layer, same, transposed
from vitreous.weights.transformers import patches, positions, refuse_others, vit
from vitreous.weights.transformers_config import CONFIG, GELUS, WRITTEN_GELUS, Config

PREPROCESSING = Preprocessing(
    crop="centre",
    crop_fraction=1.0,
    interpolation="bicubic",
    mean=processors.CLIP_MEAN,
    std=processors.CLIP_STD,
)
PARTS: dict[str, Any] = {"pre_norm": True, "patch_bias": False, "pool_norm": "after"}


def _refuse_head(card: Card, name: str) -> None:
    if card.task is not None:
        raise UserError(f"{name} holds an encoder alone, and this model has a head; write another format")


def _class_token(theirs: str) -> Rule:
    """(D,) in theirs, a table of one row in ours."""
    return Rule(("encoder.prefix.tokens",), (theirs,), lambda token: (token[None],), lambda table: (table[0],))


# ---- transformers


@dataclass(frozen=True)
class TransformersClip(Format):
    name: str = "transformers-clip"
    title: str = "transformers' CLIP, the visual tower with or without its projection"
    container: Literal["safetensors", "npz"] = "safetensors"
    start: str = "vision_model."  # what stands before the tower's parts

    def fits(self, given: Given) -> bool:
        return any(name.endswith("pre_layrnorm.weight") for name in given.tensors)

    def found_in(self, given: Given) -> "TransformersClip":
        """CLIPVisionModel alone, as version 5 saves it, has nothing before its parts."""
        return self if f"{self.start}pre_layrnorm.weight" in given.tensors else replace(self, start="")

    def card(self, given: Given, picture_px: tuple[int, int] | None = None) -> Card:
        document = given.documents.get(CONFIG)
        if not isinstance(document, dict):
            raise UserError(
                f"{given.where}: a model of transformers needs the {CONFIG} of its folder beside it, which tells the "
                "number of heads and more"
            )
        projection = given.tensors.get("visual_projection.weight")
        model = self._model(document, f"{given.where}: {CONFIG}", None if projection is None else len(projection))
        preprocessing = replace(PREPROCESSING, size_px=model.picture_px, odd_margin="down", skip_fitting=False)
        if isinstance(given.documents.get(processors.FILE), dict):
            found = given.documents[processors.FILE]
            preprocessing = processors.read_preprocessing(found, f"{given.where}: {processors.FILE}")
        return Card(model=model, preprocessing=preprocessing)

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
        model = vit(card, self.name)
        _refuse_head(card, self.name)
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
            rules += self._block(f"encoder.blocks.{i}.", f"{start}encoder.layers.{i}.")
        # The text tower, and a count that older versions saved.
        return [*rules, aside(r"text_model\.|text_projection\.|logit_scale$|.*embeddings\.position_ids$")]

    def architecture(self, card: Card) -> str:
        return "CLIPVisionModelWithProjection" if vit(card, self.name).ends.projection else "CLIPVisionModel"

    def _block(self, ours: str, theirs: str) -> list[Rule]:
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

    def run_as(self, card: Card) -> Card:
        self.documents(card)  # refuses, by its field, a model that no config can describe
        return replace(card, preprocessing=processors.as_written(card.preprocessing))

    def documents(self, card: Card) -> dict[str, Any]:
        model = vit(card, self.name)
        _refuse_head(card, self.name)
        height = model.picture_px[0]
        config = {
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
        return {CONFIG: config, processors.FILE: processors.write_preprocessing(card.preprocessing)}


# ---- OpenAI's names

# The text tower, and the numbers that OpenAI's archives hold beside the weights.
TEXT = (
    r"(transformer|token_embedding|ln_final)\."
    r"|(positional_embedding|text_projection|logit_scale|logit_bias|attn_mask)(\.|$)"
    r"|(input_resolution|context_length|vocab_size)$"
)


@dataclass(frozen=True)
class OpenAiClip(Format):
    """Without a config it is one of OpenAI's own: heads of width 64. open_clip writes a config, and may differ."""

    name: str = "clip"
    title: str = "OpenAI's CLIP and open_clip, the visual tower"
    container: Literal["safetensors", "npz"] = "safetensors"
    config: str = "open_clip_config.json"

    def fits(self, given: Given) -> bool:
        return {"visual.conv1.weight", "visual.class_embedding", "visual.ln_pre.weight"} <= set(given.tensors)

    def card(self, given: Given, picture_px: tuple[int, int] | None = None) -> Card:
        document = given.documents.get(self.config) or {}
        cfg = document.get("model_cfg") or {}
        where = f"{given.where}: {self.config}"
        tower = Config(cfg.get("vision_cfg") or {}, {"head_width": 64}, where)
        for name in ("ls_init_value", "attentional_pool", "input_patchnorm", "no_ln_pre", "timm_model_name"):
            tower.demand(name, None, False)
        tower.demand("pool_type", None, "tok")
        kernel = given.tensors["visual.conv1.weight"]
        width, channels, *patch = kernel.shape
        depth = sum(name.endswith(".attn.in_proj_weight") and name.startswith("visual.") for name in given.tensors)
        projection = given.tensors.get("visual.proj")
        heads, rest = divmod(width, tower.integer("head_width"))
        if rest:
            raise UserError(f"{given.where}: width {width} is no multiple of a head's {tower['head_width']}")
        # A config that is silent has the plain GELU; no config at all is OpenAI's own model.
        quick = cfg.get("quick_gelu", False) if document else True
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
        return Card(model=model, preprocessing=self._preprocessing(document, model.picture_px, where))

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
        known = given.documents.get(self.config)
        return [] if known else [f"no {self.config}: read as OpenAI's own, with the quick GELU and heads 64 wide"]

    def rules(self, card: Card) -> list[Rule]:
        model = vit(card, self.name)
        _refuse_head(card, self.name)
        rules = [
            *patches(model, "visual.conv1"),
            _class_token("visual.class_embedding"),
            positions(model, "visual.positional_embedding", batched=False),
            *layer("encoder.pre_norm", "visual.ln_pre"),
            *layer("encoder.norm", "visual.ln_post"),
        ]
        rules += [transposed("encoder.projection.weight", "visual.proj")] if model.ends.projection else []
        for i in range(model.depth):
            ours, theirs = f"encoder.blocks.{i}.", f"visual.transformer.resblocks.{i}."
            rules += [
                *(
                    same(f"{ours}attention.project_in.{kind}", f"{theirs}attn.in_proj_{kind}")
                    for kind in ("weight", "bias")
                ),
                *layer(f"{ours}attention.project_out", f"{theirs}attn.out_proj"),
                *layer(f"{ours}attention_norm", f"{theirs}ln_1"),
                *layer(f"{ours}mlp_norm", f"{theirs}ln_2"),
                *layer(f"{ours}mlp.expand", f"{theirs}mlp.c_fc"),
                *layer(f"{ours}mlp.contract", f"{theirs}mlp.c_proj"),
            ]
        return [*rules, aside(TEXT)]

    def run_as(self, card: Card) -> Card:
        document = self.documents(card)[self.config]
        return replace(card, preprocessing=self._preprocessing(document, card.preprocessing.size_px, self.config))

    def documents(self, card: Card) -> dict[str, Any]:
        model = vit(card, self.name)
        _refuse_head(card, self.name)
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
            raise UserError(f"{self.name} has no place for a crop_fraction of {p.crop_fraction:g}: its crops keep all")
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
        cfg = {
            "embed_dim": model.ends.projection or model.width,
            "quick_gelu": model.block.gelu == "quick",
            "vision_cfg": tower,
        }
        return {self.config: {"model_cfg": cfg, "preprocess_cfg": preprocess}}


def _picture(given: Given, patch: tuple[int, int], picture_px: tuple[int, int] | None) -> tuple[int, int]:
    """From the number of positions, of which one is the class token's: a square, unless the size is given."""
    cells = len(given.tensors["visual.positional_embedding"]) - 1
    if picture_px is not None and (picture_px[0] // patch[0]) * (picture_px[1] // patch[1]) == cells:
        return picture_px
    side = round(cells**0.5)
    if side * side != cells:
        raise UserError(f"{given.where}: {cells} positions are no square grid; say for which picture size they are")
    return side * patch[0], side * patch[1]


FORMATS = (TransformersClip(), OpenAiClip())
