"""ConvNeXts, as timm, transformers, torchvision and the original code name their tensors. The tensors tell all but the
size of the pictures."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vitreous.errors import UserError
from vitreous.models import ConvNeXtSettings, ModelSettings
from vitreous.weights.formats import Given
from vitreous.weights.published import Shapes
from vitreous.weights.pyramids import Pyramid, demand, depths_of, refusal, square
from vitreous.weights.rules import Rule, layer, reshaped, same

EPSILON, POOL_EPSILON = 1e-6, 1e-12  # of all norms; of transformers' last one, unless its config says otherwise


@dataclass(frozen=True)
class Names:
    """Of tensors; {i} is a stage, {j} a block of it."""

    stem: tuple[str, str]  # convolution, norm
    downsampling: tuple[str, str]  # norm, convolution
    block: str
    conv: str
    block_norm: str
    mlp: tuple[str, str]
    scale: str
    norm: str
    step: int = 1  # from a stage's number to the next in its names
    offset: int = 0  # of the first stage's number
    scale_axes: int = 1

    def stage(self, template: str, i: int, j: int = 0) -> str:
        number = self.offset + self.step * i
        return template.format(i=number, j=j, between=number - 1)


TIMM = Names(
    stem=("stem.0", "stem.1"),
    downsampling=("stages.{i}.downsample.0", "stages.{i}.downsample.1"),
    block="stages.{i}.blocks.{j}.",
    conv="conv_dw",
    block_norm="norm",
    mlp=("mlp.fc1", "mlp.fc2"),
    scale="gamma",
    norm="head.norm",
)
ORIGINAL = Names(
    stem=("downsample_layers.0.0", "downsample_layers.0.1"),
    downsampling=("downsample_layers.{i}.0", "downsample_layers.{i}.1"),
    block="stages.{i}.{j}.",
    conv="dwconv",
    block_norm="norm",
    mlp=("pwconv1", "pwconv2"),
    scale="gamma",
    norm="norm",
)
TORCHVISION = Names(
    stem=("features.0.0", "features.0.1"),
    downsampling=("features.{between}.0", "features.{between}.1"),
    block="features.{i}.{j}.",
    conv="block.0",
    block_norm="block.2",
    mlp=("block.3", "block.5"),
    scale="layer_scale",
    norm="classifier.0",
    step=2,
    offset=1,
    scale_axes=3,
)
TRANSFORMERS = Names(
    stem=("embeddings.patch_embeddings", "embeddings.layernorm"),
    downsampling=("encoder.stages.{i}.downsampling_layer.0", "encoder.stages.{i}.downsampling_layer.1"),
    block="encoder.stages.{i}.layers.{j}.",
    conv="dwconv",
    block_norm="layernorm",
    mlp=("pwconv1", "pwconv2"),
    scale="layer_scale_parameter",
    norm="layernorm",
)


@dataclass(frozen=True, kw_only=True)
class ConvNeXtFormat(Pyramid):
    names: Names
    conv_mlp: bool = False  # as found: timm's smallest have 1 x 1 convolutions where others have dense layers

    def tells(self) -> str:
        return self.names.stage(self.names.block, 0) + self.names.conv + ".weight"

    def found_in(self, given: Given) -> "ConvNeXtFormat":
        start = self._start_in(given) or ""
        first = given.tensors[f"{start}{self.names.stage(self.names.block, 0)}{self.names.mlp[0]}.weight"]
        return replace(self, start=start, conv_mlp=first.ndim == 4)

    def read_model(self, shapes: Shapes, start: str, config: Mapping[str, Any]) -> ConvNeXtSettings:
        names = self.names
        width, channels, patch, other = shapes(f"{start}{names.stem[0]}.weight", 4)
        first = start + names.stage(names.block, 0)
        if patch != other or shapes(f"{first}{names.conv}.weight", 4)[2:] != (7, 7):
            raise UserError(f"{shapes.where}: its kernels are not those of a ConvNeXt")
        depths = depths_of(shapes, lambda i, j: f"{start}{names.stage(names.block, i, j)}{names.conv}.weight")
        later = [f"{start}{names.stage(names.downsampling[1], i)}.weight" for i in range(1, len(depths))]
        epsilon = EPSILON
        if self.library == "transformers":
            demand(config, shapes.where, hidden_act="gelu")
            epsilon = float(config.get("layer_norm_eps", POOL_EPSILON))
        return ConvNeXtSettings(
            channels=channels,
            patch=patch,
            widths=(width, *(shapes(name, 4)[0] for name in later)),
            depths=depths,
            layer_scale=1e-6 if first + names.scale in shapes else None,
            norm_epsilon=EPSILON,
            pool_norm_epsilon=epsilon,
        )

    def as_run(self, model: ModelSettings) -> ModelSettings:
        found = self._convnext(model)
        epsilon = found.pool_norm_epsilon if self.library == "transformers" else EPSILON
        return found.changed(norm_epsilon=EPSILON, pool_norm_epsilon=epsilon)

    def _convnext(self, model: ModelSettings) -> ConvNeXtSettings:
        if not isinstance(model, ConvNeXtSettings):
            raise refusal(self, model)
        return model

    def encoder_rules(self, model: ModelSettings) -> list[Rule]:
        found, names = self._convnext(model), self.names
        rules = layer("encoder.norm", names.norm)
        for i, depth in enumerate(found.depths):
            norm, conv = (names.stage(each, i) for each in names.downsampling) if i else names.stem[::-1]
            rules += layer(f"encoder.levels.{i}.downsampling.norm", norm)
            rules += layer(f"encoder.levels.{i}.downsampling.conv", conv)
            for j in range(depth):
                rules += self._block(f"encoder.levels.{i}.blocks.{j}.", names.stage(names.block, i, j), found, i)
        return rules

    def _block(self, ours: str, theirs: str, model: ConvNeXtSettings, stage: int) -> list[Rule]:
        names, width = self.names, model.widths[stage]
        rules = layer(f"{ours}conv", theirs + names.conv) + layer(f"{ours}norm", theirs + names.block_norm)
        for mine, their, shape in zip(
            ("mlp.expand", "mlp.contract"), names.mlp, ((4 * width, width), (width, 4 * width)), strict=True
        ):
            kernel = (*shape, 1, 1) if self.conv_mlp else shape
            rules += [
                reshaped(f"{ours}{mine}.weight", f"{theirs}{their}.weight", shape, kernel),
                same(f"{ours}{mine}.bias", f"{theirs}{their}.bias"),
            ]
        if model.layer_scale is None:
            return rules
        scale = (width, *(1,) * (names.scale_axes - 1))
        return [*rules, reshaped(f"{ours}scale.factor", theirs + names.scale, (width,), scale)]

    def arguments(self, model: ModelSettings) -> tuple[str, dict[str, Any]]:
        found = self._convnext(model)
        if self.library == "transformers":
            return "ConvNext", {
                "model_type": "convnext",
                "image_size": square(found.picture_px),
                "patch_size": found.patch,
                "num_channels": found.channels,
                "num_stages": len(found.depths),
                "hidden_sizes": list(found.widths),
                "depths": list(found.depths),
                "layer_norm_eps": found.pool_norm_epsilon,
                "layer_scale_init_value": 0.0 if found.layer_scale is None else found.layer_scale,
                "drop_path_rate": found.stochastic_depth,
            }
        return "convnext_tiny", {
            "in_chans": found.channels,
            "patch_size": found.patch,
            "dims": list(found.widths),
            "depths": list(found.depths),
            "ls_init_value": found.layer_scale,
            "conv_mlp": self.conv_mlp,
        }


FORMATS = (
    ConvNeXtFormat(name="timm-convnext", title="timm: ConvNeXt", library="timm", names=TIMM, head="head.fc"),
    ConvNeXtFormat(
        name="transformers-convnext",
        title="transformers: ConvNeXt",
        library="transformers",
        names=TRANSFORMERS,
        starts=("convnext.", ""),
        head="classifier",
    ),
    ConvNeXtFormat(
        name="torchvision-convnext",
        title="torchvision: convnext_tiny to convnext_large",
        library="torchvision",
        names=TORCHVISION,
        head="classifier.2",
    ),
    ConvNeXtFormat(
        name="convnext",
        title="ConvNeXt's own checkpoints",
        library="original",
        names=ORIGINAL,
        starts=("model.", ""),
    ),
)
