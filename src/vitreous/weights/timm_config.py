"""timm's config.json: the architecture's name, the arguments that differ from it, and what is done to pictures."""

from collections.abc import Mapping
from typing import Any, Literal

from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError, shown
from vitreous.models import ResNetSettings, ResNetStem, ViTSettings
from vitreous.nn.blocks import Gelu
from vitreous.weights.card import Card
from vitreous.weights.describe import describe
from vitreous.weights.formats import Given

GELU_NAMES: dict[Gelu, str] = {"erf": "gelu", "tanh": "gelu_tanh", "quick": "quick_gelu"}

TANH = {
    "vit_base_patch32_siglip_gap_256",
    "vit_large_patch16_siglip_gap_512",
    "vit_so400m_patch16_siglip_gap_256",
    "vit_so400m_patch16_siglip_gap_384",
    "vit_so400m_patch16_siglip_gap_512",
    "vit_giantopt_patch16_siglip_gap_256",
    "vit_giantopt_patch16_siglip_gap_384",
}

STRANGERS = {
    "_rpn_": "its norms after attention and MLP",
    "eva02": "rotary positions",
    "_rope_": "rotary positions",
    "dinov3": "rotary positions",
    "lingbot": "rotary positions",
}

# Architectures of timm's that hold what its constructors do not take as a plain value; the arguments say the rest.
SIZES = {192: "tiny", 384: "small", 768: "base", 1024: "large", 1280: "huge"}
PATCHES = {"tiny": (16,), "small": (8, 16, 32), "base": (8, 16, 32), "large": (14, 16, 32), "huge": (14,)}
HYBRIDS: dict[tuple[int, ...], str] = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
BITS: dict[tuple[int, ...], int] = {(3, 4, 6, 3): 50, (3, 4, 23, 3): 101, (3, 8, 36, 3): 152}
BIT_WIDTHS = {50: (64, 192), 101: (64, 192), 152: (128, 256)}

# No argument tells a norm's epsilon: all have one, and CLIP's towers, which their names tell, the other.
NORM_EPSILON, CLIP_NORM_EPSILON, CLIP = 1e-6, 1e-5, "_clip_"


class Config:
    """What config.json says, wherever in it timm's versions say it."""

    def __init__(self, given: Given) -> None:
        whole = given.documents.get("config.json") or {}
        self.whole: Mapping[str, Any] = whole if isinstance(whole, Mapping) else {}
        pretrained = self.whole.get("pretrained_cfg", self.whole)  # the oldest files have one level
        arguments = self.whole.get("model_args") or {}
        self.pretrained: Mapping[str, Any] = pretrained if isinstance(pretrained, Mapping) else {}
        self.arguments: Mapping[str, Any] = arguments if isinstance(arguments, Mapping) else {}
        self.architecture = str(self.whole.get("architecture", ""))
        self.where, self.told_heads = given.where, given.heads

    def picture_px(self) -> tuple[int, int] | None:
        size = self.arguments.get("img_size") or self.pretrained.get("input_size")
        if isinstance(size, int):
            return size, size
        return None if size is None else (int(size[-2]), int(size[-1]))

    def gelu(self) -> Gelu | None:
        """None: it does not say, not even by its architecture."""
        named = {name: gelu for gelu, name in GELU_NAMES.items()}
        if self.arguments.get("act_layer") in named:
            return named[self.arguments["act_layer"]]
        if "quickgelu" in self.architecture:
            return "quick"
        if not self.architecture:
            return None
        return "tanh" if self.architecture in TANH else "erf"

    def heads(self) -> int | None:
        """Where the user or the file says so, or its architecture is none that goes by the width."""
        if self.told_heads is not None:
            return self.told_heads
        if "num_heads" in self.arguments:
            return int(self.arguments["num_heads"])
        return 16 if self.architecture == "vit_base_patch16_gap_224" or "giantopt" in self.architecture else None

    def check(self) -> None:
        """Some have the same tensors as a model of ours, and are another."""
        for part, why in STRANGERS.items():
            if part in self.architecture:
                raise UserError(f"{self.where}: {self.architecture} has {why}, which no model of ours has")

    def pooling(self) -> str | None:
        return self.arguments.get("global_pool") or self.whole.get("global_pool")

    def classes(self, num: int) -> tuple[str, ...]:
        names = self.whole.get("label_names") or self.pretrained.get("label_names") or []
        names = list(names.values() if isinstance(names, Mapping) else names)
        return tuple(map(str, names)) if len(names) == num else tuple(str(number) for number in range(num))

    def preprocessing(self, size_px: tuple[int, int], assumed: Preprocessing) -> Preprocessing:
        known = self.pretrained
        mode = known.get("crop_mode", "center" if assumed.crop == "centre" else "squash")
        if mode not in ("center", "squash"):
            raise UserError(f"{self.where}: config.json asks for crop_mode {shown(mode)}; center and squash are known")
        interpolation = known.get("interpolation", assumed.interpolation)
        if interpolation not in ("bilinear", "bicubic", "nearest"):
            raise UserError(
                f"{self.where}: config.json asks for interpolation {shown(interpolation)}, which we do not have"
            )
        fraction = float(known.get("crop_pct") or assumed.crop_fraction)
        squash: Literal["squash", "squash-centre"] = "squash" if fraction == 1 else "squash-centre"
        return Preprocessing(
            size_px=size_px,
            crop="centre" if mode == "center" else squash,
            crop_fraction=fraction,
            skip_fitting=False,
            interpolation=interpolation,
            resizer="pillow",
            mean=tuple(known.get("mean", assumed.mean)),
            std=tuple(known.get("std", assumed.std)),
        )


