"""PVTs, as timm (v2) and transformers (v1 and v2) name their tensors. Heads are recorded in a config only; without one
they are those of the published models, whose stages have 1, 2, 5 and 8."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitreous.errors import UserError, shown
from vitreous.models import ModelSettings, PVTSettings
from vitreous.weights.formats import Given
from vitreous.weights.published import Shapes
from vitreous.weights.pyramids import Pyramid, demand, depths_of, refusal, square
from vitreous.weights.rules import Rule, joined, layer, reshaped

PUBLISHED_HEADS = (1, 2, 5, 8)
EPSILON, TIMM_CONV_EPSILON = 1e-6, 1e-5  # of norms; of those that follow convolutions in timm and the original code


@dataclass(frozen=True)
class Names:
    """Of tensors; {i} is a stage, {j} a block of it."""

    stem: tuple[str, str]  # convolution and norm of the first patches
    patches: tuple[str, str]  # of later ones
    block: str
    query: str
    keys_values: tuple[str, ...]  # together, or one each
    out: str
    reduction: tuple[str, str]  # convolution, norm
    norms: tuple[str, str]
    mlp: tuple[str, str]
    mlp_conv: str = ""
    norm: str = ""  # of a stage, or of the last one alone

    def stage(self, template: str, i: int, j: int = 0) -> str:
        return template.format(i=i, j=j)


TIMM = Names(
    stem=("patch_embed.proj", "patch_embed.norm"),
    patches=("stages.{i}.downsample.proj", "stages.{i}.downsample.norm"),
    block="stages.{i}.blocks.{j}.",
    query="attn.q",
    keys_values=("attn.kv",),
    out="attn.proj",
    reduction=("attn.sr", "attn.norm"),
    norms=("norm1", "norm2"),
    mlp=("mlp.fc1", "mlp.fc2"),
    mlp_conv="mlp.dwconv",
    norm="stages.{i}.norm",
)
V2 = "encoder.layers.{i}.patch_embedding"
TRANSFORMERS_V2 = Names(
    stem=(f"{V2}.proj", f"{V2}.layer_norm"),
    patches=(f"{V2}.proj", f"{V2}.layer_norm"),
    block="encoder.layers.{i}.blocks.{j}.",
    query="attention.query",
    keys_values=("attention.key", "attention.value"),
    out="attention.proj",
    reduction=("attention.spatial_reduction", "attention.layer_norm"),
    norms=("layer_norm_1", "layer_norm_2"),
    mlp=("mlp.dense1", "mlp.dense2"),
    mlp_conv="mlp.dwconv.dwconv",
    norm="encoder.layers.{i}.layer_norm",
)
V1 = "encoder.patch_embeddings.{i}"
TRANSFORMERS_V1 = Names(
    stem=(f"{V1}.projection", f"{V1}.layer_norm"),
    patches=(f"{V1}.projection", f"{V1}.layer_norm"),
    block="encoder.block.{i}.{j}.",
    query="attention.self.query",
    keys_values=("attention.self.key", "attention.self.value"),
    out="attention.output.dense",
    reduction=("attention.self.sequence_reduction", "attention.self.layer_norm"),
    norms=("layer_norm_1", "layer_norm_2"),
    mlp=("mlp.dense1", "mlp.dense2"),
    norm="encoder.layer_norm",
)


@dataclass(frozen=True, kw_only=True)
class PVTFormat(Pyramid):
    names: Names
    v1: bool = False

    def tells(self) -> str:
        return self.names.stage(self.names.block, 0) + self.names.query + ".weight"

    def fits(self, given: Given) -> bool:
        start = self._start_in(given)
        return start is not None and f"{start}{self.names.stage(self.names.stem[0], 0)}.weight" in given.tensors

    def read_model(self, shapes: Shapes, start: str, config: Mapping[str, Any]) -> PVTSettings:
        names = self.names
        depths = depths_of(shapes, lambda i, j: f"{start}{names.stage(names.block, i, j)}{names.query}.weight")
        stages = range(len(depths))
        first = [start + names.stage(names.block, i) for i in stages]
        widths = tuple(shapes(f"{one}{names.query}.weight", 2)[0] for one in first)
        reductions = [f"{one}{names.reduction[0]}.weight" for one in first]
        kernels = [shapes(name, 4)[2] if name in shapes else 0 for name in reductions]
        _, channels, kernel, _ = shapes(f"{start}{names.stage(names.stem[0], 0)}.weight", 4)
        epsilon = self._epsilon(config, shapes.where)
        linear = not self.v1 and set(kernels) == {1}
        return PVTSettings(
            generation="v1" if self.v1 else "v2-linear" if linear else "v2",
            channels=channels,
            patch=kernel if self.v1 else (kernel + 1) // 2,
            widths=widths,
            depths=depths,
            heads=self._heads(config, len(depths), shapes.where),
            mlp_factors=tuple(
                shapes(f"{one}{names.mlp[0]}.weight", 2)[0] // width for one, width in zip(first, widths, strict=True)
            ),
            reductions=self._reductions(config, kernels, linear),
            norm_epsilon=epsilon,
            conv_norm_epsilon=epsilon if self.library == "transformers" else TIMM_CONV_EPSILON,
        )

    def _reductions(self, config: Mapping[str, Any], kernels: list[int], linear: bool) -> tuple[int, ...]:
        """Of the linear variant, which has none, those that a config names, or the published ones."""
        if not linear:
            return tuple(max(1, kernel) for kernel in kernels)
        told = config.get("sr_ratios") or (config.get("model_args") or {}).get("sr_ratios") or (8, 4, 2, 1)
        return tuple(int(each) for each in told)

    def _epsilon(self, config: Mapping[str, Any], where: str) -> float:
        if self.library != "transformers":
            return EPSILON
        demand(config, where, hidden_act="gelu", qkv_bias=True)
        return float(config.get("layer_norm_eps", EPSILON))

    def _heads(self, config: Mapping[str, Any], stages: int, where: str) -> tuple[int, ...]:
        told = config.get("num_attention_heads") or (config.get("model_args") or {}).get("num_heads")
        heads = PUBLISHED_HEADS if told is None else told
        if not isinstance(heads, list | tuple) or len(heads) != stages or not all(type(each) is int for each in heads):
            raise UserError(
                f"{where}: heads are {shown(heads)}, where one number for each of {stages} stages is expected"
            )
        return tuple(heads)

    def as_run(self, model: ModelSettings) -> ModelSettings:
        pvt = self._pvt(model)
        if self.library == "transformers":
            return pvt.changed(conv_norm_epsilon=pvt.norm_epsilon)
        return pvt.changed(norm_epsilon=EPSILON, conv_norm_epsilon=TIMM_CONV_EPSILON)

    def _pvt(self, model: ModelSettings) -> PVTSettings:
        if not isinstance(model, PVTSettings) or (model.generation == "v1") != self.v1:
            raise refusal(self, model)
        return model

    def encoder_rules(self, model: ModelSettings) -> list[Rule]:
        pvt, names = self._pvt(model), self.names
        rules: list[Rule] = []
        for i, depth in enumerate(pvt.depths):
            conv, norm = (names.stage(each, i) for each in (names.patches if i else names.stem))
            rules += layer(f"encoder.levels.{i}.patches", conv) + layer(f"encoder.levels.{i}.patch_norm", norm)
            if not self.v1:
                rules += layer(f"encoder.levels.{i}.norm", names.stage(names.norm, i))
            for j in range(depth):
                reduces = pvt.generation == "v2-linear" or pvt.reductions[i] > 1
                rules += self._block(f"encoder.levels.{i}.blocks.{j}.", names.stage(names.block, i, j), reduces)
        return [*rules, *self._positions(pvt), *layer("encoder.norm", names.norm)] if self.v1 else rules

    def _positions(self, pvt: PVTSettings) -> list[Rule]:
        rules: list[Rule] = []
        for i, width in enumerate(pvt.widths):
            h, w = pvt.grid(i)
            is_last = i == len(pvt.widths) - 1
            table, theirs = (h * w + is_last, width), V1.format(i=i)
            mine = f"encoder.levels.{i}.positions.table"
            rules.append(reshaped(mine, f"{theirs}.position_embeddings", table, (1, *table)))
            if is_last:
                token = f"encoder.levels.{i}.prefix.tokens"
                rules.append(reshaped(token, f"{theirs}.cls_token", (1, width), (1, 1, width)))
        return rules

    def _block(self, ours: str, theirs: str, reduces: bool) -> list[Rule]:
        names = self.names
        both = [theirs + name for name in names.keys_values]
        rules = [
            *layer(f"{ours}attention_norm", theirs + names.norms[0]),
            *layer(f"{ours}attention.queries", theirs + names.query),
            *(
                joined(f"{ours}attention.keys_values.{kind}", [f"{each}.{kind}" for each in both])
                for kind in ("weight", "bias")
            ),
            *layer(f"{ours}attention.project_out", theirs + names.out),
            *layer(f"{ours}mlp_norm", theirs + names.norms[1]),
            *layer(f"{ours}mlp.expand", theirs + names.mlp[0]),
            *layer(f"{ours}mlp.contract", theirs + names.mlp[1]),
        ]
        rules += [] if self.v1 else layer(f"{ours}mlp.conv", theirs + names.mlp_conv)
        if reduces:
            rules += layer(f"{ours}attention.reduce", theirs + names.reduction[0])
            rules += layer(f"{ours}attention.reduce_norm", theirs + names.reduction[1])
        return rules

    def arguments(self, model: ModelSettings) -> tuple[str, dict[str, Any]]:
        pvt = self._pvt(model)
        if self.library == "transformers":
            return self._transformers_config(pvt)
        if pvt.patch != 4:
            raise UserError(f"{self.name} has first patches of 4 px, not {pvt.patch}")
        return "pvt_v2_b2", {
            "in_chans": pvt.channels,
            "depths": list(pvt.depths),
            "embed_dims": list(pvt.widths),
            "num_heads": list(pvt.heads),
            "sr_ratios": list(pvt.reductions),
            "mlp_ratios": list(pvt.mlp_factors),
            "linear": pvt.generation == "v2-linear",
        }

    def _transformers_config(self, pvt: PVTSettings) -> tuple[str, dict[str, Any]]:
        steps = [pvt.patch, *[2] * (len(pvt.depths) - 1)]
        common = {
            "image_size": square(pvt.picture_px),
            "num_channels": pvt.channels,
            "num_encoder_blocks": len(pvt.depths),
            "depths": list(pvt.depths),
            "hidden_sizes": list(pvt.widths),
            "patch_sizes": steps if self.v1 else [2 * step - 1 for step in steps],
            "strides": steps,
            "num_attention_heads": list(pvt.heads),
            "mlp_ratios": list(pvt.mlp_factors),
            "layer_norm_eps": pvt.norm_epsilon,
            "drop_path_rate": pvt.stochastic_depth,
        }
        if self.v1:
            return "Pvt", {"model_type": "pvt", **common, "sequence_reduction_ratios": list(pvt.reductions)}
        linear = pvt.generation == "v2-linear"
        return "PvtV2", {
            "model_type": "pvt_v2",
            **common,
            "sr_ratios": list(pvt.reductions),
            "linear_attention": linear,
        }


FORMATS = (
    PVTFormat(name="timm-pvt-v2", title="timm: PVT v2", library="timm", names=TIMM),
    PVTFormat(
        name="transformers-pvt-v2",
        title="transformers: PVT v2",
        library="transformers",
        names=TRANSFORMERS_V2,
        starts=("pvt_v2.", ""),
        head="classifier",
    ),
    PVTFormat(
        name="transformers-pvt",
        title="transformers: PVT, the first",
        library="transformers",
        names=TRANSFORMERS_V1,
        v1=True,
        starts=("pvt.", ""),
        head="classifier",
    ),
)
