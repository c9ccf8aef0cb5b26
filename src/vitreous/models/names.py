"""Names of models and the plain facts behind them. Imports no torch, so that a listing is quick."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vitreous.errors import UserError, did_you_mean


@dataclass(frozen=True)
class ViTSize:
    width: int
    depth: int
    heads: int
    mlp_width: int | None = None  # none: four times the width


@dataclass(frozen=True)
class Named:
    """What a name such as vit_b16 says."""

    family: str
    sizes: Mapping[str, Any]  # fields of the family's settings, for a hybrid the depths of its ResNet too


Sizes = Mapping[str, Mapping[str, Any]]

VIT_SIZES = {
    "ti": ViTSize(192, 12, 3),  # Ti and S: Touvron et al. 2021 (DeiT), Steiner et al. 2021
    "s": ViTSize(384, 12, 6),
    "b": ViTSize(768, 12, 12),  # B, L, H: the paper's table 1
    "l": ViTSize(1024, 24, 16),
    "h": ViTSize(1280, 32, 16),
    "g": ViTSize(1664, 48, 16, mlp_width=8192),  # the G of Zhai et al. 2022, table 2
    # The paper's ViT-b (figure 4): every width of B halved, that of a head too, so the heads stay 12.
    "halfb": ViTSize(384, 12, 12),
}

IGPT_SIZES: Sizes = {  # Chen et al. 2020
    "s": {"width": 512, "depth": 24, "heads": 8},
    "m": {"width": 1024, "depth": 36, "heads": 8},
    "l": {"width": 1536, "depth": 48, "heads": 16},
}

# Names that stand for one set of sizes each.
SWIN_SIZES: Sizes = {  # Liu et al. 2021, section 3.3
    "swin_t": {"width": 96, "depths": (2, 2, 6, 2), "heads": (3, 6, 12, 24)},
    "swin_s": {"width": 96, "depths": (2, 2, 18, 2), "heads": (3, 6, 12, 24)},
    "swin_b": {"width": 128, "depths": (2, 2, 18, 2), "heads": (4, 8, 16, 32)},
    "swin_l": {"width": 192, "depths": (2, 2, 18, 2), "heads": (6, 12, 24, 48)},
}
CONVNEXT_SIZES: Sizes = {  # Liu et al. 2022, section 3; atto to nano: timm, as Woo et al. 2023 have them
    f"convnext_{size}": {"widths": (width, 2 * width, 4 * width, 8 * width), "depths": depths}
    for size, width, depths in (
        ("atto", 40, (2, 2, 6, 2)),
        ("femto", 48, (2, 2, 6, 2)),
        ("pico", 64, (2, 2, 6, 2)),
        ("nano", 80, (2, 2, 8, 2)),
        ("t", 96, (3, 3, 9, 3)),
        ("s", 96, (3, 3, 27, 3)),
        ("b", 128, (3, 3, 27, 3)),
        ("l", 192, (3, 3, 27, 3)),
    )
}
PVT_DEPTHS = {  # Wang et al. 2021, table 1
    "ti": (2, 2, 2, 2),
    "s": (3, 4, 6, 3),
    "m": (3, 4, 18, 3),
    "l": (3, 8, 27, 3),
}
PVT_V2_DEPTHS = {  # Wang et al. 2022, table 1
    "b0": (2, 2, 2, 2),
    "b1": (2, 2, 2, 2),
    "b2": (3, 4, 6, 3),
    "b2_linear": (3, 4, 6, 3),
    "b3": (3, 4, 18, 3),
    "b4": (3, 8, 27, 3),
    "b5": (3, 6, 40, 3),
}
PVT_SIZES: Sizes = {
    f"pvt_{size}": {"generation": "v1", "depths": depths, "widths": (64, 128, 320, 512), "mlp_factors": (8, 8, 4, 4)}
    for size, depths in PVT_DEPTHS.items()
} | {
    f"pvt_v2_{size}": {
        "generation": "v2-linear" if size.endswith("linear") else "v2",
        "depths": depths,
        "widths": (32, 64, 160, 256) if size == "b0" else (64, 128, 320, 512),
        "mlp_factors": (4, 4, 4, 4) if size == "b5" else (8, 8, 4, 4),
    }
    for size, depths in PVT_V2_DEPTHS.items()
}
RESNET_V1_SIZES: Sizes = {  # He et al. 2016, table 1
    "resnet18": {"unit": "basic", "depths": (2, 2, 2, 2)},
    "resnet34": {"unit": "basic", "depths": (3, 4, 6, 3)},
    "resnet50": {"unit": "bottleneck", "depths": (3, 4, 6, 3)},
    "resnet101": {"unit": "bottleneck", "depths": (3, 4, 23, 3)},
}
FIXED = {"swin": SWIN_SIZES, "convnext": CONVNEXT_SIZES, "pvt": PVT_SIZES, "resnet": RESNET_V1_SIZES}

RESNET_DEPTHS = {"r26": (2, 2, 2, 2), "r50": (3, 4, 6, 3), "r101": (3, 4, 23, 3), "r152": (3, 8, 36, 3)}

# The names worth listing. Any size goes with any patch: vit_s8 is as good a name.
MODELS = {
    "vit_ti16": "ViT-Ti/16, 5.7 M parameters",
    "vit_s16": "ViT-S/16, 22 M parameters",
    "vit_s32": "ViT-S/32, 23 M parameters",
    "vit_b16": "ViT-B/16, 86 M parameters",
    "vit_b32": "ViT-B/32, 88 M parameters",
    "vit_halfb32": "ViT-b/32 of the paper's figure 4: all widths of B halved, 23 M parameters",
    "vit_l16": "ViT-L/16, 304 M parameters",
    "vit_l32": "ViT-L/32, 306 M parameters",
    "vit_h14": "ViT-H/14, 632 M parameters",
    "vit_g14": "ViT-G/14, 1,843 M parameters",
    "r_vit_ti16": "hybrid R+Ti/16: a ResNet's root, then 8x8 patches of its map, 6.3 M parameters",
    "r26_vit_s32": "hybrid R26+S/32, 36 M parameters",
    "r50_vit_b16": "hybrid R50+B/16: no stage 4, its blocks moved to stage 3, 98 M parameters",
    "r50_vit_b32": "hybrid R50+B/32, 110 M parameters",
    "r50_vit_l16": "hybrid R50+L/16: no stage 4, its blocks moved to stage 3, 316 M parameters",
    "r50_vit_l32": "hybrid R50+L/32, 329 M parameters",
    "bit_r50x1": "BiT ResNet-50 of single width, 26 M parameters",
    "bit_r101x1": "BiT ResNet-101 of single width, 45 M parameters",
    "bit_r50x3": "BiT ResNet-50 of triple width, 217 M parameters",
    "bit_r152x2": "BiT ResNet-152 of double width, 236 M parameters",
    "bit_r152x4": "BiT ResNet-152 of fourfold width, 937 M parameters",
    "resnet18": "ResNet-18 as torchvision has it, its batch norms fixed, 12 M parameters",
    "resnet34": "ResNet-34, 22 M parameters",
    "resnet50": "ResNet-50: the encoder of DETR and Deformable DETR, 26 M parameters",
    "resnet101": "ResNet-101, 45 M parameters",
    "swin_t": "Swin-T: attention in shifting windows of 7, over maps that halve, 28 M parameters",
    "swin_s": "Swin-S, 50 M parameters",
    "swin_b": "Swin-B, 88 M parameters",
    "swin_l": "Swin-L, 197 M parameters",
    "convnext_atto": "ConvNeXt-Atto: depthwise convolutions in the shape of a transformer, 3.7 M parameters",
    "convnext_femto": "ConvNeXt-Femto, 5.2 M parameters",
    "convnext_pico": "ConvNeXt-Pico, 9.0 M parameters",
    "convnext_nano": "ConvNeXt-Nano, 16 M parameters",
    "convnext_t": "ConvNeXt-T, 29 M parameters",
    "convnext_s": "ConvNeXt-S, 50 M parameters",
    "convnext_b": "ConvNeXt-B, 89 M parameters",
    "convnext_l": "ConvNeXt-L, 198 M parameters",
    "pvt_v2_b0": "PVT v2 B0: attention to a coarser map, over maps that halve, 3.7 M parameters",
    "pvt_v2_b1": "PVT v2 B1, 14 M parameters",
    "pvt_v2_b2": "PVT v2 B2, 25 M parameters",
    "pvt_v2_b2_linear": "PVT v2 B2 with linear attention, 23 M parameters",
    "pvt_v2_b3": "PVT v2 B3, 45 M parameters",
    "pvt_v2_b4": "PVT v2 B4, 63 M parameters",
    "pvt_v2_b5": "PVT v2 B5, 82 M parameters",
    "pvt_ti": "PVT-Tiny, the first of them, 13 M parameters",
    "pvt_s": "PVT-Small, 24 M parameters",
    "pvt_m": "PVT-Medium, 44 M parameters",
    "pvt_l": "PVT-Large, 61 M parameters",
    "igpt_s": "iGPT-S: a causal transformer over single pixels, 76 M parameters",
    "igpt_m": "iGPT-M, 455 M parameters",
    "igpt_l": "iGPT-L, 1,362 M parameters",
    "tokeniser_8": "discrete visual tokeniser: a word of 8192 for every 8 px, 5.6 M parameters",
}


def model_names() -> list[str]:
    """The names worth listing."""
    return list(MODELS)


def parse_name(name: str) -> Named:
    """What a model's name says."""
    for family, sizes in FIXED.items():
        if name in sizes:
            return Named(family, sizes[name])
    if match := re.fullmatch(r"bit_(r\d+)x([1-9]\d*)", name):
        if match[1] in RESNET_DEPTHS:
            return Named("bit", {"depths": RESNET_DEPTHS[match[1]], "base_width": 64 * int(match[2])})
    elif match := re.fullmatch(r"igpt_([a-z]+)", name):
        if match[1] in IGPT_SIZES:
            return Named("igpt", IGPT_SIZES[match[1]])
    elif match := re.fullmatch(r"tokeniser_([1-9]\d*)", name):
        return Named("tokeniser", {"stride": int(match[1])})
    elif match := re.fullmatch(r"(?:(r\d*)_)?vit_([a-z]+)([1-9]\d*)", name):
        resnet, size, patch = match[1], VIT_SIZES.get(match[2]), int(match[3])
        if size and resnet is None:
            return Named("vit", {**asdict(size), "patch": patch})
        if size and resnet == "r" and patch == 16:
            # As released: the root has stride 4 and the patches 8, which makes 32 in spite of the name.
            return Named("hybrid", {**asdict(size), "patch": 8, "stem_depths": ()})
        if size and resnet in RESNET_DEPTHS and patch in (16, 32):
            *early, third, fourth = RESNET_DEPTHS[resnet]
            # For stride 16 the paper leaves stage 4 out and gives its blocks to stage 3 (section 4.1).
            depths = (*early, third, fourth) if patch == 32 else (*early, third + fourth)
            return Named("hybrid", {**asdict(size), "patch": 1, "stem_depths": depths})
    raise UserError(
        f"no model is called {name!r}.{did_you_mean(name, model_names())} `vitreous list models` shows the names; "
        f"a ViT may have any patch size (vit_s8), in the sizes {', '.join(VIT_SIZES)}."
    )
