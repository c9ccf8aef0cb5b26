"""transformers' folders: ViT, DeiT, ViT-MAE, ViT-MSN, DINOv2 with and without registers, BEiT.

Files are written with the names that every version writes (`encoder.layer.0.attention.attention.query`). Version 5 has
others in memory (`layers.0.attention.q_proj`); these are read too. The config beside the tensors tells what shapes
cannot: heads, epsilon, the kind of GELU, the labels.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from vitreous.data.placement import Fit
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.tasks import ClassifySettings
from vitreous.tasks.classify import HeadKind
from vitreous.weights import processors
from vitreous.weights.card import Card
from vitreous.weights.formats import Format, Given
from vitreous.weights.rules import Rule, aside, joined, layer, reshaped, same
from vitreous.weights.transformers_config import (
    BEIT_DEFAULTS,
    CONFIG,
    DEFAULTS,
    DINO_DEFAULTS,
    Config,
    config_in,
    different_field,
    is_dino,
    labels,
    pair,
    read_model,
    write_model,
)


@dataclass(frozen=True)
class Names:
    """Of the parts of a block, after the block's own name; and of the blocks."""

    blocks: str = "encoder.layer."
    query: str = "attention.attention.query"
    key: str = "attention.attention.key"
    value: str = "attention.attention.value"
    out: str = "attention.output.dense"
    norms: tuple[str, str] = ("layernorm_before", "layernorm_after")
    expand: str = "intermediate.dense"
    contract: str = "output.dense"
    scales: tuple[str, str] = ("lambda_1", "lambda_2")
    gated: tuple[str, ...] = ("mlp.weights_in",)  # the gate and what it opens, in one or apart
    gated_out: str = "mlp.weights_out"
    bias: str = "attention.attention.relative_position_bias.relative_position_bias_table"
    shared_bias: str = "encoder.relative_position_bias.relative_position_bias_table"


WRITTEN = Names()
IN_MEMORY = Names(
    blocks="layers.",
    query="attention.q_proj",
    key="attention.k_proj",
    value="attention.v_proj",
    out="attention.o_proj",
    expand="mlp.fc1",
    contract="mlp.fc2",
    bias="relative_position_bias.relative_position_bias_table",
    shared_bias="shared_position_bias.relative_position_bias_table",
)
DINO = {
    "norms": ("norm1", "norm2"),
    "expand": "mlp.fc1",
    "contract": "mlp.fc2",
    "scales": ("layer_scale1.lambda1", "layer_scale2.lambda1"),
}
WRITTEN_DINO = Names(**DINO)  # type: ignore[arg-type]
IN_MEMORY_DINO = Names(
    query="attention.q_proj",
    key="attention.k_proj",
    value="attention.v_proj",
    out="attention.o_proj",
    gated=("mlp.gate_proj", "mlp.up_proj"),
    gated_out="mlp.down_proj",
    **DINO,  # type: ignore[arg-type]
)


@dataclass(frozen=True)
class Spelling:
    names: Names
    start: str  # what stands before the encoder's parts
    blocks: str  # and before the number of a block
    masked: bool | None  # whether there is a mask token; None: not known


# What serves pre-training alone, and an index that older versions saved and that follows from the grid.
PRETRAINING = r"decoder\.|lm_head\.|.*\.relative_position_index$"


