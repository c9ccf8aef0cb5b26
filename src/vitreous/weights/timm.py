"""timm: VisionTransformer (ViT, DeiT, hybrids, DINO, DINOv2, CLIP's towers), Beit, and the BiT ResNetV2.

A file of timm's is a state dict; on the hub a config.json stands beside it, with the architecture's name, the
constructor's arguments that differ from it, and what is done to pictures. Shapes say almost everything. They do not say
the number of heads, the kind of GELU or the norms' epsilon: those go by the architecture. Without one they are those of
the published models of the same shape, where all of these agree; else the file is refused, with the way out.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ResNetSettings, ResNetStem, ViTSettings
from vitreous.tasks import ClassifySettings
from vitreous.weights.card import Card, nameless
from vitreous.weights.describe import describe
from vitreous.weights.formats import Format, Given
from vitreous.weights.processors import CLIP_MEAN, CLIP_STD, HALF, IMAGENET_MEAN, IMAGENET_STD
from vitreous.weights.published import Shapes, assumptions, read_gelu, read_heads, refuse_rotary
from vitreous.weights.rules import Rule, layer, same
from vitreous.weights.timm_config import (
    CLIP,
    CLIP_NORM_EPSILON,
    NORM_EPSILON,
    Config,
    is_beit,
    is_distilled,
    norm_epsilon,
    refuse_unknown,
    write_config,
)

TOKENS, TABLE = "encoder.prefix.tokens", "encoder.positions.tables.0.table"
# Of the convolutions and group norms in BiT and in hybrids, whatever their weights were trained with.
CONVOLUTIONS: dict[str, Any] = {"norm_epsilon": 1e-5, "conv_epsilon": 1e-8, "standardisation": "variance"}


class Timm(Format):
    name = "timm"
    title = "timm: ViT, DeiT, hybrids, BiT, DINO, DINOv2, BEiT"
    container: Literal["safetensors"] = "safetensors"

    def fits(self, given: Given) -> bool:
        return is_vit(given.tensors) or is_bit(given.tensors)

    def card(self, given: Given, picture_px: tuple[int, int] | None = None) -> Card:
        return read_card(given, picture_px)

    def assumed(self, given: Given, card: Card) -> list[str]:
        return assumptions(given, card)

    def run_as(self, card: Card) -> Card:
        refuse_unknown(card)
        model, p = card.model, card.preprocessing
        if isinstance(model, ResNetSettings):
            model = replace(model, **CONVOLUTIONS)
        elif isinstance(model, ViTSettings):
            model = as_timm_runs(model, norm_epsilon(card, model))
        p = replace(p, skip_fitting=False, resizer="pillow", odd_margin="even")
        return replace(nameless(card), model=model, classes=card.classes, preprocessing=p)

    def rules(self, card: Card) -> list[Rule]:
        return timm_rules(card)

    def documents(self, card: Card) -> dict[str, Any]:
        return {"config.json": write_config(card)}


def as_timm_runs(model: ViTSettings, epsilon: float) -> ViTSettings:
    stem = replace(model.stem, **CONVOLUTIONS) if isinstance(model.stem, ResNetStem) else model.stem
    # Its Beit has one activation, and all else takes any.
    return model.changed(stem=stem, norm_epsilon=epsilon, gelu="erf" if is_beit(model) else model.block.gelu)


def is_vit(tensors: Mapping[str, Tensor]) -> bool:
    return "patch_embed.proj.weight" in tensors and "blocks.0.norm1.weight" in tensors


def is_bit(tensors: Mapping[str, Tensor]) -> bool:
    return "stem.conv.weight" in tensors and "stages.0.blocks.0.norm1.weight" in tensors


# ---- What a file describes


def read_card(given: Given, picture_px: tuple[int, int] | None = None, any_depth: bool = False) -> Card:
    """`any_depth`: the width of a head is known without a config, also where no model of this size was published."""
    try:
        return _read_card(given, picture_px, any_depth)
    except (TypeError, ValueError, LookupError, OverflowError, ZeroDivisionError) as error:
        raise UserError(f"{given.where}: its config.json is not one of timm's, or damaged ({error})") from None


def _read_card(given: Given, picture_px: tuple[int, int] | None, any_depth: bool) -> Card:
    shapes, config = Shapes(given), Config(given)
    config.check()
    if is_bit(given.tensors):
        model: ViTSettings | ResNetSettings = _read_resnet(shapes, config, picture_px)
        head = "head.fc.weight"
        num_classes = shapes(head, 4)[0] if head in shapes else 0
    else:
        model = _read_vit(shapes, config, picture_px, any_depth)
        num_classes = shapes("head.weight", 2)[0] if "head.weight" in shapes else 0
    task = ClassifySettings(head="distilled" if "head_dist.weight" in shapes else "linear") if num_classes else None
    return Card(
        model=model,
        task=task,
        classes=config.classes(num_classes),
        preprocessing=config.preprocessing(model.picture_px, _assumed_preprocessing(given.tensors)),
    )


def _assumed_preprocessing(tensors: Mapping[str, Tensor]) -> Preprocessing:
    """timm's own defaults for the family, where no config says otherwise."""
    if is_bit(tensors):
        return Preprocessing(interpolation="bilinear", crop_fraction=0.875)
    assumed = Preprocessing(interpolation="bicubic", crop_fraction=0.9, mean=HALF, std=HALF)
    if "norm_pre.weight" in tensors:
        return replace(assumed, mean=CLIP_MEAN, std=CLIP_STD)
    if {"dist_token", "blocks.0.ls1.gamma"} & tensors.keys():
        return replace(assumed, mean=IMAGENET_MEAN, std=IMAGENET_STD)  # DeiT and DINOv2
    return assumed