def is_distilled(card: Card, model: ViTSettings) -> bool:
    """Whether the second of its tokens is for distillation; an encoder alone is known by having two."""
    if card.classifier is not None:
        return card.classifier.head == "distilled"
    return model.num_prefix == 2 and not model.num_registers


def is_beit(model: ViTSettings) -> bool:
    return model.block.attention_bias == "no-key" or model.positions in ("bias", "bias-shared")


def write_config(card: Card) -> dict[str, Any]:
    """What `timm.create_model("local-dir:...")` needs to build the same model."""
    model = card.model
    assert isinstance(model, ViTSettings | ResNetSettings)  # `timm_rules` refuses the others
    if isinstance(model, ResNetSettings):  # any size of pictures; the architecture's name tells its shape
        return timm_document(card, _resnet_name(model), {"in_chans": model.channels}, _classifier(card))
    return timm_document(card, _vit_name(card, model), _vit_arguments(card, model), _classifier(card))


def timm_document(
    card: Card, architecture: str, arguments: dict[str, Any], classifier: str | list[str]
) -> dict[str, Any]:
    """What a config.json holds for any model; `classifier` is what `create_model(..., num_classes=N)` replaces."""
    p, names = card.preprocessing, list(card.classes)
    return {
        "architecture": architecture,
        "num_classes": len(names) if card.classifier else 0,
        "global_pool": arguments.get("global_pool", "avg"),
        **({"label_names": names} if names != [str(number) for number in range(len(names))] else {}),
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [card.model.channels, *p.size_px],
            "num_classes": len(names) if card.classifier else 0,
            "classifier": classifier,
            "mean": list(p.mean),
            "std": list(p.std),
            "interpolation": p.interpolation,
            "crop_pct": 1.0 if p.crop in ("squash", "letterbox") else p.crop_fraction,
            "crop_mode": "center" if p.crop == "centre" else "squash",
        },
    }


def _classifier(card: Card) -> str | list[str]:
    if isinstance(card.model, ResNetSettings):
        return "head.fc"
    return ["head", "head_dist"] if card.classifier is not None and card.classifier.head == "distilled" else "head"


def _resnet_name(model: ResNetSettings) -> str:
    return f"resnetv2_{BITS.get(model.depths, 50)}x{max(model.base_width // 64, 1)}_bit"


