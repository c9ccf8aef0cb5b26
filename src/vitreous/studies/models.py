"""The families of the paper at sizes for small pictures: ViT, hybrid and BiT ResNet of like cost, size by size."""

import math
from dataclasses import dataclass, replace
from functools import cache

from vitreous.errors import UserError, did_you_mean
from vitreous.models import ModelSettings, ResNetSettings, ViTSettings, model_settings
from vitreous.models.flops import num_parameters, training_flops
from vitreous.models.names import MODELS
from vitreous.models.shapes import shapes_only
from vitreous.models.stems import ConvStem
from vitreous.recipes.cifar10 import plain_vit

FAMILIES = ("ViT", "hybrid", "ResNet")
# name -> width and depth. At 32 px and patches of 4: 0.02, 0.16, 0.42, 0.84 GFLOP a picture
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
STUDY_MODELS = (*VITS, *HYBRIDS, *RESNETS)
HEAD_WIDTH = 32
CELLS = 8  # patches a side, about, where nothing else is asked for


@dataclass(frozen=True)
class StudyModel:
    label: str
    family: str  # one of FAMILIES
    settings: ModelSettings

    @property
    def facts(self) -> dict[str, str | int]:
        """What figures tell models apart by."""
        return {"model": self.label, "family": self.family, "encoder_parameters": size_of(self.settings)[0]}


@cache
def size_of(model: ModelSettings) -> tuple[int, int]:
    """Parameters, and FLOPs of one picture's training step."""
    with shapes_only():
        encoder = model.build()
    return num_parameters(encoder), training_flops(encoder)


def study_model(name: str, picture_px: int, patch: int | None = None) -> StudyModel:
    """One of the small models above, or any model of the catalogue (vit_b16, r50_vit_b16, bit_r50x1)."""
    size = (picture_px, picture_px)
    patch = patch or patch_for(picture_px)
    if name in VITS:
        width, depth = VITS[name]
        vit = replace(plain_vit(), picture_px=size, patch=patch, width=width, depth=depth, heads=width // HEAD_WIDTH)
        return StudyModel(name, "ViT", vit)
    if name in HYBRIDS:
        width, depth, residuals = HYBRIDS[name]
        return StudyModel(name, "hybrid", _hybrid(size, patch, width, depth, residuals))
    if name in RESNETS:
        width, depths = RESNETS[name]
        # The tiny one is for two CPU cores: it leaves full resolution at once.
        root = "small" if picture_px <= 64 and name != "resnet-t" else "imagenet"
        resnet = ResNetSettings(picture_px=size, depths=depths, base_width=width, root=root)  # type: ignore[arg-type]
        return StudyModel(name, "ResNet", resnet)
    if "-" in name:
        raise UserError(
            f"no model of a study is called {name!r}.{did_you_mean(name, (*STUDY_MODELS, *MODELS))} "
            f"There are {', '.join(STUDY_MODELS)}, and those of `vitreous list models`"
        )
    found = model_settings(name, picture_px=picture_px)
    return StudyModel(name, found.family, found)


def _hybrid(size: tuple[int, int], patch: int, width: int, depth: int, residuals: tuple[int, int, int]) -> ViTSettings:
    """The stem halves the picture up to three times; patches of its map do the rest."""
    halvings = min(3, int(math.log2(patch)))
    strides = (1,) * (3 - halvings) + (2,) * halvings
    stem = ConvStem(widths=(width // 4, width // 2, width), strides=strides, residuals=residuals)
    return replace(
        plain_vit(),
        picture_px=size,
        stem=stem,
        patch=max(1, patch // 2**halvings),
        width=width,
        depth=depth,
        heads=width // HEAD_WIDTH,
    )


def patch_for(picture_px: int) -> int:
    """The patch size that cuts a picture into about 8 x 8 whole patches."""
    divisors = [patch for patch in range(1, picture_px + 1) if picture_px % patch == 0]
    return min(divisors, key=lambda patch: (abs(picture_px / patch - CELLS), patch))
