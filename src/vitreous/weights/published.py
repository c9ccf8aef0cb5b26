"""What weights alone do not tell (heads, GELU, preprocessing), by the models that timm and torchvision published.

Where all published models of a shape agree, the shape tells it. Where they do not, a file without its config is
refused, with the way out: a model that is silently another one is worse than none.
"""

import re

from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.nn.blocks import Gelu
from vitreous.weights.card import Card
from vitreous.weights.formats import Given
from vitreous.weights.timm_config import Config

HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}  # by width: so400m, huge, giant, gigantic; in all others a head is:
HEAD_WIDTH = 64
DEPTHS = {  # of the published models, by width
    **{192: (12,), 256: (10, 14), 320: (14,), 384: (12, 36), 512: (12, 20), 640: (12,), 768: (12,), 832: (21,)},
    **{896: (12, 18), 1024: (24,), 1152: (27,), 1280: (32,), 1408: (40,), 1536: (40,), 1664: (48,)},
}
# SigLIP's towers, pooled by the mean: the later ones have the tanh GELU, and one has the shape of another model.
TANH_TOWERS = {(768, 32): (64,), (1024, 16): (1024,), (1152, 16): (256, 576, 1024), (1536, 16): (256, 576)}
TWO_TOWERS = (768, 16, 196)  # width, patch, cells: vit_base_patch16_siglip_gap_224 and vit_base_patch16_gap_224
WAY_OUT = (
    "load it from timm:NAME; or put it into a folder as model.safetensors with a config.json beside it that has its "
    'timm name as "architecture"'
)


class Shapes:
    """The shapes of a file's tensors, with one clear error where one is absent or of another kind."""

    def __init__(self, given: Given) -> None:
        self.tensors, self.where = given.tensors, given.where

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __call__(self, name: str, axes: int) -> tuple[int, ...]:
        if name not in self.tensors:
            raise UserError(f"{self.where}: {name} is missing")
        shape = tuple(self.tensors[name].shape)
        if len(shape) != axes or not all(shape):
            raise UserError(f"{self.where}: {name} has the shape {shape}, where {axes} axes are expected")
        return shape

    def numbered(self, pattern: str) -> int:
        """How many numbers occur where the pattern has its group."""
        return len({match[1] for name in self.tensors if (match := re.match(pattern, name))})


def read_heads(shapes: Shapes, config: Config, width: int, depth: int | None, patch_cells: tuple[int, int]) -> int:
    for name in ("blocks.0.attn.relative_position_bias_table", "rel_pos_bias.relative_position_bias_table"):
        if name in shapes:
            return shapes(name, 2)[1]
    told = config.heads()
    if told is not None:
        return told
    if not config.architecture and _is_tower(shapes):
        if (width, *patch_cells) == TWO_TOWERS:
            raise UserError(
                f"{shapes.where}: vit_base_patch16_siglip_gap_224 with 12 heads or vit_base_patch16_gap_224 with 16, "
                f"which its weights do not show; {WAY_OUT}"
            )
        if width == 1536:
            return 16
    return published_heads(width, None if config.architecture else depth, shapes.where)


def published_heads(width: int, depth: int | None, where: str) -> int:
    """Of the published models of this width and depth; a depth of None: the width decides."""
    known = width in DEPTHS or (width % HEAD_WIDTH == 0) if depth is None else depth in DEPTHS.get(width, ())
    if not known:
        raise UserError(
            f"{where}: its weights do not show how many heads a model of width {width} and this depth has; say so by "
            '--heads N, by load(..., heads=N), or by "num_heads" in a config.json beside it (timm: in "model_args")'
        )
    return HEADS.get(width, width // HEAD_WIDTH)


def _is_tower(shapes: Shapes) -> bool:
    """Pooled by the mean of nothing but patches, with one norm for all: SigLIP's towers, and a few more."""
    return not {"cls_token", "reg_token", "fc_norm.weight"} & shapes.tensors.keys() and "pos_embed" in shapes


def read_gelu(shapes: Shapes, config: Config, width_patch: tuple[int, int], cells: int) -> Gelu:
    told = config.gelu()
    if told is not None:
        return told
    if "fc_norm.weight" in shapes and not {"cls_token", "reg_token"} & shapes.tensors.keys():
        raise UserError(
            f"{shapes.where}: vit_base_patch16_rpn_224, whose norms come last in a block, or one of its shape whose "
            f"norms come first, which its weights do not show; {WAY_OUT}"
        )
    if "norm_pre.weight" in shapes:
        raise UserError(
            f"{shapes.where}: CLIP's towers come with the exact GELU and with the quick one (vit_..._clip_... and "
            f"vit_..._clip_quickgelu_...), which their weights do not show; {WAY_OUT}"
        )
    return "tanh" if _is_tower(shapes) and cells in TANH_TOWERS.get(width_patch, ()) else "erf"


def refuse_rotary(shapes: Shapes, config: Config, is_gated: bool) -> None:
    """Rotary positions leave no trace in the weights, or stand beside a table that others have too."""
    tables = ("pos_embed", "rel_pos_bias.relative_position_bias_table", "blocks.0.attn.relative_position_bias_table")
    none = not any(table in shapes for table in tables) and config.arguments.get("pos_embed") != "none"
    if none or (is_gated and "blocks.0.attn.q_bias" in shapes):
        raise UserError(
            f"{shapes.where}: its positions are rotary (EVA-02, DINOv3), which no model of ours has; if it has none at "
            'all, say {"pos_embed": "none"} in the "model_args" of a config.json beside it'
        )


def assumptions(given: Given, card: Card) -> list[str]:
    config, model, p = Config(given), card.model, card.preprocessing
    lines = []
    if not config.whole and isinstance(model, ViTSettings):
        lines.append(
            f"no config.json: {model.heads} heads, the {model.block.gelu} GELU, an epsilon of "
            f"{model.block.norm_epsilon:g}, as in the published models of this shape"
        )
    if not config.pretrained:
        mean = ", ".join(f"{value:g}" for value in p.mean)
        lines.append(
            f"no config.json with a pretrained_cfg: pictures are resized by the {p.interpolation} way, the centre "
            f"{p.crop_fraction:g} is cut, the mean is {mean}, as timm has it for the family"
        )
    told = config.picture_px()
    tower = isinstance(model, ViTSettings) and (model.width, model.patch, model.picture_px) == (1152, 14, (378, 378))
    if told is None and tower:
        told = (384, 384)  # the shape of vit_so400m_patch14_siglip_gap_384, and of the one called 378
    if isinstance(model, ViTSettings) and told is not None and told != model.picture_px:
        height, width = model.picture_px
        lines.append(
            f"its patches cover {width} x {height} px: ours are made of that size, where timm's may be {told[1]} x "
            f"{told[0]}, of which it drops the rest"
        )
    return lines
