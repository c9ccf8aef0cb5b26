"""config.json of transformers' models: read into settings, refused by the field where we have no such model."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vitreous.errors import UserError, shown
from vitreous.models import ViTSettings
from vitreous.weights.card import Card

CONFIG = "config.json"
GELUS = {
    "gelu": "erf",
    "gelu_python": "erf",
    "gelu_pytorch_tanh": "tanh",
    "gelu_new": "tanh",
    "quick_gelu": "quick",
}
WRITTEN_GELUS = {"erf": "gelu", "tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}
DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "drop_path_rate": 0.0,
    "layer_norm_eps": 1e-12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "qkv_bias": True,
}
DINO_DEFAULTS = {
    "layer_norm_eps": 1e-6,
    "patch_size": 14,
    "mlp_ratio": 4,
    "layerscale_value": 1.0,
    "use_swiglu_ffn": False,
}
BEIT_DEFAULTS = {
    "layer_scale_init_value": 0.1,
    "drop_path_rate": 0.1,
    "use_absolute_position_embeddings": False,
    "use_relative_position_bias": False,
    "use_shared_relative_position_bias": False,
    "use_mean_pooling": True,
}


class Config:
    """A config.json, its defaults, and refusals that name the field."""

    def __init__(self, given: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> None:
        self.values, self.where = {**defaults, **given}, where

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def refusal(self, name: str, why: str = "which no model of ours has") -> UserError:
        return UserError(f"{self.where}: {name} is {shown(self.values.get(name))}, {why}")

    def integer(self, name: str) -> int:
        value = self.values[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refusal(name, "where a whole number above 0 is expected")
        return value

    def number(self, name: str) -> float:
        value = self.values[name]
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.refusal(name, "where a number is expected")
        if not 0 <= value < math.inf:
            raise self.refusal(name, "where a number of 0 or more is expected")
        return float(value)

    def pair(self, name: str) -> tuple[int, int]:
        value = self.values[name]
        both = [value, value] if isinstance(value, int) else value
        if not isinstance(both, list | tuple) or len(both) != 2 or not all(type(side) is int for side in both):
            raise self.refusal(name, "where one or two whole numbers are expected")
        if min(both) < 1:
            raise self.refusal(name, "where sides of at least 1 pixel are expected")
        return both[0], both[1]

    def choice(self, name: str, choices: Mapping[str, str]) -> str:
        if not isinstance(self.values[name], str) or self.values[name] not in choices:
            raise self.refusal(name, f"which we do not have; we have {', '.join(choices)}")
        return choices[self.values[name]]

    def demand(self, name: str, *allowed: Any) -> None:
        if self.values.get(name) not in allowed:
            raise self.refusal(name)

    def labels(self, num: int) -> tuple[str, ...]:
        """The classes' names in their order; numbered where the config has none."""
        names = self.values.get("id2label")
        if not isinstance(names, dict):
            return tuple(f"LABEL_{i}" for i in range(num))
        found = {str(place): str(label) for place, label in names.items()}
        if set(found) != {str(i) for i in range(num)}:
            raise UserError(f"{self.where}: id2label must name the {num} classes of the head by 0 to {num - 1}")
        return tuple(found[str(i)] for i in range(num))


# ---- reading


