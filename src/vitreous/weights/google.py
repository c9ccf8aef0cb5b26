"""Google's .npz files: ViT and hybrids (vision_transformer, AugReg), big_vision's ViT, and BiT.

Heads, width, depth and patch are all in the shapes. What no file says is taken from the published code: flax's GELU is
the tanh approximation, its norms' epsilon is 1e-6, pictures are squashed to the size by bilinear resizing and
brought to -1 .. 1. timm runs the same weights with the exact GELU, 1e-5 in a hybrid's norms, and a centre crop.

Within a block the released files count all layers together (LayerNorm_0, MultiHeadDotProductAttention_1, LayerNorm_2,
MlpBlock_3); the current code and big_vision count each kind by itself.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ResNetSettings, ResNetStem, ViTSettings
from vitreous.tasks import ClassifySettings
from vitreous.weights.card import Card, nameless
from vitreous.weights.formats import Format, Given
from vitreous.weights.google_rules import (
    batched,
    conv,
    converted,
    dense,
    four_axes,
    head_rules,
    norm,
    patches,
    stacked,
    stem_rules,
    units,
)
from vitreous.weights.rules import Rule, prefixed, same

RELEASED = ("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
COUNTED_BY_KIND = ("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
IN_ENCODER = "Transformer/posembed_input/pos_embedding"
BEFORE_CLASS_TOKEN = "pos_embedding"  # big_vision: the class token joins later and has no position
# Of a hybrid's group norms and standardised convolutions.
CONVOLUTIONS: dict[str, Any] = {"norm_epsilon": 1e-6, "conv_epsilon": 1e-5, "standardisation": "deviation"}
PREPROCESSING = Preprocessing(crop="squash", crop_fraction=1.0, interpolation="bilinear")


@dataclass
class GoogleViT(Format):
    """ViT or hybrid, in one of the spellings."""

    name: str
    title: str
    block: tuple[str, str, str, str] = RELEASED
    positions: str = IN_ENCODER
    prefix: str = ""  # before every name
    is_stacked: bool = False  # one array holds a layer of all blocks
    norm_axes: int | None = None  # of a hybrid's group norms, as found in a file; none: not known
    container: Literal["safetensors", "npz"] = "npz"

    def fits(self, given: Given) -> bool:
        first = "Transformer/encoderblock" + ("" if self.is_stacked else "_0")
        wanted = ("embedding/kernel", self.positions, f"{first}/{self.block[1]}/query/kernel")
        return all(self.prefix + name in given.tensors for name in wanted)

    def card(self, given: Given, picture_px: tuple[int, int] | None = None) -> Card:
        shape = _Shapes(given, self.prefix)
        if any(name.startswith(f"{self.prefix}MAPHead_0/") for name in given.tensors):
            raise UserError(f"{given.where}: pools by attention (MAPHead_0), which no model of ours does")
        ph, pw, channels, width = shape("embedding/kernel", 4)
        stem = _stem(given.tensors, self.prefix, shape)
        has_class = f"{self.prefix}cls" in given.tensors
        stride = 1 if stem is None else _stride(stem)
        rows = shape(self.positions, 3)[1] - int(has_class and self.positions == IN_ENCODER)
        grid = _grid(rows, (ph * stride, pw * stride), picture_px, given.where)
        depth, heads, mlp_width = self._block_sizes(given, shape, width)
        size = (grid[0] * ph * stride, grid[1] * pw * stride)
        model = ViTSettings.of(
            picture_px=size,
            channels=channels if stem is None else shape("conv_root/kernel", 4)[2],
            patch=ph if ph == pw else (ph, pw),
            stem=stem,
            width=width,
            depth=depth,
            heads=heads,
            mlp_width=None if mlp_width == 4 * width else mlp_width,
            pool="class" if has_class else "mean",
            num_prefix=int(has_class),
            gelu="tanh",
            norm_epsilon=1e-6,
        )
        has_hidden = f"{self.prefix}pre_logits/kernel" in given.tensors
        num_classes = shape("head/kernel", 2)[1] if f"{self.prefix}head/kernel" in given.tensors else 0
        return _card(model, size, num_classes, "tanh" if has_hidden else "linear")

    def assumed(self, given: Given, card: Card) -> list[str]:
        return [
            "an npz records neither the GELU (tanh) nor the epsilons (1e-6) nor the preprocessing: taken as published"
        ]

    def found_in(self, given: Given) -> "GoogleViT":
        root = given.tensors.get(f"{self.prefix}gn_root/scale")
        return self if root is None else replace(self, norm_axes=root.ndim)

    def _block_sizes(self, given: Given, shape: "_Shapes", width: int) -> tuple[int, int, int]:
        """Depth, heads, and the width of the hidden layer."""
        _, attention, _, mlp = self.block
        if self.is_stacked:
            depth, _, heads, head_width = shape(f"Transformer/encoderblock/{attention}/query/kernel", 4)
            mlp_width = shape(f"Transformer/encoderblock/{mlp}/Dense_0/kernel", 3)[2]
        else:
            pattern = re.compile(re.escape(f"{self.prefix}Transformer/encoderblock_") + r"(\d+)/")
            depth = len({match[1] for name in given.tensors if (match := pattern.match(name))})
            _, heads, head_width = shape(f"Transformer/encoderblock_0/{attention}/query/kernel", 3)
            mlp_width = shape(f"Transformer/encoderblock_0/{mlp}/Dense_0/kernel", 2)[1]
        if heads * head_width != width:
            raise UserError(f"{given.where}: {heads} heads of {head_width} do not make the width {width}")
        return depth, heads, mlp_width

    def rules(self, card: Card) -> list[Rule]:
        model = card.model
        if not isinstance(model, ViTSettings):
            raise UserError(f"the format {self.name} holds ViTs and hybrids; for a ResNet choose {BIT.name}")
        self._check(model)
        patch = (model.patch, model.patch) if isinstance(model.patch, int) else model.patch
        rules = [
            converted("encoder.stem.patches.linear.weight", "embedding/kernel", *patches(patch)),
            same("encoder.stem.patches.linear.bias", "embedding/bias"),
            *self._token_rules(model),
            *norm("encoder.norm", "Transformer/encoder_norm"),
        ]
        if isinstance(model.stem, ResNetStem):
            rules += stem_rules(model.stem)
            rules += [] if self.norm_axes == 1 else [four_axes(rules)]
        blocks = [self._block_rules(i, model.heads) for i in range(model.depth)]
        if self.is_stacked:
            rules += [stacked([block[i] for block in blocks]) for i in range(len(blocks[0]))]
        else:
            rules += [rule for block in blocks for rule in block]
        rules += head_rules(card)
        return [prefixed(rule, self.prefix) for rule in rules]

    def run_as(self, card: Card) -> Card:
        model = card.model
        if isinstance(model, ViTSettings):
            stem = replace(model.stem, **CONVOLUTIONS) if isinstance(model.stem, ResNetStem) else model.stem
            model = model.changed(stem=stem, gelu="tanh", norm_epsilon=1e-6)
        return _as_published(replace(card, model=model))

    def _check(self, model: ViTSettings) -> None:
        """Whatever makes another model of the same tensors has no place in these files."""
        if not (model.stem is None or isinstance(model.stem, ResNetStem)):
            raise UserError(f"the format {self.name} cannot store this model's stem")
        if model.positions != "learned" or model.ends.positions_where != "stem":
            raise UserError(f"the format {self.name} cannot store positions other than learned ones at the stem")
        if model.pool != ("class" if model.num_prefix else "mean") or model.num_prefix > 1 or model.num_registers:
            raise UserError(f"the format {self.name} pools by its one class token, or has none and pools by the mean")
        if model.block.mlp != "gelu" or model.ends.pool_norm != "before":
            raise UserError(f"the format {self.name} cannot store gated units or a norm after pooling")

    def _token_rules(self, model: ViTSettings) -> list[Rule]:
        token, table = "encoder.prefix.tokens", "encoder.positions.tables.0.table"
        if not model.num_prefix:
            return [batched(table, self.positions)]
        if self.positions == IN_ENCODER:
            return [batched(table, self.positions), batched(token, "cls")]

        def read(cls: Tensor, cells: Tensor) -> tuple[Tensor, ...]:
            return cls[0], torch.cat([torch.zeros_like(cells[0, :1]), cells[0]])

        def write(tokens: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
            return (tokens + rows[:1])[None], rows[None, 1:].contiguous()

        return [Rule((token, table), ("cls", self.positions), read, write)]

    def _block_rules(self, number: int, heads: int) -> list[Rule]:
        ours = f"encoder.blocks.{number}"
        theirs = "Transformer/encoderblock" + ("" if self.is_stacked else f"_{number}")
        norm1, attention, norm2, mlp = (f"{theirs}/{layer}" for layer in self.block)
        three = [f"{attention}/{name}" for name in ("query", "key", "value")]
        return [
            *norm(f"{ours}.attention_norm", norm1),
            Rule(
                (f"{ours}.attention.project_in.weight",),
                tuple(f"{name}/kernel" for name in three),
                lambda *parts: (torch.cat([part.flatten(1).T for part in parts]),),
                lambda whole: tuple(part.T.reshape(part.shape[1], heads, -1) for part in whole.chunk(3)),
            ),
            Rule(
                (f"{ours}.attention.project_in.bias",),
                tuple(f"{name}/bias" for name in three),
                lambda *parts: (torch.cat([part.flatten() for part in parts]),),
                lambda whole: tuple(part.reshape(heads, -1).contiguous() for part in whole.chunk(3)),
            ),
            converted(
                f"{ours}.attention.project_out.weight",
                f"{attention}/out/kernel",
                lambda kernel: kernel.flatten(0, 1).T,
                lambda matrix: matrix.T.reshape(heads, -1, len(matrix)),
            ),
            same(f"{ours}.attention.project_out.bias", f"{attention}/out/bias"),
            *norm(f"{ours}.mlp_norm", norm2),
            *dense(f"{ours}.mlp.expand", f"{mlp}/Dense_0"),
            *dense(f"{ours}.mlp.contract", f"{mlp}/Dense_1"),
        ]


@dataclass
class GoogleBiT(Format):
    """BiT ResNet-v2, as released. The head is a 1x1 convolution."""

    name: str = "google-bit"
    title: str = "BiT ResNet-v2 as Google released it"
    container: Literal["safetensors", "npz"] = "npz"

    def fits(self, given: Given) -> bool:
        return {"resnet/root_block/standardized_conv2d/kernel", "resnet/group_norm/gamma"} <= given.tensors.keys()

    def card(self, given: Given, picture_px: tuple[int, int] | None = None) -> Card:
        shape = _Shapes(given, "resnet/")
        kernel, _, channels, width = shape("root_block/standardized_conv2d/kernel", 4)
        size = picture_px or (224, 224)  # of a ResNet's pictures no shape speaks
        model = ResNetSettings(
            picture_px=size,
            channels=channels,
            depths=_depths(given.tensors, r"resnet/block(\d+)/unit(\d+)/"),
            base_width=width,
            root="imagenet" if kernel == 7 else "small",
        )
        num_classes = shape("head/conv2d/kernel", 4)[3] if "resnet/head/conv2d/kernel" in given.tensors else 0
        return _card(model, size, num_classes, "linear")

    def run_as(self, card: Card) -> Card:
        usual = ResNetSettings()
        known = {name: getattr(usual, name) for name in ("norm_epsilon", "conv_epsilon", "standardisation")}
        model = replace(card.model, **known) if isinstance(card.model, ResNetSettings) else card.model
        there = _as_published(replace(card, model=model))
        return replace(there, preprocessing=PREPROCESSING)  # no file tells the size of its pictures

    def rules(self, card: Card) -> list[Rule]:
        model = card.model
        if not isinstance(model, ResNetSettings):
            raise UserError(f"the format {self.name} holds ResNets; for a ViT choose {RELEASED_VIT.name}")
        kernel = "standardized_conv2d/kernel"
        rules = [
            conv("encoder.trunk.levels.0.0.conv", f"root_block/{kernel}"),
            *norm("encoder.norm", "group_norm", ("gamma", "beta")),
        ]
        for i, j in units(model.depths):
            ours, theirs = f"encoder.trunk.levels.{i}.{j}", f"block{i}/unit{j + 1:02d}"
            for number, letter in enumerate("abc", start=1):
                rules.append(conv(f"{ours}.conv{number}", f"{theirs}/{letter}/{kernel}"))
                rules += norm(f"{ours}.norm{number}", f"{theirs}/{letter}/group_norm", ("gamma", "beta"))
            if j == 0:
                rules.append(conv(f"{ours}.project", f"{theirs}/a/proj/{kernel}"))
        if card.classifier is not None:
            if card.classifier.head != "linear":
                raise UserError(f"the format {self.name} has a linear head only, not {card.classifier.head}")
            head = "head/conv2d"
            rules += [
                converted("head.weight", f"{head}/kernel", lambda k: k[0, 0].T, lambda m: m.T[None, None]),
                same("head.bias", f"{head}/bias"),
            ]
        return [prefixed(rule, "resnet/") for rule in rules]


# ---- What the shapes say


class _Shapes:
    """Shapes by name, with a word for a file that lacks one or has another number of axes."""

    def __init__(self, given: Given, prefix: str) -> None:
        self.given, self.prefix = given, prefix

    def __call__(self, name: str, axes: int) -> tuple[int, ...]:
        name = self.prefix + name
        if name not in self.given.tensors:
            raise UserError(f"{self.given.where}: has no {name}")
        shape = tuple(self.given.tensors[name].shape)
        if len(shape) != axes or 0 in shape:
            raise UserError(f"{self.given.where}: {name} has the shape {shape}, where {axes} axes are expected")
        return shape


def _card(model: ViTSettings | ResNetSettings, size: tuple[int, int], num_classes: int, head: Any) -> Card:
    return Card(
        model=model,
        task=ClassifySettings(head=head) if num_classes else None,
        classes=tuple(str(number) for number in range(num_classes)),  # the files hold no names
        preprocessing=replace(PREPROCESSING, size_px=size),
    )


def _as_published(card: Card) -> Card:
    """With what the code does to all pictures, and without the names of the classes."""
    return replace(nameless(card), preprocessing=replace(PREPROCESSING, size_px=card.preprocessing.size_px))


def _grid(cells: int, patch_px: tuple[int, int], picture_px: tuple[int, int] | None, where: str) -> tuple[int, int]:
    """A given size that has just as many patches says how they lie; else they lie in a square, as all released do."""
    if picture_px is not None:
        grid = (picture_px[0] // patch_px[0], picture_px[1] // patch_px[1])
        if grid[0] * grid[1] == cells:
            return grid
    side = math.isqrt(cells)
    if side * side != cells:
        raise UserError(
            f"{where}: its {cells} positions are not a square; give the picture size (height, width) that they are for"
        )
    return side, side


def _depths(names: Mapping[str, Any], pattern: str) -> tuple[int, ...]:
    """Units in each stage."""
    found = {(int(match[1]), int(match[2])) for name in names if (match := re.match(pattern, name))}
    stages = sorted({stage for stage, _ in found})
    return tuple(sum(stage == one for stage, _ in found) for one in stages)


def _stem(names: Mapping[str, Any], prefix: str, shape: _Shapes) -> ResNetStem | None:
    if f"{prefix}conv_root/kernel" not in names:
        return None
    kernel, _, _, width = shape("conv_root/kernel", 4)
    depths = _depths(names, re.escape(prefix) + r"block(\d+)/unit(\d+)/")
    return ResNetStem(
        depths=depths,
        base_width=width,
        root="imagenet" if kernel == 7 else "small",
        **CONVOLUTIONS,
    )


def _stride(stem: ResNetStem) -> int:
    return (4 if stem.root == "imagenet" else 1) << max(len(stem.depths) - 1, 0)


RELEASED_VIT = GoogleViT("google", "ViT, AugReg and hybrids as Google released them (vision_transformer)")
BIT = GoogleBiT()
FORMATS: tuple[Format, ...] = (
    RELEASED_VIT,
    GoogleViT("google-flax", "the same as the current code of vision_transformer names them", COUNTED_BY_KIND),
    GoogleViT("big-vision", "big_vision's ViT", COUNTED_BY_KIND, BEFORE_CLASS_TOKEN, "params/"),
    GoogleViT("big-vision-plain", "the same without params/ before the names", COUNTED_BY_KIND, BEFORE_CLASS_TOKEN),
    GoogleViT("big-vision-target", "the same with opt/target/", COUNTED_BY_KIND, BEFORE_CLASS_TOKEN, "opt/target/"),
    GoogleViT("big-vision-stacked", "big_vision's ViT, scanned", COUNTED_BY_KIND, BEFORE_CLASS_TOKEN, "params/", True),
    BIT,
)