@dataclass(frozen=True)
class Transformers(Format):
    """One family of transformers' models: a Format."""

    name: str
    title: str
    stem: str  # of their classes' names
    model_type: str
    preprocessing: Preprocessing  # of the published models, where a folder says nothing of it
    heads: dict[HeadKind, str]  # the ends of their classes' names, by our kind of head
    prefix: str  # of the encoder's tensors in a model with a head
    defaults: dict[str, Any] = field(default_factory=dict)  # of the config, where they are not ViT's
    container: Literal["safetensors", "npz"] = "safetensors"
    spelling: "Spelling | None" = None  # as found in a file; none: as it is written

    # ---- reading

    def fits(self, given: Given) -> bool:
        if not any(name.endswith("embeddings.patch_embeddings.projection.weight") for name in given.tensors):
            return False
        config = given.documents.get(CONFIG)
        # Without a config the names tell transformers, though not the family: `card` says what is missing.
        return config.get("model_type") == self.model_type if isinstance(config, dict) else self.model_type == "vit"

    def card(self, given: Given, picture_px: tuple[int, int] | None = None) -> Card:
        document = config_in(given.documents, given.where)
        config = Config(document, DEFAULTS | self.defaults, f"{given.where}: {CONFIG}")
        model = read_model(self.model_type, config)
        if self.model_type == "beit" and "lm_head.weight" in given.tensors:  # pre-training has its norm on all tokens
            model = model.changed(pool_norm="before")
        self._check(given, model)
        task, classes = self._task(given, config)
        preprocessing = processors.preprocessing_in(given.documents, given.where)
        if preprocessing is None:
            preprocessing = resized(self.preprocessing, model.picture_px)
        return Card(model=model, task=task, classes=classes, preprocessing=preprocessing)

    def _check(self, given: Given, model: ViTSettings) -> None:
        """What the shapes say against what the config says, before anything fails of it."""
        name = next(name for name in given.tensors if name.endswith("embeddings.patch_embeddings.projection.weight"))
        expected = (model.width, model.channels, *pair(model.patch))
        if tuple(given.tensors[name].shape) != expected:
            raise UserError(
                f"{given.where}: {name} has the shape {tuple(given.tensors[name].shape)}, where {CONFIG} (hidden_size, "
                f"num_channels, patch_size) says {expected}"
            )

    def _task(self, given: Given, config: Config) -> tuple[ClassifySettings | None, tuple[str, ...]]:
        distilled = "cls_classifier.weight" in given.tensors
        weight = given.tensors.get("cls_classifier.weight" if distilled else "classifier.weight")
        if weight is None or not self.heads:
            return None, ()
        loss: Literal["softmax", "sigmoid"] = "softmax"
        if config.get("problem_type") == "multi_label_classification":
            loss = "sigmoid"
        head: HeadKind = "distilled" if distilled else next(iter(self.heads))
        return ClassifySettings(loss=loss, head=head), config.labels(len(weight))

    # ---- both ways

    def found_in(self, given: Given) -> "Transformers":
        """The same format with the names that were found, where they are not those that are written."""
        written, in_memory = (WRITTEN_DINO, IN_MEMORY_DINO) if is_dino(self.model_type) else (WRITTEN, IN_MEMORY)
        start = f"{self.prefix}." if any(name.startswith(f"{self.prefix}.") for name in given.tensors) else ""
        masked = any(name.endswith("embeddings.mask_token") for name in given.tensors)
        # ViT-MSN's classifier is saved with blocks that lack the prefix of all else.
        for names in (written, in_memory):
            for blocks in dict.fromkeys((start + names.blocks, names.blocks)):
                if f"{blocks}0.{names.query}.weight" in given.tensors:
                    return replace(self, spelling=Spelling(names, start, blocks, masked))
        return self

    def _spelling(self, card: Card) -> "Spelling":
        if self.spelling is not None:
            return self.spelling
        names, start = (
            WRITTEN_DINO if is_dino(self.model_type) else WRITTEN,
            f"{self.prefix}." if card.classifier else "",
        )
        return Spelling(names, start, start + names.blocks, None)

    def rules(self, card: Card) -> list[Rule]:
        model, spelling = vit(card, self.name), self._spelling(card)
        start, embeddings = spelling.start, f"{spelling.start}embeddings"
        rules = [
            *patches(model, f"{embeddings}.patch_embeddings.projection"),
            self._prefix(model, embeddings),
            carried(f"{embeddings}.mask_token", "embeddings.mask_token"),
            *self._positions(model, embeddings, spelling.names, start),
        ]
        for i in range(model.depth):
            rules += self._block(model, spelling.names, f"encoder.blocks.{i}.", f"{spelling.blocks}{i}.")
        return [*rules, *self._norm(model, start), *self._head(card), aside(PRETRAINING)]

    def _prefix(self, model: ViTSettings, embeddings: str) -> Rule:
        """Class and distillation tokens and registers, one below the other in ours."""
        theirs = [f"{embeddings}.cls_token"]
        theirs += [f"{embeddings}.distillation_token"] if model.num_prefix > 1 else []
        theirs += [f"{embeddings}.register_tokens"] if model.num_registers else []
        counts = [1] * model.num_prefix + [model.num_registers] * bool(model.num_registers)
        return Rule(
            ("encoder.prefix.tokens",),
            tuple(theirs),
            lambda *tokens: (torch.cat([each[0] for each in tokens]),),
            lambda tokens: tuple(each[None] for each in tokens.split(counts)),
        )

    def _positions(self, model: ViTSettings, embeddings: str, names: Names, start: str) -> list[Rule]:
        if model.positions in ("learned", "sincos"):
            return [positions(model, f"{embeddings}.position_embeddings")]
        shared: bool = model.positions == "bias-shared"
        return [same("encoder.positions.bias_table.table", start + names.shared_bias)] if shared else []

    def _block(self, model: ViTSettings, names: Names, ours: str, theirs: str) -> list[Rule]:
        attention = f"{ours}attention."
        three = [theirs + each for each in (names.query, names.key, names.value)]
        rules = [joined(f"{attention}project_in.weight", [f"{each}.weight" for each in three])]
        if model.block.attention_bias == "all":
            rules += [joined(f"{attention}project_in.bias", [f"{each}.bias" for each in three])]
        elif model.block.attention_bias != "none":
            rules += [same(f"{attention}query_bias", f"{three[0]}.bias")]
            rules += [same(f"{attention}value_bias", f"{three[2]}.bias")]
        if model.positions == "bias":
            rules += [same(f"{attention}bias_table.table", theirs + names.bias)]
        rules += layer(f"{attention}project_out", theirs + names.out)
        rules += layer(f"{ours}attention_norm", theirs + names.norms[0])
        rules += layer(f"{ours}mlp_norm", theirs + names.norms[1])
        if model.block.layer_scale is not None:
            rules += [same(f"{ours}attention_scale.factor", theirs + names.scales[0])]
            rules += [same(f"{ours}mlp_scale.factor", theirs + names.scales[1])]
        if model.block.mlp == "swiglu":
            for kind in ("weight", "bias"):
                rules += [joined(f"{ours}mlp.expand.{kind}", [f"{theirs}{each}.{kind}" for each in names.gated])]
            return [*rules, *layer(f"{ours}mlp.contract", theirs + names.gated_out)]
        rules += layer(f"{ours}mlp.expand", theirs + names.expand)
        return [*rules, *layer(f"{ours}mlp.contract", theirs + names.contract)]

    def _norm(self, model: ViTSettings, start: str) -> list[Rule]:
        if self.model_type == "beit" and model.pool == "mean":
            return layer("encoder.norm", f"{start}pooler.layernorm" if model.ends.pool_norm == "after" else "layernorm")
        pooler = [carried(f"{start}pooler.dense.{kind}", f"pooler.dense.{kind}") for kind in ("weight", "bias")]
        return [*layer("encoder.norm", f"{start}layernorm"), *pooler]

    def _head(self, card: Card) -> list[Rule]:
        if card.classifier is None:
            return []
        if card.classifier.head == "distilled":
            return [
                *layer("head.classes", "cls_classifier"),
                *layer("head.distillation", "distillation_classifier"),
            ]
        return layer("head", "classifier")

    # ---- writing

    def run_as(self, card: Card) -> Card:
        self.documents(card)  # refuses, by its field, a model that no config can describe
        return replace(card, preprocessing=processors.as_written(card.preprocessing))

    def documents(self, card: Card) -> dict[str, Any]:
        model, masked = vit(card, self.name), self._spelling(card).masked
        if self.model_type == "dinov2_with_registers" and not model.num_registers:
            raise UserError(f"{self.name} has register tokens, and this model has none; write transformers-dinov2")
        config = {"architectures": [self.architecture(card)], **write_model(self.model_type, model, masked)}
        again = read_model(self.model_type, Config(config, DEFAULTS | self.defaults, CONFIG))
        refuse_others(self.name, model, again)
        document = {**config, **labels(card)}
        return {CONFIG: document, processors.FILE: processors.write_preprocessing(card.preprocessing)}

    @property
    def architectures(self) -> tuple[str, ...]:
        """Their classes that hold what ours do."""
        return tuple(self.stem + end for end in ("Model", *self.heads.values()))

    def architecture(self, card: Card) -> str:
        if card.classifier is None:
            return f"{self.stem}Model"
        if card.classifier.head not in self.heads:
            raise UserError(f"{self.name} cannot store a {card.classifier.head} head; write another format")
        return self.stem + self.heads[card.classifier.head]