def config_in(documents: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The document that every model of transformers has beside its tensors."""
    document = documents.get(CONFIG)
    if not isinstance(document, Mapping) or not document:
        raise UserError(
            f"{where}: a model of transformers needs the {CONFIG} of its folder beside it, which gives the number of "
            "heads and more"
        )
    return document


def is_dino(model_type: str) -> bool:
    return model_type.startswith("dinov2")


def read_model(model_type: str, config: Config) -> ViTSettings:
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    config.demand("head_dim", None, width // heads)
    config.demand("quantization_config", None)
    common: dict[str, Any] = {
        "picture_px": config.pair("image_size"),
        "patch": plain(config.pair("patch_size")),
        "channels": config.integer("num_channels"),
        "width": width,
        "depth": config.integer("num_hidden_layers"),
        "heads": heads,
        "gelu": config.choice("hidden_act", GELUS),
        "norm_epsilon": config.number("layer_norm_eps"),
        "dropout": config.number("hidden_dropout_prob"),
        "attention_bias": "all" if config["qkv_bias"] else "none",
    }
    if is_dino(model_type):
        return ViTSettings.of(**common, **_dino(config))
    common |= {"mlp_width": config.integer("intermediate_size")}
    common |= {"num_prefix": 2} if model_type == "deit" else {}
    # MAE's table is made of sines, and saved.
    common |= {"positions": "sincos"} if model_type == "vit_mae" and width % 4 == 0 else {}
    return ViTSettings.of(**(common | (_beit(config) if model_type == "beit" else {})))


def _dino(config: Config) -> dict[str, Any]:
    hidden = int(config.integer("hidden_size") * config.number("mlp_ratio"))
    gated = bool(config["use_swiglu_ffn"])
    return {
        # SwiGLU has three matrices where an MLP has two: two thirds of the width, in eights (DINOv2).
        "mlp_width": (int(hidden * 2 / 3) + 7) // 8 * 8 if gated else hidden,
        "mlp": "swiglu" if gated else "gelu",
        "layer_scale": config.number("layerscale_value"),
        "stochastic_depth": config.number("drop_path_rate"),
        "num_registers": config.integer("num_register_tokens") if config.get("num_register_tokens") else 0,
        # They are trained at 518 px and used at 224: positions are resized whenever a picture is seen.
        "resizing": "bicubic-antialiased" if config.get("num_register_tokens") is not None else "bicubic",
    }


def _beit(config: Config) -> dict[str, Any]:
    kinds = {
        "learned": "use_absolute_position_embeddings",
        "bias": "use_relative_position_bias",
        "bias-shared": "use_shared_relative_position_bias",
    }
    chosen = [kind for kind, name in kinds.items() if config[name]]
    if len(chosen) > 1:
        raise config.refusal(kinds[chosen[1]], f"beside {kinds[chosen[0]]}")
    pooling = {"pool": "mean", "pool_norm": "after"} if config["use_mean_pooling"] else {"pool": "class"}
    return {
        "attention_bias": "no-key",
        "positions": chosen[0] if chosen else "none",
        "layer_scale": config.number("layer_scale_init_value") or None,
        "stochastic_depth": config.number("drop_path_rate"),
        **pooling,
    }


# ---- writing


def write_model(model_type: str, model: ViTSettings, masked: bool | None) -> dict[str, Any]:
    """`masked`: whether there is a mask token; None where that is not known."""
    hidden = model.block.mlp_width or 4 * model.width
    common = {
        "model_type": model_type,
        "hidden_size": model.width,
        "num_hidden_layers": model.depth,
        "num_attention_heads": model.heads,
        "hidden_act": WRITTEN_GELUS[model.block.gelu],
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": model.block.norm_epsilon,
        "image_size": plain(model.picture_px, list),
        "patch_size": plain(pair(model.patch), list),
        "num_channels": model.channels,
        "qkv_bias": model.block.attention_bias != "none",
    }
    if not is_dino(model_type) and model_type != "beit":
        return {**common, "intermediate_size": hidden}
    common["drop_path_rate"] = model.stochastic_depth
    common["use_mask_token"] = is_dino(model_type) if masked is None else masked
    if model_type == "beit":
        return {
            **common,
            "intermediate_size": hidden,
            "layer_scale_init_value": model.block.layer_scale or 0.0,
            "use_absolute_position_embeddings": model.positions == "learned",
            "use_relative_position_bias": model.positions == "bias",
            "use_shared_relative_position_bias": model.positions == "bias-shared",
            "use_mean_pooling": model.pool == "mean",
        }
    gated = model.block.mlp == "swiglu"
    ratio = hidden * 3 / 2 / model.width if gated else hidden / model.width
    registers = {"num_register_tokens": model.num_registers} if model_type.endswith("registers") else {}
    scale = 1.0 if model.block.layer_scale is None else model.block.layer_scale
    return {**common, "mlp_ratio": round(ratio), "use_swiglu_ffn": gated, "layerscale_value": scale, **registers}


def labels(card: Card) -> dict[str, Any]:
    if card.classifier is None:
        return {}
    several = {"problem_type": "multi_label_classification"} if card.classifier.loss == "sigmoid" else {}
    return {**class_names(card), **several}


def class_names(card: Card) -> dict[str, Any]:
    return {
        "id2label": {str(i): name for i, name in enumerate(card.classes)},
        "label2id": {name: i for i, name in enumerate(card.classes)},
    }


def different_field(model: ViTSettings, again: ViTSettings) -> str | None:
    """The first field in which two models differ as functions of a picture; None where they do not."""
    for name in ViTSettings.field_names():
        if _comparable(model, name) != _comparable(again, name):
            return name
    return None


def _comparable(model: ViTSettings, name: str) -> Any:
    value = model.value(name)
    if name == "patch":
        return pair(value)
    if name == "mlp_width":
        return value or 4 * model.width
    if name == "gelu" and model.block.mlp != "gelu":  # which has no GELU
        return None
    if name == "layer_scale":
        return value is not None
    if name == "positions":  # both are tables in a file
        return "learned" if value == "sincos" else value
    # Of no effect on a picture of the size that the positions have.
    return 0.0 if name in ("dropout", "stochastic_depth", "resizing") else value


def pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def plain(both: tuple[int, int], many: Callable[[Iterable[int]], Any] = tuple) -> Any:
    return both[0] if both[0] == both[1] else many(both)
