"""Swin Transformers, as timm, transformers, torchvision and the original code name their tensors.

All tables tell the heads and the window, so the tensors tell the whole model but for the size of its pictures.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import UserError
from vitreous.models import ModelSettings, SwinSettings
from vitreous.models.swin import SmallMaps
from vitreous.nn.relative import BiasTable
from vitreous.weights.card import Card
from vitreous.weights.published import Shapes
from vitreous.weights.pyramids import Pyramid, demand, depths_of, refusal, square
from vitreous.weights.rules import Rule, aside, computed, joined, layer, reshaped, same

EPSILON = 1e-5  # of all norms, in all of their code; transformers' config may name another


@dataclass(frozen=True)
class Names:
    """Of tensors; {i} is a stage, {j} a block of it."""

    patches: str
    patch_norm: str
    merging: str  # what leads to stage {i}; {before} is the stage before it
    block: str
    queries: tuple[str, ...]  # one for queries, keys and values together, or three
    out: str
    table: str
    mlp: tuple[str, str]
    norms: tuple[str, str] = ("norm1", "norm2")
    norm: str = "norm"
    step: int = 1  # from a stage's number to the next in its names
    offset: int = 0  # of the first stage's number
    index: str | None = None  # of a table that follows from the window, where it is saved
    flat_index: bool = False

    def stage(self, template: str, i: int, j: int = 0) -> str:
        number = self.offset + self.step * i
        return template.format(i=number, j=j, before=number - self.step, between=number - 1)


TIMM = Names(
    patches="patch_embed.proj",
    patch_norm="patch_embed.norm",
    merging="layers.{i}.downsample",
    block="layers.{i}.blocks.{j}.",
    queries=("attn.qkv",),
    out="attn.proj",
    table="attn.relative_position_bias_table",
    mlp=("mlp.fc1", "mlp.fc2"),
)
ORIGINAL = replace(TIMM, merging="layers.{before}.downsample", index="attn.relative_position_index")
TORCHVISION = replace(
    TIMM,
    patches="features.0.0",
    patch_norm="features.0.2",
    merging="features.{between}",
    block="features.{i}.{j}.",
    mlp=("mlp.0", "mlp.3"),
    step=2,
    offset=1,
    index="attn.relative_position_index",
    flat_index=True,
)
TRANSFORMERS = Names(
    patches="embeddings.patch_embeddings.projection",
    patch_norm="embeddings.norm",
    merging="encoder.layers.{before}.downsample",
    block="encoder.layers.{i}.blocks.{j}.",
    queries=("attention.self.query", "attention.self.key", "attention.self.value"),
    out="attention.output.dense",
    table="attention.self.relative_position_bias_table",
    mlp=("intermediate.dense", "output.dense"),
    norms=("layernorm_before", "layernorm_after"),
    norm="layernorm",
)


@dataclass(frozen=True, kw_only=True)
class SwinFormat(Pyramid):
    names: Names
    small_maps: SmallMaps = "shrink"

    def tells(self) -> str:
        return self.names.stage(self.names.block, 0) + self.names.table

    def fits(self, given: Any) -> bool:
        start = self._start_in(given)
        if start is None:
            return False
        # timm's layers begin with what the original's end with.
        merging = self.names.stage(self.names.merging, 1)
        return f"{start}{merging}.reduction.weight" in given.tensors or not any(
            name.endswith("reduction.weight") for name in given.tensors
        )

    def read_model(self, shapes: Shapes, start: str, config: Mapping[str, Any]) -> SwinSettings:
        width, channels, patch, other = shapes(f"{start}{self.names.patches}.weight", 4)
        if patch != other:
            raise UserError(f"{shapes.where}: patches of {patch} x {other}, where Swin's are square")

        def table(i: int, j: int) -> str:
            return start + self.names.stage(self.names.block, i, j) + self.names.table

        depths, (num, _) = depths_of(shapes, table), shapes(table(0, 0), 2)
        side = math.isqrt(num)
        if side * side != num or side % 2 == 0:
            raise UserError(f"{shapes.where}: a table of {num} offsets does not match a square window")
        hidden = shapes(f"{start}{self.names.stage(self.names.block, 0)}{self.names.mlp[0]}.weight", 2)[0]
        if self.library == "transformers":
            demand(config, shapes.where, hidden_act="gelu", layer_norm_eps=EPSILON, use_absolute_embeddings=False)
        return SwinSettings(
            channels=channels,
            patch=patch,
            width=width,
            depths=depths,
            heads=tuple(shapes(table(i, 0), 2)[1] for i in range(len(depths))),
            window=(side + 1) // 2,
            mlp_factor=hidden // width,
            norm_epsilon=EPSILON,
            small_maps=self.small_maps,
        )

    def as_run(self, model: ModelSettings) -> ModelSettings:
        return self._swin(model).changed(norm_epsilon=EPSILON, small_maps=self.small_maps)

    def run_as(self, card: Card) -> Card:
        there, swin = super().run_as(card), self._swin(card.model)
        if self.small_maps in ("shrink", "square") and min(smallest := swin.maps[-1]) < swin.window:
            px = swin.window * max(swin.coarsest_px)
            raise UserError(
                f"{self.name} has no place for windows of {swin.window} in maps as small as {smallest.h} x "
                f"{smallest.w}: write it for larger pictures (--picture-px {px})"
            )
        return there

    def _swin(self, model: ModelSettings) -> SwinSettings:
        if not isinstance(model, SwinSettings):
            raise refusal(self, model)
        return model

    def encoder_rules(self, model: ModelSettings) -> list[Rule]:
        swin, names = self._swin(model), self.names
        kernel = (swin.width, swin.channels, swin.patch, swin.patch)
        flat = (swin.width, swin.channels * swin.patch**2)
        rules = [
            reshaped("encoder.patches.linear.weight", f"{names.patches}.weight", flat, kernel),
            same("encoder.patches.linear.bias", f"{names.patches}.bias"),
            *layer("encoder.patch_norm", names.patch_norm),
            *layer("encoder.norm", names.norm),
        ]
        for i, depth in enumerate(swin.depths):
            if i:
                merging = names.stage(names.merging, i)
                rules += layer(f"encoder.levels.{i}.merging.norm", f"{merging}.norm")
                rules += layer(f"encoder.levels.{i}.merging.linear", f"{merging}.reduction", bias=False)
            for j in range(depth):
                rules += self._block(f"encoder.levels.{i}.blocks.{j}.", names.stage(names.block, i, j), swin.window)
        # Masks of shifted windows, and indices that follow from the window, which some versions saved; SimMIM's head.
        besides = r".*\.(attn_mask|relative_position_index|mask_token)$|(model\.)?decoder\.0\.(weight|bias)$"
        return [*rules, aside(besides)]

    def _block(self, ours: str, theirs: str, window: int) -> list[Rule]:
        names = self.names
        three = [theirs + name for name in names.queries]
        rules = [
            *layer(f"{ours}attention_norm", theirs + names.norms[0]),
            *(
                joined(f"{ours}attention.project_in.{kind}", [f"{each}.{kind}" for each in three])
                for kind in ("weight", "bias")
            ),
            *layer(f"{ours}attention.project_out", theirs + names.out),
            same(f"{ours}attention.bias_table.table", theirs + names.table),
            *layer(f"{ours}mlp_norm", theirs + names.norms[1]),
            *layer(f"{ours}mlp.expand", theirs + names.mlp[0]),
            *layer(f"{ours}mlp.contract", theirs + names.mlp[1]),
        ]
        if names.index is not None:
            rules.append(computed(theirs + names.index, _index(window, names.flat_index)))
        return rules

    def arguments(self, model: ModelSettings) -> tuple[str, dict[str, Any]]:
        swin = self._swin(model)
        if self.library == "transformers":
            return "Swin", {
                "model_type": "swin",
                "image_size": square(swin.picture_px),
                "patch_size": swin.patch,
                "num_channels": swin.channels,
                "embed_dim": swin.width,
                "depths": list(swin.depths),
                "num_heads": list(swin.heads),
                "window_size": swin.window,
                "mlp_ratio": float(swin.mlp_factor),
                "layer_norm_eps": EPSILON,
                "drop_path_rate": swin.stochastic_depth,
            }
        return "swin_tiny_patch4_window7_224", {
            "img_size": list(swin.picture_px),
            "patch_size": swin.patch,
            "in_chans": swin.channels,
            "embed_dim": swin.width,
            "depths": list(swin.depths),
            "num_heads": list(swin.heads),
            "window_size": swin.window,
            "mlp_ratio": float(swin.mlp_factor),
        }


def _index(window: int, flat: bool) -> Callable[[], Tensor]:
    def value() -> Tensor:
        index = BiasTable((window, window), 1, has_prefix=False).pairs(0, torch.arange(window * window))
        return index.flatten() if flat else index

    return value


FORMATS = (
    SwinFormat(name="timm-swin", title="timm: Swin", library="timm", names=TIMM, head="head.fc"),
    SwinFormat(
        name="transformers-swin",
        title="transformers: Swin",
        library="transformers",
        names=TRANSFORMERS,
        starts=("swin.", ""),
        head="classifier",
        small_maps="square",
    ),
    SwinFormat(
        name="torchvision-swin",
        title="torchvision: swin_t to swin_b",
        library="torchvision",
        names=TORCHVISION,
        small_maps="pad",
    ),
    SwinFormat(
        name="swin",
        title="Swin's own checkpoints, and SimMIM's of a Swin",
        library="original",
        names=ORIGINAL,
        starts=("model.", "", "model.encoder.", "encoder."),
        small_maps="square",
    ),
)