def refuse_unknown(card: Card) -> None:
    """Convolutional parts have the shapes that timm's names stand for, and no other."""
    model = card.model
    known = True
    if isinstance(model, ResNetSettings):
        widths = BIT_WIDTHS.get(BITS.get(model.depths, 0), ())
        known = model.base_width in widths and model.root == "imagenet"
    elif isinstance(model, ViTSettings) and isinstance(model.stem, ResNetStem):
        known = model.stem.depths in HYBRIDS and (model.stem.base_width, model.stem.root) == (64, "imagenet")
    if not known:
        raise UserError(f"timm has no architecture with the convolutional part of {describe(card)}")
    if not isinstance(model, ViTSettings):
        return
    if is_beit(model):
        _refuse_in_beit(model)
    elif model.ends.patch_bias == model.ends.pre_norm:
        raise UserError(
            "timm's patches have a bias just where no norm comes before the blocks; here patch_bias and pre_norm are "
            f"both {model.ends.patch_bias}"
        )


def _refuse_in_beit(model: ViTSettings) -> None:
    """Its class has fewer arguments, and decides by the pooling where the norm is."""
    usual: dict[str, tuple[Any, ...]] = {
        "stem": (None,),
        "num_prefix": (1,),
        "num_registers": (0,),
        "patch_bias": (True,),
        "pre_norm": (False,),
        "mlp": ("gelu",),
        "attention_bias": ("no-key", "none"),
        "pool_norm": ("before",) if model.pool == "class" else ("after",),
    }
    for name, allowed in usual.items():
        if model.value(name) not in allowed:
            raise UserError(f"timm's Beit has {name} {allowed[0]}, not {model.value(name)}")


def norm_epsilon(card: Card, model: ViTSettings) -> float:
    """Of the layer norms of the architecture that `write_config` names: the model's own where it can be had."""
    has_name = _special_name(card, model) is None
    return CLIP_NORM_EPSILON if has_name and model.block.norm_epsilon == CLIP_NORM_EPSILON else NORM_EPSILON


def _vit_name(card: Card, model: ViTSettings) -> str:
    special = _special_name(card, model)
    if special is not None:
        return special
    if model.block.norm_epsilon == CLIP_NORM_EPSILON:
        return f"vit_base_patch16{CLIP}{'quickgelu_' if model.block.gelu == 'quick' else ''}224"
    size = SIZES.get(model.width, "base")
    patch = model.patch if model.patch in PATCHES[size] else PATCHES[size][-1]
    return f"vit_{size}_patch{patch}_224"


def _special_name(card: Card, model: ViTSettings) -> str | None:
    """Of an architecture with a part that arguments do not bring in; None where any will do."""
    if is_beit(model):
        return "beit_base_patch16_224"
    if isinstance(model.stem, ResNetStem):
        return HYBRIDS.get(model.stem.depths, "vit_base_r50_s16_224")
    if is_distilled(card, model):
        return "deit_base_distilled_patch16_224"
    return "vit_giant_patch14_dinov2" if model.block.mlp == "swiglu" else None


def _vit_arguments(card: Card, model: ViTSettings) -> dict[str, Any]:
    patch = list(model.patch) if isinstance(model.patch, tuple) else model.patch
    hidden = (model.block.mlp_width or 4 * model.width) * (2 if model.block.mlp == "swiglu" else 1)
    arguments: dict[str, Any] = {
        "img_size": list(model.picture_px),
        "patch_size": patch,
        "in_chans": model.channels,
        "embed_dim": model.width,
        "depth": model.depth,
        "num_heads": model.heads,
        "mlp_ratio": hidden / model.width,
        "qkv_bias": model.block.attention_bias != "none",
        "init_values": model.block.layer_scale,
        "global_pool": "token" if model.pool == "class" else "avg",
    }
    if is_beit(model):
        return arguments | {
            "use_abs_pos_emb": model.positions == "learned",
            "use_rel_pos_bias": model.positions == "bias",
            "use_shared_rel_pos_bias": model.positions == "bias-shared",
        }
    distilled = is_distilled(card, model)
    has_class = model.num_prefix > 0 or model.pool == "class"
    registers = model.num_prefix + model.num_registers - int(has_class) - int(distilled)
    activation = {} if model.block.mlp == "swiglu" else {"act_layer": GELU_NAMES[model.block.gelu]}
    return (
        arguments
        | activation
        | {
            "class_token": has_class,
            "reg_tokens": registers,
            "no_embed_class": has_class and model.num_registers > 0,
            "pos_embed": "none" if model.positions == "none" else "learn",
            "pre_norm": model.ends.pre_norm,
            "fc_norm": model.ends.pool_norm == "after",
        }
    )