# ---- Parts that CLIP's towers share


def vit(card: Card, name: str) -> ViTSettings:
    if not isinstance(card.model, ViTSettings) or card.model.stem is not None:
        raise UserError(f"{name} holds a plain ViT; this model is not one")
    return card.model


def patches(model: ViTSettings, theirs: str) -> list[Rule]:
    """A convolution's kernel (D, C, p, p), which is one matrix (D, C*p*p) in ours, and its bias."""
    height, width = pair(model.patch)
    flat = (model.width, model.channels * height * width)
    kernel = reshaped(
        "encoder.stem.patches.linear.weight", f"{theirs}.weight", flat, (model.width, model.channels, height, width)
    )
    bias = same("encoder.stem.patches.linear.bias", f"{theirs}.bias")
    return [kernel, bias] if model.ends.patch_bias else [kernel]


def positions(model: ViTSettings, theirs: str, batched: bool = True) -> Rule:
    """A table (P + h*w, D), with or without a batch of one before it."""
    (height, width), (ph, pw) = model.picture_px, pair(model.patch)
    table = (model.num_prefix + (height // ph) * (width // pw), model.width)
    return reshaped("encoder.positions.tables.0.table", theirs, table, (1, *table) if batched else table)


def carried(theirs: str, name: str) -> Rule:
    """What our model has no use for, kept to be written back; under a name without the prefix of theirs."""

    def as_it_is(tensor: Tensor) -> tuple[Tensor, ...]:
        return (tensor,)

    return Rule((f"extra.{name}",), (theirs,), as_it_is, as_it_is, optional=True)


def refuse_others(name: str, model: ViTSettings, again: ViTSettings) -> None:
    """An error where what was written would be read as another model."""
    differing = different_field(model, again)
    if differing is not None:
        raise UserError(
            f"{name} cannot store a model whose {differing} is {model.value(differing)!r} (only "
            f"{again.value(differing)!r})"
        )


def resized(preprocessing: Preprocessing, size_px: tuple[int, int]) -> Preprocessing:
    crop: Fit = preprocessing.crop if size_px[0] == size_px[1] else "squash"
    return replace(preprocessing, size_px=size_px, crop=crop)


# ---- The families

PLAIN = Preprocessing(crop="squash", crop_fraction=1.0, interpolation="bilinear", odd_margin="down", skip_fitting=False)
IMAGENET = replace(
    PLAIN,
    crop="centre",
    crop_fraction=0.875,
    interpolation="bicubic",
    mean=processors.IMAGENET_MEAN,
    std=processors.IMAGENET_STD,
)


def _family(name: str, stem: str, model_type: str, heads: dict[HeadKind, str], **more: Any) -> Transformers:
    title = f"transformers' {stem}{more.pop('about', '')}: a folder with {CONFIG}"
    more = {"prefix": model_type, "preprocessing": IMAGENET, **more}
    return Transformers(name=f"transformers-{name}", title=title, stem=stem, model_type=model_type, heads=heads, **more)


CLASSES = "ForImageClassification"
LINEAR: dict[HeadKind, str] = {"linear": CLASSES}
BOTH: dict[HeadKind, str] = {"class-and-mean": CLASSES}
TWO: dict[HeadKind, str] = {"linear": CLASSES, "distilled": f"{CLASSES}WithTeacher"}
REGISTERS = {**DINO_DEFAULTS, "patch_size": 16, "num_register_tokens": 4}
FORMATS = (
    _family("vit", "ViT", "vit", LINEAR, preprocessing=PLAIN),
    _family("deit", "DeiT", "deit", TWO, about=" with its distillation token, one head or two"),
    _family("mae", "ViTMAE", "vit_mae", {}, about=", the encoder", prefix="vit"),
    _family("msn", "ViTMSN", "vit_msn", LINEAR, prefix="vit", defaults={"layer_norm_eps": 1e-6}),
    _family("dinov2", "Dinov2", "dinov2", BOTH, defaults=DINO_DEFAULTS),
    _family("dinov2-registers", "Dinov2WithRegisters", "dinov2_with_registers", BOTH, defaults=REGISTERS),
    _family("beit", "Beit", "beit", LINEAR, preprocessing=PLAIN, defaults=BEIT_DEFAULTS),
)
