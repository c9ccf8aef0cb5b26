"""From a model's name to its settings."""

from collections.abc import Callable
from typing import Any

from vitreous.errors import UserError, did_you_mean
from vitreous.models.convnext import ConvNeXtSettings
from vitreous.models.igpt import IGPTSettings
from vitreous.models.names import parse_name
from vitreous.models.pixels import PixelsSettings
from vitreous.models.pvt import PVTSettings
from vitreous.models.resnet import ResNetSettings
from vitreous.models.resnet_v1 import ResNetV1Settings
from vitreous.models.stems import ResNetStem
from vitreous.models.swin import SwinSettings
from vitreous.models.tokeniser import TokeniserSettings
from vitreous.models.vit import ViTSettings

ModelSettings = (
    ViTSettings
    | ResNetSettings
    | TokeniserSettings
    | IGPTSettings
    | PixelsSettings
    | SwinSettings
    | ConvNeXtSettings
    | PVTSettings
    | ResNetV1Settings
)


def _hybrid(stem_depths: tuple[int, ...], **sizes: Any) -> ViTSettings:
    return ViTSettings.of(stem=ResNetStem(depths=stem_depths), **sizes)


FAMILIES: dict[str, Callable[..., ModelSettings]] = {
    "vit": ViTSettings.of,
    "hybrid": _hybrid,
    "bit": ResNetSettings,
    "swin": SwinSettings,
    "convnext": ConvNeXtSettings,
    "pvt": PVTSettings,
    "resnet": ResNetV1Settings,
    "igpt": IGPTSettings,
    "tokeniser": TokeniserSettings,
}


def model_settings(name: str, **changes: Any) -> ModelSettings:
    """The settings of a named model, with some changed: model_settings("vit_b16", picture_px=(384, 384)).

    A single number for `picture_px` means a square.
    """
    named = parse_name(name)
    settings = FAMILIES[named.family](**named.sizes)
    if isinstance(changes.get("picture_px"), int):
        changes["picture_px"] = (changes["picture_px"],) * 2
    known = settings.field_names()
    for field in changes:
        if field not in known:
            raise UserError(f"{type(settings).__name__} has no setting {field!r}.{did_you_mean(field, known)}")
    return settings.changed(**changes)
