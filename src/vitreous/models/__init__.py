"""Encoders by name. Resolved lazily: the names can be listed without importing torch."""

from typing import TYPE_CHECKING, Any

from vitreous.models.names import MODELS, model_names

if TYPE_CHECKING:
    from vitreous.models.catalog import ModelSettings, model_settings
    from vitreous.models.convnext import ConvNeXtSettings
    from vitreous.models.igpt import IGPTSettings
    from vitreous.models.pixels import PixelsSettings
    from vitreous.models.pvt import PVTSettings
    from vitreous.models.resnet import ResNetSettings
    from vitreous.models.resnet_v1 import ResNetV1Settings
    from vitreous.models.stems import ConvStem, ResNetStem
    from vitreous.models.swin import SwinSettings
    from vitreous.models.tokeniser import TokeniserSettings
    from vitreous.models.vit import ViTSettings

__all__ = [
    "MODELS",
    "ConvNeXtSettings",
    "ConvStem",
    "IGPTSettings",
    "ModelSettings",
    "PVTSettings",
    "PixelsSettings",
    "ResNetSettings",
    "ResNetStem",
    "ResNetV1Settings",
    "SwinSettings",
    "TokeniserSettings",
    "ViTSettings",
    "model_names",
    "model_settings",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'vitreous.models' has no attribute {name!r}")
    from vitreous.models import catalog, stems

    return getattr(catalog if hasattr(catalog, name) else stems, name)