def _read_vit(shapes: Shapes, config: Config, picture_px: tuple[int, int] | None, any_depth: bool) -> ViTSettings:
    width, channels, *patch = shapes("patch_embed.proj.weight", 4)
    stem = _read_stem(shapes)
    if stem is not None:
        root = "patch_embed.backbone.stem.conv.weight" if stem.depths else "patch_embed.backbone.conv.weight"
        channels = shapes(root, 4)[1]
    stride = 1 if stem is None else 4 * 2 ** max(len(stem.depths) - 1, 0)
    unit = patch[0] * stride, patch[1] * stride
    cell_rows, num_prefix, num_registers = _read_tokens(shapes, unit, config, picture_px)
    grid, depth = _read_grid(shapes, config, unit, cell_rows, picture_px), shapes.numbered(r"blocks\.(\d+)\.")
    mlp_in, mlp_out = shapes("blocks.0.mlp.fc1.weight", 2)[0], shapes("blocks.0.mlp.fc2.weight", 2)[1]
    pre_norm = "norm_pre.weight" in shapes
    refuse_rotary(shapes, config, is_gated=mlp_in == 2 * mlp_out)
    scaled = {"blocks.0.ls1.gamma", "blocks.0.gamma_1"} & shapes.tensors.keys()
    pool_after = "fc_norm.weight" in shapes
    pooled_mean = pool_after or "cls_token" not in shapes
    if config.pooling() in ("avg", "token"):
        pooled_mean = config.pooling() == "avg"
    epsilon = NORM_EPSILON
    if CLIP in config.architecture or (pre_norm and not config.architecture):
        epsilon = CLIP_NORM_EPSILON
    bias = "blocks.0.attn.qkv.bias" in shapes
    shared_table = "rel_pos_bias.relative_position_bias_table" in shapes
    own_table = "blocks.0.attn.relative_position_bias_table" in shapes
    return ViTSettings.of(
        picture_px=(grid[0] * unit[0], grid[1] * unit[1]),
        channels=channels,
        patch=patch[0] if patch[0] == patch[1] else (patch[0], patch[1]),
        patch_bias="patch_embed.proj.bias" in shapes,
        stem=stem,
        width=width,
        depth=depth,
        heads=read_heads(shapes, config, width, None if any_depth else depth, (patch[0], cell_rows)),
        mlp="swiglu" if mlp_in == 2 * mlp_out else "gelu",
        mlp_width=mlp_out,
        pool="mean" if pooled_mean else "class",
        pool_norm="after" if pool_after else "before",
        num_prefix=num_prefix,
        num_registers=num_registers,
        positions="bias" if own_table else "bias-shared" if shared_table else "learned" if cell_rows else "none",
        layer_scale=float(config.arguments.get("init_values") or 1e-5) if scaled else None,
        attention_bias="no-key" if "blocks.0.attn.q_bias" in shapes else "all" if bias else "none",
        gelu=read_gelu(shapes, config, (width, patch[0]), cell_rows),
        pre_norm=pre_norm,
        norm_epsilon=float(config.whole.get("norm_epsilon", epsilon)),
    )


