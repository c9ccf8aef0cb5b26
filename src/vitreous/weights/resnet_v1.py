"""ResNets as torchvision, timm and transformers name their tensors. torchvision's and timm's names are the same: a
config.json tells whose a file is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vitreous.errors import UserError
from vitreous.models import ModelSettings, ResNetV1Settings
from vitreous.weights.formats import Given
from vitreous.weights.published import Shapes
from vitreous.weights.pyramids import Pyramid, demand, depths_of, refusal, square
from vitreous.weights.rules import Rule, carried, same
from vitreous.weights.transformers_config import CONFIG

STATISTICS = {"weight": "weight", "bias": "bias", "mean": "running_mean", "variance": "running_var"}


@dataclass(frozen=True)
class Names:
    """Of convolutions and the norms behind them; {i} is a stage, {j} a unit of it, {k} a convolution of that."""

    root: tuple[str, str]
    unit: tuple[str, str]
    shortcut: tuple[str, str]
    first_stage: int
    first_conv: int

    def at(self, template: str, i: int, j: int, k: int = 0) -> str:
        return template.format(i=i + self.first_stage, j=j, k=k + self.first_conv)


TORCHVISION = Names(
    root=("conv1", "bn1"),
    unit=("layer{i}.{j}.conv{k}", "layer{i}.{j}.bn{k}"),
    shortcut=("layer{i}.{j}.downsample.0", "layer{i}.{j}.downsample.1"),
    first_stage=1,
    first_conv=1,
)
_LAYER = "encoder.stages.{i}.layers.{j}."
TRANSFORMERS = Names(
    root=("embedder.embedder.convolution", "embedder.embedder.normalization"),
    unit=(_LAYER + "layer.{k}.convolution", _LAYER + "layer.{k}.normalization"),
    shortcut=(_LAYER + "shortcut.convolution", _LAYER + "shortcut.normalization"),
    first_stage=0,
    first_conv=0,
)


def resnet_rules(model: ResNetV1Settings, names: Names, *, counters: bool = True) -> list[Rule]:
    """`counters`: whether the norms may come with their counts of batches, of which we make no use."""
    rules = _conv_and_norm("encoder.trunk.levels.0.0.", "", names.root, counters)
    for i, depth in enumerate(model.depths):
        for j in range(depth):
            unit = f"encoder.trunk.levels.{i + 1}.{j}."
            for k in range(2 if model.unit == "basic" else 3):
                theirs = names.at(names.unit[0], i, j, k), names.at(names.unit[1], i, j, k)
                rules += _conv_and_norm(unit, str(k + 1), theirs, counters)
            if j == 0 and (i > 0 or model.unit == "bottleneck"):
                theirs = names.at(names.shortcut[0], i, j), names.at(names.shortcut[1], i, j)
                rules += _conv_and_norm(f"{unit}shortcut.", "", theirs, counters)
    return rules


def _conv_and_norm(start: str, number: str, theirs: tuple[str, str], counters: bool) -> list[Rule]:
    conv, norm = theirs
    rules = [same(f"{start}conv{number}.weight", f"{conv}.weight")]
    rules += [same(f"{start}norm{number}.{ours}", f"{norm}.{name}") for ours, name in STATISTICS.items()]
    return [*rules, carried(f"{norm}.num_batches_tracked", lambda: torch.tensor(0))] if counters else rules


def read_resnet(shapes: Shapes, start: str, names: Names) -> ResNetV1Settings:
    """All that the tensors tell; `start` is what their names begin with."""
    width, channels, *kernel = shapes(f"{start}{names.root[0]}.weight", 4)

    def conv(i: int, j: int, k: int = 0) -> str:
        return f"{start}{names.at(names.unit[0], i, j, k)}.weight"

    if kernel != [7, 7] or shapes(conv(0, 0), 4)[0] != width:
        raise UserError(f"{shapes.where}: kernels or widths that no plain ResNet has")
    return ResNetV1Settings(
        channels=channels,
        unit="bottleneck" if conv(0, 0, 2) in shapes else "basic",
        depths=depths_of(shapes, conv),
        base_width=width,
    )


@dataclass(frozen=True, kw_only=True)
class ResNetFormat(Pyramid):
    names: Names

    def tells(self) -> str:
        return self.names.at(self.names.unit[1], 0, 0) + ".running_mean"

    def fits(self, given: Given) -> bool:
        if self.library == "timm" and "architecture" not in (given.documents.get(CONFIG) or {}):
            return False
        return super().fits(given)

    def read_model(self, shapes: Shapes, start: str, config: Mapping[str, Any]) -> ResNetV1Settings:
        if self.library == "transformers":
            demand(
                config, shapes.where, hidden_act="relu", downsample_in_first_stage=False, downsample_in_bottleneck=False
            )
        return read_resnet(shapes, start, self.names)

    def as_run(self, model: ModelSettings) -> ModelSettings:
        return self._resnet(model).changed(learned_norms=True, frozen_levels=0)

    def _resnet(self, model: ModelSettings) -> ResNetV1Settings:
        if not isinstance(model, ResNetV1Settings):
            raise refusal(self, model)
        fixed = self.library != "transformers"
        if fixed and (len(model.depths) != 4 or model.base_width != 64):
            raise UserError(f"{self.name} has four stages and a root of width 64, not {model.describe()}")
        return model

    def encoder_rules(self, model: ModelSettings) -> list[Rule]:
        return resnet_rules(self._resnet(model), self.names)

    def arguments(self, model: ModelSettings) -> tuple[str, dict[str, Any]]:
        found = self._resnet(model)
        if self.library == "transformers":
            # The library has no use for the size; whoever prepares pictures has.
            return "ResNet", resnet_config(found) | {"image_size": square(found.picture_px)}
        architecture = "resnet50" if found.unit == "bottleneck" else "resnet18"
        return architecture, {"in_chans": found.channels, "layers": list(found.depths)}


def resnet_config(model: ResNetV1Settings) -> dict[str, Any]:
    """As transformers' ResNetConfig."""
    factor = 4 if model.unit == "bottleneck" else 1
    return {
        "model_type": "resnet",
        "num_channels": model.channels,
        "embedding_size": model.base_width,
        "hidden_sizes": [factor * model.base_width * 2**i for i in range(len(model.depths))],
        "depths": list(model.depths),
        "layer_type": model.unit,
        "hidden_act": "relu",
    }


FORMATS = (
    ResNetFormat(name="timm-resnet", title="timm: resnet18 to resnet101", library="timm", names=TORCHVISION, head="fc"),
    ResNetFormat(
        name="transformers-resnet",
        title="transformers: ResNet",
        library="transformers",
        names=TRANSFORMERS,
        starts=("resnet.", ""),
        head="classifier.1",
    ),
    ResNetFormat(
        name="torchvision-resnet",
        title="torchvision: resnet18 to resnet101",
        library="torchvision",
        names=TORCHVISION,
        head="fc",
    ),
)
