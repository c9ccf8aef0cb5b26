"""The families at sizes for small pictures, of similar cost at each size: the paper's three, and the pyramids."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from vitreous.errors import UserError, did_you_mean
from vitreous.models import (
    ConvNeXtSettings,
    ModelSettings,
    PVTSettings,
    ResNetSettings,
    SwinSettings,
    ViTSettings,
    model_settings,
)
from vitreous.models.flops import num_parameters, training_flops
from vitreous.models.names import MODELS
from vitreous.models.shapes import shapes_only
from vitreous.models.stems import ConvStem
from vitreous.recipes.small import plain_vit

# name -> width and depth. At 32 px and patches of 4: 0.02, 0.16, 0.42, 0.84 GFLOP per picture
VITS = {"vit-t": (64, 3), "vit-s": (128, 6), "vit-m": (192, 7), "vit-l": (256, 8)}
# name -> width, depth, residual layers of the stem; 0.02, 0.17, 0.52, 1.07 GFLOP
HYBRIDS = {
    "hybrid-t": (64, 2, (0, 0, 0)),
    "hybrid-s": (128, 4, (0, 0, 1)),
    "hybrid-m": (192, 5, (0, 1, 1)),
    "hybrid-l": (256, 5, (1, 1, 1)),
}
# name -> width of the first stage, units in each stage; 0.01, 0.21, 0.46, 0.82 GFLOP
RESNETS = {
    "resnet-t": (16, (1, 1, 1)),
    "resnet-s": (24, (2, 2, 2, 2)),
    "resnet-m": (36, (2, 2, 2, 2)),
    "resnet-l": (48, (2, 2, 2, 2)),
}
# Three stages whose maps have twice as many places per side as the ViT's, equally many, and half.
# name -> width of the first stage, blocks in each stage; 0.02, 0.16, 0.42, 0.85 GFLOP
SWINS = {
    "swin-t": (32, (1, 1, 1)),
    "swin-s": (64, (2, 2, 2)),
    "swin-m": (96, (2, 3, 2)),
    "swin-l": (128, (2, 4, 2)),
}
# 0.03, 0.16, 0.41, 0.82 GFLOP
PVTS = {"pvt-t": (32, (1, 1, 1)), "pvt-s": (64, (1, 3, 1)), "pvt-m": (96, (2, 3, 1)), "pvt-l": (128, (2, 4, 1))}
# 0.02, 0.15, 0.41, 0.86 GFLOP
CONVNEXTS = {
    "convnext-t": (32, (1, 2, 1)),
    "convnext-s": (64, (2, 4, 2)),
    "convnext-m": (96, (2, 6, 2)),
    "convnext-l": (128, (3, 6, 3)),
}
HEAD_WIDTH = 32
WINDOW = 4  # of Swin: a quarter of the first map's side
RATE = 0.1  # of stochastic depth
LAYER_SCALE = 0.1  # start of ConvNeXt's: from the published 1e-6, blocks take hundreds of steps to count for anything
CELLS = 8  # patches per side, about, by default


@dataclass(frozen=True)
class StudyModel:
    label: str
    family: str  # one of FAMILIES, or another of the catalogue
    settings: ModelSettings

    @property
    def facts(self) -> dict[str, str | int]:
        """What distinguishes models in figures."""
        return {"model": self.label, "family": self.family, "encoder_parameters": size_of(self.settings)[0]}


@cache
def size_of(model: ModelSettings) -> tuple[int, int]:
    """Parameters, and FLOPs of one picture's training step."""
    with shapes_only():
        encoder = model.build()
    return num_parameters(encoder), training_flops(encoder)


def study_model(name: str, picture_px: int, patch: int | None = None) -> StudyModel:
    """One of the small models above, or any model of the catalogue (vit_b16, swin_t, bit_r50x1)."""
    patch = patch or patch_for(picture_px)
    for family, (sizes, made) in FAMILIES.items():
        if name in sizes:
            return StudyModel(name, family, made((picture_px, picture_px), patch, *sizes[name]))
    if "-" in name:
        raise UserError(
            f"no study model is called {name!r}.{did_you_mean(name, (*STUDY_MODELS, *MODELS))} There are "
            f"{', '.join(STUDY_MODELS)}, and those of `vitreous list models`"
        )
    found = model_settings(name, picture_px=picture_px)
    return StudyModel(name, found.family, found)