def _read_tokens(
    shapes: Shapes, unit: tuple[int, int], config: Config, picture_px: tuple[int, int] | None
) -> tuple[int, int, int]:
    """Rows of the position table that are cells (0: no table), tokens with a position, tokens without one.

    In timm's table either all prefix tokens have a row or none. A picture size that is known settles it; without one,
    all published pictures are square.
    """
    has_class = "cls_token" in shapes
    first = sum(shapes(name, 3)[1] for name in ("cls_token", "dist_token") if name in shapes)
    registers = shapes("reg_token", 3)[1] if "reg_token" in shapes else 0
    if "pos_embed" not in shapes:
        return 0, first, registers
    rows = shapes("pos_embed", 3)[1]
    sizes = [size for size in (picture_px, config.picture_px()) if size is not None]
    wanted = [(h // unit[0]) * (w // unit[1]) for h, w in sizes]
    # Registers came with tables that have no row for the prefix, class tokens alone with tables that have one.
    choices = (rows, rows - first - registers) if registers else (rows - first, rows)
    by_size = [cells for cells in choices if cells in wanted]
    by_shape = [cells for cells in choices if cells > 0 and math.isqrt(cells) ** 2 == cells]
    cells = next(iter(by_size + by_shape), max(choices[0], 1))
    if cells == rows and has_class:
        # With registers the class token's row is zero. Alone, the class token is a token without a position.
        return cells, first if registers else 0, registers or first
    return cells, rows - cells, registers if cells == rows else 0


def _read_grid(
    shapes: Shapes, config: Config, unit: tuple[int, int], cells: int, picture_px: tuple[int, int] | None
) -> tuple[int, int]:
    """A size that was given and fits says how the cells lie; else they lie in a square, as all published ones do."""
    table = next((name for name in shapes.tensors if name.endswith("relative_position_bias_table")), None)
    offsets = max(shapes(table, 2)[0] - 3, 1) if table else 0
    sizes = [size for size in (picture_px, config.picture_px()) if size is not None]
    for size in sizes:
        h, w = size[0] // unit[0], size[1] // unit[1]
        if cells in (0, h * w) and offsets in (0, (2 * h - 1) * (2 * w - 1)):
            return h, w
    side = (math.isqrt(offsets) + 1) // 2 if offsets else math.isqrt(cells)
    if not cells and not offsets:
        return 224 // unit[0], 224 // unit[1]
    if (cells and side * side != cells) or (offsets and (2 * side - 1) ** 2 != offsets):
        raise UserError(
            f"{shapes.where}: its positions do not form a square; give the picture size (height, width) that they are "
            "for"
        )
    return side, side


def _read_stem(shapes: Shapes) -> ResNetStem | None:
    at = "patch_embed.backbone."
    if f"{at}conv.weight" in shapes:
        return ResNetStem(depths=(), base_width=shapes(f"{at}conv.weight", 4)[0], **CONVOLUTIONS)
    if f"{at}stem.conv.weight" not in shapes:
        return None
    width = shapes(f"{at}stem.conv.weight", 4)[0]
    depths = _read_depths(shapes, re.escape(at))
    return ResNetStem(depths=depths, base_width=width, **CONVOLUTIONS)


def _read_depths(shapes: Shapes, at: str = "") -> tuple[int, ...]:
    num = shapes.numbered(rf"{at}stages\.(\d+)\.")
    return tuple(shapes.numbered(rf"{at}stages\.{stage}\.blocks\.(\d+)\.") for stage in range(num))


def _read_resnet(shapes: Shapes, config: Config, picture_px: tuple[int, int] | None) -> ResNetSettings:
    width, channels, *_ = shapes("stem.conv.weight", 4)
    return ResNetSettings(
        picture_px=picture_px or config.picture_px() or (224, 224),
        channels=channels,
        depths=_read_depths(shapes),
        base_width=width,
        **CONVOLUTIONS,
    )


# ---- The names


def timm_rules(card: Card) -> list[Rule]:
    if isinstance(card.model, ResNetSettings):
        return _resnet_rules(card, card.model)
    if not isinstance(card.model, ViTSettings):
        raise UserError(f"timm cannot store {describe(card)}")
    if card.classifier is not None and card.classifier.head not in ("linear", "distilled"):
        raise UserError(f"timm cannot store a {card.classifier.head} head")
    model = card.model
    rules = [patch_rule("patch_embed.proj.weight", model)]
    if model.ends.patch_bias:
        rules.append(same("encoder.stem.patches.linear.bias", "patch_embed.proj.bias"))
    if isinstance(model.stem, ResNetStem):
        at = "patch_embed.backbone."
        root = f"{at}stem" if model.stem.depths else "patch_embed.backbone"
        rules += [same("encoder.stem.trunk.levels.0.0.conv.weight", f"{root}.conv.weight")]
        rules += layer("encoder.stem.trunk.levels.0.0.norm", f"{root}.norm")
        rules += _unit_rules("encoder.stem.trunk", at, model.stem.depths, project_norm=True)
    rules += _token_rules(card, model)
    if model.positions == "bias-shared":
        rules.append(same("encoder.positions.bias_table.table", "rel_pos_bias.relative_position_bias_table"))
    rules += layer("encoder.pre_norm", "norm_pre") if model.ends.pre_norm else []
    for number in range(model.depth):
        rules += _block_rules(number, model)
    rules += layer("encoder.norm", "norm" if model.ends.pool_norm == "before" else "fc_norm")
    if card.classifier is not None and card.classifier.head == "distilled":
        return rules + layer("head.classes", "head") + layer("head.distillation", "head_dist")
    return rules + (layer("head", "head") if card.classifier is not None else [])


def patch_rule(theirs: str, model: ViTSettings) -> Rule:
    """A convolution's kernel (D, C, ph, pw), and ours as one matrix (D, C * ph * pw)."""
    ph, pw = (model.patch, model.patch) if isinstance(model.patch, int) else model.patch
    return Rule(
        ("encoder.stem.patches.linear.weight",),
        (theirs,),
        lambda kernel: (kernel.flatten(1),),
        lambda matrix: (matrix.reshape(len(matrix), -1, ph, pw),),
    )


def _has_class(model: ViTSettings) -> bool:
    return model.num_prefix > 0 or model.pool == "class"


def _token_parts(card: Card, model: ViTSettings) -> dict[str, int]:
    """Their names for our prefix tokens, in order, and how many each holds."""
    total = model.num_prefix + model.num_registers
    if not _has_class(model):
        return {"reg_token": total} if total else {}
    parts = {"cls_token": 1, **({"dist_token": 1} if is_distilled(card, model) else {})}
    rest = total - len(parts)
    return parts | ({"reg_token": rest} if rest else {})


def _token_rules(card: Card, model: ViTSettings) -> list[Rule]:
    parts = _token_parts(card, model)
    counts = list(parts.values())

    def read(*tokens: Tensor) -> tuple[Tensor, ...]:
        return (torch.cat([some[0] for some in tokens]),)

    def write(tokens: Tensor) -> tuple[Tensor, ...]:
        return tuple(some[None] for some in tokens.split(counts))  # type: ignore[no-untyped-call]

    rules = [Rule((TOKENS,), tuple(parts), read, write)] if parts else []
    if model.positions in ("none", "bias", "bias-shared"):
        return rules
    if not (model.num_prefix and model.num_registers):
        return [*rules, Rule((TABLE,), ("pos_embed",), lambda table: (table[0],), lambda table: (table[None],))]

    # Their table has no row for the class token where there are registers: its position is part of the token.
    num = model.num_prefix

    def read_folded(*theirs: Tensor) -> tuple[Tensor, ...]:
        *tokens, cells = theirs
        return *read(*tokens), torch.cat([torch.zeros_like(cells[0, :num]), cells[0]])

    def write_folded(tokens: Tensor, table: Tensor) -> tuple[Tensor, ...]:
        placed = torch.where(table[:num] == 0, tokens[:num], tokens[:num] + table[:num])  # a zero changes no bit
        return *write(torch.cat([placed, tokens[num:]])), table[None, num:]

    return [Rule((TOKENS, TABLE), (*parts, "pos_embed"), read_folded, write_folded)]


def _block_rules(number: int, model: ViTSettings) -> list[Rule]:
    ours, theirs = f"encoder.blocks.{number}", f"blocks.{number}"
    rules = layer(f"{ours}.attention_norm", f"{theirs}.norm1")
    rules += layer(f"{ours}.attention.project_in", f"{theirs}.attn.qkv", bias=model.block.attention_bias == "all")
    if model.block.attention_bias == "no-key":
        rules.append(same(f"{ours}.attention.query_bias", f"{theirs}.attn.q_bias"))
        rules.append(same(f"{ours}.attention.value_bias", f"{theirs}.attn.v_bias"))
    if model.positions == "bias":
        rules.append(same(f"{ours}.attention.bias_table.table", f"{theirs}.attn.relative_position_bias_table"))
    rules += layer(f"{ours}.attention.project_out", f"{theirs}.attn.proj")
    rules += layer(f"{ours}.mlp_norm", f"{theirs}.norm2")
    rules += layer(f"{ours}.mlp.expand", f"{theirs}.mlp.fc1")
    rules += layer(f"{ours}.mlp.contract", f"{theirs}.mlp.fc2")
    if model.block.layer_scale is not None:
        first, second = ("gamma_1", "gamma_2") if is_beit(model) else ("ls1.gamma", "ls2.gamma")
        rules.append(same(f"{ours}.attention_scale.factor", f"{theirs}.{first}"))
        rules.append(same(f"{ours}.mlp_scale.factor", f"{theirs}.{second}"))
    return rules


def _unit_rules(trunk: str, at: str, depths: tuple[int, ...], project_norm: bool) -> list[Rule]:
    rules: list[Rule] = []
    for stage, depth in enumerate(depths):
        for unit in range(depth):
            ours, theirs = f"{trunk}.levels.{stage + 1}.{unit}", f"{at}stages.{stage}.blocks.{unit}"
            for part in (1, 2, 3):
                rules.append(same(f"{ours}.conv{part}.weight", f"{theirs}.conv{part}.weight"))
                rules += layer(f"{ours}.norm{part}", f"{theirs}.norm{part}")
            if unit == 0:
                rules.append(same(f"{ours}.project.weight", f"{theirs}.downsample.conv.weight"))
                rules += layer(f"{ours}.project_norm", f"{theirs}.downsample.norm") if project_norm else []
    return rules


def _resnet_rules(card: Card, model: ResNetSettings) -> list[Rule]:
    if card.classifier is not None and card.classifier.head != "linear":
        raise UserError(f"timm's BiT has a linear head only, not {card.classifier.head}")
    rules = [same("encoder.trunk.levels.0.0.conv.weight", "stem.conv.weight")]
    rules += _unit_rules("encoder.trunk", "", model.depths, project_norm=False)
    rules += layer("encoder.norm", "norm")
    if card.classifier is not None:  # their head is a convolution of 1 x 1
        as_matrix, as_kernel = lambda kernel: (kernel.flatten(1),), lambda matrix: (matrix[..., None, None],)
        rules += [Rule(("head.weight",), ("head.fc.weight",), as_matrix, as_kernel), same("head.bias", "head.fc.bias")]
    return rules


FORMATS = (Timm(),)
