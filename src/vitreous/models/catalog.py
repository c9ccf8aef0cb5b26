"""From a model's name to its settings."""

import dataclasses
from typing import Any

from vitreous.errors import UserError, did_you_mean
from vitreous.models.igpt import IGPTSettings
from vitreous.models.names import IGPTName, ResNetName, TokeniserName, parse_name
from vitreous.models.pixels import PixelsSettings
from vitreous.models.resnet import ResNetSettings
from vitreous.models.stems import ResNetStem
from vitreous.models.tokeniser import TokeniserSettings
from vitreous.models.vit import ViTSettings

ModelSettings = ViTSettings | ResNetSettings | TokeniserSettings | IGPTSettings | PixelsSettings


def model_settings(name: str, **changes: Any) -> ModelSettings:
    """The settings of a named model, with some changed: model_settings("vit_b16", picture_px=(384, 384)).

    A single number for `picture_px` means a square.
    """
    parsed = parse_name(name)
    settings: ModelSettings
    if isinstance(parsed, ResNetName):
        settings = ResNetSettings(depths=parsed.depths, base_width=64 * parsed.width_factor)
    elif isinstance(parsed, IGPTName):
        settings = IGPTSettings(**dataclasses.asdict(parsed.size))
    elif isinstance(parsed, TokeniserName):
        settings = TokeniserSettings(stride=parsed.stride)
    else:
        stem = None if parsed.stem_depths is None else ResNetStem(depths=parsed.stem_depths)
        size = dataclasses.asdict(parsed.size)
        settings = ViTSettings(**size, patch=parsed.patch, stem=stem)
    if isinstance(changes.get("picture_px"), int):
        changes["picture_px"] = (changes["picture_px"],) * 2
    known = settings.field_names()
    for field in changes:
        if field not in known:
            raise UserError(f"{type(settings).__name__} has no setting {field!r}.{did_you_mean(field, known)}")
    return settings.changed(**changes)
