"""torchvision's VisionTransformer, vit_b_16 to vit_h_14.

Its files are state dicts and nothing else. The number of heads is that of the published model of the same width and
depth, unless a config.json says otherwise, which is ours: it holds the constructor's arguments, and in what earlier
versions wrote the norms' epsilon. The published files spell a block's MLP linear_1 and linear_2, and what today's code
saves, 0 and 3.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.tasks import ClassifySettings
from vitreous.weights.card import Card, nameless
from vitreous.weights.describe import describe
from vitreous.weights.formats import Format, Given
from vitreous.weights.processors import IMAGENET_MEAN, IMAGENET_STD
from vitreous.weights.published import Shapes, published_heads
from vitreous.weights.rules import Rule, layer, same
from vitreous.weights.timm import TABLE, TOKENS, patch_rule

PREPROCESSING = Preprocessing(
    interpolation="bilinear", skip_fitting=False, resizer="pillow", mean=IMAGENET_MEAN, std=IMAGENET_STD
)


@dataclass(frozen=True)
class Torchvision(Format):
    name: str
    title: str
    mlp: tuple[str, str]  # names of the dense layers of a block's MLP
    container: Literal["safetensors"] = "safetensors"

    def fits(self, given: Given) -> bool:
        first = f"encoder.layers.encoder_layer_0.mlp.{self.mlp[0]}.weight"
        return "conv_proj.weight" in given.tensors and first in given.tensors

    def card(self, given: Given, picture_px: tuple[int, int] | None = None) -> Card:
        shapes = Shapes(given)
        config = given.documents.get("config.json")
        config = config if isinstance(config, Mapping) else {}
        width, channels, patch, _ = shapes("conv_proj.weight", 4)
        cells = shapes("encoder.pos_embedding", 3)[1] - 1
        side = math.isqrt(max(cells, 0))
        if shapes("class_token", 3)[1] != 1 or side * side != cells or not cells:
            raise UserError(f"{given.where}: {cells} positions, where torchvision's pictures are square")
        depth = shapes.numbered(r"encoder\.layers\.encoder_layer_(\d+)\.")
        hidden = shapes(f"encoder.layers.encoder_layer_0.mlp.{self.mlp[0]}.weight", 2)[0]
        model = ViTSettings.of(
            picture_px=(side * patch, side * patch),
            channels=channels,
            patch=patch,
            width=width,
            depth=depth,
            heads=given.heads or int(config.get("num_heads") or published_heads(width, depth, given.where)),
            mlp_width=hidden,
            norm_epsilon=float(config.get("norm_epsilon", 1e-6)),
        )
        has_head = "heads.head.weight" in shapes
        num_classes = shapes("heads.head.weight", 2)[0] if has_head else 0
        head: Literal["tanh", "linear"] = "tanh" if "heads.pre_logits.weight" in shapes else "linear"
        return Card(
            model=model,
            task=ClassifySettings(head=head) if has_head else None,
            classes=tuple(str(number) for number in range(num_classes)),
            preprocessing=replace(PREPROCESSING, size_px=model.picture_px),
        )

    def assumed(self, given: Given, card: Card) -> list[str]:
        size = card.preprocessing.size_px[0]
        return [f"its files do not record the preprocessing: the centre {size} px of {size * 8 // 7}, ImageNet's mean"]

    def run_as(self, card: Card) -> Card:
        model = card.model
        if isinstance(model, ViTSettings):
            model = model.changed(gelu="erf", norm_epsilon=1e-6)
        preprocessing = replace(PREPROCESSING, size_px=card.preprocessing.size_px)
        return replace(nameless(card), model=model, preprocessing=preprocessing)

    def rules(self, card: Card) -> list[Rule]:
        model = self._checked(card)
        rules = [
            patch_rule("conv_proj.weight", model),
            same("encoder.stem.patches.linear.bias", "conv_proj.bias"),
            Rule((TOKENS,), ("class_token",), lambda tokens: (tokens[0],), lambda tokens: (tokens[None],)),
            Rule((TABLE,), ("encoder.pos_embedding",), lambda table: (table[0],), lambda table: (table[None],)),
        ]
        for number in range(model.depth):
            ours, theirs = f"encoder.blocks.{number}", f"encoder.layers.encoder_layer_{number}"
            rules += layer(f"{ours}.attention_norm", f"{theirs}.ln_1")
            rules += [
                same(f"{ours}.attention.project_in.{kind}", f"{theirs}.self_attention.in_proj_{kind}")
                for kind in ("weight", "bias")
            ]
            rules += layer(f"{ours}.attention.project_out", f"{theirs}.self_attention.out_proj")
            rules += layer(f"{ours}.mlp_norm", f"{theirs}.ln_2")
            rules += layer(f"{ours}.mlp.expand", f"{theirs}.mlp.{self.mlp[0]}")
            rules += layer(f"{ours}.mlp.contract", f"{theirs}.mlp.{self.mlp[1]}")
        rules += layer("encoder.norm", "encoder.ln")
        if card.classifier is None:
            return rules
        if card.classifier.head == "tanh":
            return rules + layer("head.hidden", "heads.pre_logits") + layer("head.output", "heads.head")
        if card.classifier.head != "linear":
            raise UserError(f"torchvision's VisionTransformer cannot store a {card.classifier.head} head")
        return rules + layer("head", "heads.head")

    def _checked(self, card: Card) -> ViTSettings:
        """Whatever makes another model of the same tensors has no place in these files."""
        model = card.model
        if not isinstance(model, ViTSettings) or model.stem is not None:
            raise UserError(f"torchvision's VisionTransformer cannot store {describe(card)}")
        h, w = model.picture_px
        fixed = {"channels": 3, "pool": "class", "pool_norm": "before", "num_prefix": 1, "num_registers": 0}
        fixed |= {"gelu": "erf", "positions_where": "stem", "pre_norm": False, "mlp": "gelu"}
        for field, value in fixed.items():
            if model.value(field) != value:
                raise UserError(f"torchvision's VisionTransformer has {field} {value}, not {model.value(field)}")
        if h != w or not isinstance(model.patch, int):
            raise UserError(f"torchvision's VisionTransformer has square pictures and patches, not {h} x {w}")
        return model

    def documents(self, card: Card) -> dict[str, Any]:
        model = self._checked(card)
        config: dict[str, Any] = {
            "image_size": model.picture_px[0],
            "patch_size": model.patch,
            "num_layers": model.depth,
            "num_heads": model.heads,
            "hidden_dim": model.width,
            "mlp_dim": model.block.mlp_width or 4 * model.width,
            "num_classes": len(card.classes),
        }
        if card.classifier is not None and card.classifier.head == "tanh":
            config["representation_size"] = model.width
        return {"config.json": config}


FORMATS = (
    Torchvision("torchvision", "torchvision: vit_b_16 to vit_h_14", ("0", "3")),
    Torchvision("torchvision-legacy", "torchvision: the published spelling of the MLP", ("linear_1", "linear_2")),
)
