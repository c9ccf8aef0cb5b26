"""EoMT of transformers: a plain ViT whose class token and registers have no positions, with queries in its last
blocks."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import UserError
from vitreous.models import ModelSettings, ViTSettings
from vitreous.models.vit import as_plain_vit
from vitreous.tasks.mask_queries import MaskQuerySettings
from vitreous.weights.mask_queries import MaskQueryFormat
from vitreous.weights.published import Shapes
from vitreous.weights.rules import Rule, carried, joined, layer, reshaped, same
from vitreous.weights.transformers_config import GELUS, WRITTEN_GELUS, Config, plain

SHARES = "attn_mask_probs"


@dataclass(frozen=True, kw_only=True)
class EomtFormat(MaskQueryFormat):
    # ---- reading

    def read_model(self, shapes: Shapes, config: Config) -> ViTSettings:
        width, channels, *patch = shapes("embeddings.patch_embeddings.projection.weight", 4)
        registers = shapes.tensors["embeddings.register_tokens"].shape[1]  # there may be none
        gated = "layers.0.mlp.gate_proj.weight" in shapes
        hidden = shapes(f"layers.0.mlp.{'gate_proj' if gated else 'fc1'}.weight", 2)[0]
        return ViTSettings.of(
            picture_px=config.pair("image_size"),
            channels=channels,
            patch=plain((patch[0], patch[1])),
            width=width,
            depth=shapes.numbered(r"layers\.(\d+)\."),
            heads=config.integer("num_attention_heads"),
            num_prefix=0,
            num_registers=1 + registers,
            mlp="swiglu" if gated else "gelu",
            mlp_width=hidden,
            gelu=config.choice("hidden_act", GELUS),
            layer_scale=config.number("layerscale_value"),
            norm_epsilon=config.number("layer_norm_eps"),
            dropout=config.number("hidden_dropout_prob"),
            stochastic_depth=config.number("drop_path_rate"),
        )

    def built_for(self, model: ModelSettings) -> tuple[int, int]:
        return model.picture_px

    def read_task(self, shapes: Shapes, config: Config, heads: int | None) -> MaskQuerySettings:
        config.demand("hidden_act", "gelu")  # of the masks, too
        return MaskQuerySettings(
            decoder="eomt",
            blocks=shapes(SHARES, 1)[0],
            upscales=shapes.numbered(r"upscale_block\.block\.(\d+)\."),
        )

    # ---- both ways

    def model_rules(self, model: ModelSettings, task: MaskQuerySettings) -> list[Rule]:
        vit = self._known(model)
        patch = vit.cell_px
        kernel = (vit.width, vit.channels, *patch)
        embedded = "embeddings.patch_embeddings.projection"
        rules = [
            reshaped("encoder.stem.patches.linear.weight", f"{embedded}.weight", (vit.width, -1), kernel),
            same("encoder.stem.patches.linear.bias", f"{embedded}.bias"),
            _prefix(vit.num_registers),
            same("encoder.positions.tables.0.table", "embeddings.position_embeddings.weight"),
            *layer("encoder.norm", "layernorm"),
            same("head.queries", "query.weight"),
            *layer("head.classes", "class_predictor"),
            _annealed(task.blocks),
        ]
        for number in range(vit.depth):
            rules += _block(f"encoder.blocks.{number}.", f"layers.{number}.", vit.block.mlp == "swiglu")
        for number, name in enumerate(("fc1", "fc2", "fc3")):
            rules += layer(f"head.masks.{2 * number}", f"mask_head.{name}")
        for number in range(task.num_upscales(vit.cell_px)):
            ours, theirs = f"head.upscale.{number}.", f"upscale_block.block.{number}."
            rules += layer(f"{ours}enlarge", f"{theirs}conv1") + layer(f"{ours}norm", f"{theirs}layernorm2d")
            rules += layer(f"{ours}smooth", f"{theirs}conv2", bias=False)
        return rules

    def _known(self, model: ModelSettings) -> ViTSettings:
        """As their code builds it."""
        vit = as_plain_vit(model, f"{self.name} cannot store a {model.name}: its encoder is a plain ViT")
        usual = ViTSettings.of(picture_px=vit.picture_px)
        wanted = {"num_prefix": 0, "positions": "learned", "gelu": "erf", "attention_bias": "all", "pre_norm": False}
        wanted |= {"patch_bias": True, "projection": None, "positions_where": usual.ends.positions_where}
        odd = next((name for name, value in wanted.items() if vit.value(name) != value), None)
        if odd is not None:
            raise UserError(f"{self.name} has no model with {odd} {vit.value(odd)}")
        if vit.num_registers < 1 or vit.block.layer_scale is None:
            raise UserError(f"{self.name} has a class token without a position, and LayerScale: this model has not")
        height, width = vit.picture_px
        if height != width or not isinstance(vit.patch, int):
            raise UserError(f"{self.name} has square pictures and patches, not {width} x {height} px")
        return vit

    # ---- writing

    def arguments(self, model: ModelSettings, task: MaskQuerySettings) -> dict[str, Any]:
        vit = self._known(model)
        gated, hidden = vit.block.mlp == "swiglu", vit.block.mlp_width or 4 * vit.width
        return {
            "hidden_size": vit.width,
            "num_hidden_layers": vit.depth,
            "num_attention_heads": vit.heads,
            "mlp_ratio": round(hidden * 3 / 2 / vit.width if gated else hidden / vit.width),
            "use_swiglu_ffn": gated,
            "hidden_act": WRITTEN_GELUS[vit.block.gelu],
            "hidden_dropout_prob": vit.dropout,
            "drop_path_rate": vit.stochastic_depth,
            "layer_norm_eps": vit.block.norm_epsilon,
            "layerscale_value": vit.block.layer_scale,
            "image_size": vit.picture_px[0],
            "patch_size": vit.patch,
            "num_channels": vit.channels,
            "num_register_tokens": vit.num_registers - 1,
            "num_blocks": task.blocks,
            "num_upscale_blocks": task.num_upscales(vit.cell_px),
        }


def _block(ours: str, theirs: str, gated: bool) -> list[Rule]:
    rules = [
        joined(f"{ours}attention.project_in.{kind}", [f"{theirs}attention.{part}_proj.{kind}" for part in "qkv"])
        for kind in ("weight", "bias")
    ]
    rules += layer(f"{ours}attention.project_out", f"{theirs}attention.out_proj")
    for part, number in (("attention", 1), ("mlp", 2)):
        rules += layer(f"{ours}{part}_norm", f"{theirs}norm{number}")
        rules.append(same(f"{ours}{part}_scale.factor", f"{theirs}layer_scale{number}.lambda1"))
    if not gated:
        return rules + layer(f"{ours}mlp.expand", f"{theirs}mlp.fc1") + layer(f"{ours}mlp.contract", f"{theirs}mlp.fc2")
    for kind in ("weight", "bias"):
        both = [f"{theirs}mlp.{part}_proj.{kind}" for part in ("gate", "up")]
        rules.append(joined(f"{ours}mlp.expand.{kind}", both))
    return rules + layer(f"{ours}mlp.contract", f"{theirs}mlp.down_proj")


def _prefix(num: int) -> Rule:
    """The class token, then registers."""
    return Rule(
        ("encoder.prefix.tokens",),
        ("embeddings.cls_token", "embeddings.register_tokens"),
        lambda *tokens: (torch.cat([each[0] for each in tokens]),),
        lambda tokens: tuple(each[None] for each in torch.split(tokens, [1, num - 1])),
    )


def _annealed(blocks: int) -> Rule:
    """Of each block, the share of queries that are kept to their masks: none, in what has learned."""

    def check(shares: Tensor) -> tuple[Tensor, ...]:
        if not shares.is_meta and shares.any():
            raise UserError(f"{SHARES} is not 0: its queries are kept to their masks still; train it to the end")
        return (shares,)

    made = carried(SHARES, lambda: torch.zeros(blocks))
    return replace(made, read=check)


FORMATS = (
    EomtFormat(
        name="transformers-eomt",
        title="EoMT of transformers",
        peer="EomtForUniversalSegmentation",
        decoder="eomt",
        telling=("query.weight", SHARES, "embeddings.position_embeddings.weight"),
        usual_px=(640, 640),
    ),
)