def _vit(size: tuple[int, int], patch: int, width: int, depth: int) -> ViTSettings:
    return replace(plain_vit(), picture_px=size, patch=patch, width=width, depth=depth, heads=width // HEAD_WIDTH)


def _hybrid(size: tuple[int, int], patch: int, width: int, depth: int, residuals: tuple[int, int, int]) -> ViTSettings:
    """The stem halves the picture up to three times; patches of its map are as large as needed for the rest."""
    halvings = min(3, int(math.log2(patch)))
    strides = (1,) * (3 - halvings) + (2,) * halvings
    stem = ConvStem(widths=(width // 4, width // 2, width), strides=strides, residuals=residuals)
    return replace(_vit(size, max(1, patch // 2**halvings), width, depth), stem=stem)


def _resnet(size: tuple[int, int], patch: int, width: int, depths: tuple[int, ...]) -> ResNetSettings:
    # The tiny one is for two CPU cores: it reduces the resolution at once.
    root = "small" if max(size) <= 64 and len(depths) > 3 else "imagenet"
    return ResNetSettings(picture_px=size, depths=depths, base_width=width, root=root)  # type: ignore[arg-type]


def _swin(size: tuple[int, int], patch: int, width: int, depths: tuple[int, ...]) -> SwinSettings:
    heads = tuple(each // HEAD_WIDTH for each in _widths(width, depths))
    return SwinSettings(
        picture_px=size,
        patch=_first_step(patch),
        width=width,
        depths=depths,
        heads=heads,
        window=WINDOW,
        stochastic_depth=RATE,
    )


def _pvt(size: tuple[int, int], patch: int, width: int, depths: tuple[int, ...]) -> PVTSettings:
    widths = _widths(width, depths)
    return PVTSettings(
        picture_px=size,
        patch=_first_step(patch),
        widths=widths,
        depths=depths,
        heads=tuple(each // HEAD_WIDTH for each in widths),
        mlp_factors=(4,) * len(depths),
        reductions=(2,) + (1,) * (len(depths) - 1),  # as many keys as the ViT has tokens
        stochastic_depth=RATE,
    )


def _convnext(size: tuple[int, int], patch: int, width: int, depths: tuple[int, ...]) -> ConvNeXtSettings:
    return ConvNeXtSettings(
        picture_px=size,
        patch=_first_step(patch),
        widths=_widths(width, depths),
        depths=depths,
        layer_scale=LAYER_SCALE,
        stochastic_depth=RATE,
    )


def _widths(first: int, depths: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(first * 2**stage for stage in range(len(depths)))


def _first_step(patch: int) -> int:
    """The stride of a pyramid's first stage: half of a ViT's patch, and a power of two."""
    return max(1, 1 << int(math.log2(patch)) >> 1)


# name in figures -> the sizes, and the function that makes a model of one
FAMILIES: dict[str, tuple[dict[str, Any], Callable[..., ModelSettings]]] = {
    "ViT": (VITS, _vit),
    "hybrid": (HYBRIDS, _hybrid),
    "ResNet": (RESNETS, _resnet),
    "Swin": (SWINS, _swin),
    "PVT": (PVTS, _pvt),
    "ConvNeXt": (CONVNEXTS, _convnext),
}
STUDY_MODELS = tuple(name for sizes, _ in FAMILIES.values() for name in sizes)


def patch_for(picture_px: int) -> int:
    """The patch size that cuts a picture into about 8 x 8 whole patches."""
    divisors = [patch for patch in range(1, picture_px + 1) if picture_px % patch == 0]
    return min(divisors, key=lambda patch: (abs(picture_px / patch - CELLS), patch))
