"""The tensors of DETR and Deformable DETR, as transformers and the original code name them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vitreous.models import ResNetV1Settings
from vitreous.tasks.detect import DetectSettings
from vitreous.weights.resnet_v1 import Names as ResNetNames
from vitreous.weights.resnet_v1 import resnet_rules
from vitreous.weights.rules import Rule, aside, joined, layer, prefixed, repeated, same


@dataclass(frozen=True)
class Names:
    """{i} is a layer. Attentions: q_proj and so on, or one in_proj."""

    project: str
    queries: str
    encoder: str
    decoder: str
    attention: str  # of the decoder's queries to the picture
    encoder_norms: tuple[str, str]
    decoder_norms: tuple[str, str, str]  # behind the attention to each other, to the picture, and the MLP
    mlp: tuple[str, str]
    fused: bool
    classes: str
    boxes: str
    norm: str = ""  # detr: the decoder's last
    levels: str = ""  # deformable
    points: str = ""  # deformable: the queries' first reference points
    proposals: tuple[str, str, str, str] = ("", "", "", "")  # deformable, two stages
    starts: tuple[str, ...] = ("",)  # what all names may begin with; the first is written


_TRANSFORMERS_NORMS = ("self_attn_layer_norm", "final_layer_norm")
DETR_TRANSFORMERS = Names(
    project="model.input_projection",
    queries="model.query_position_embeddings.weight",
    encoder="model.encoder.layers.{i}.",
    decoder="model.decoder.layers.{i}.",
    attention="encoder_attn",
    encoder_norms=_TRANSFORMERS_NORMS,
    decoder_norms=("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    mlp=("fc1", "fc2"),
    fused=False,
    classes="class_labels_classifier",
    boxes="bbox_predictor",
    norm="model.decoder.layernorm",
)
DETR_ORIGINAL = Names(
    project="input_proj",
    queries="query_embed.weight",
    encoder="transformer.encoder.layers.{i}.",
    decoder="transformer.decoder.layers.{i}.",
    attention="multihead_attn",
    encoder_norms=("norm1", "norm2"),
    decoder_norms=("norm1", "norm2", "norm3"),
    mlp=("linear1", "linear2"),
    fused=True,
    classes="class_embed",
    boxes="bbox_embed",
    norm="transformer.decoder.norm",
    starts=("model.", ""),
)
DEFORMABLE_TRANSFORMERS = replace(
    DETR_TRANSFORMERS,
    project="model.input_proj",
    classes="class_embed.{i}",
    boxes="bbox_embed.{i}",
    norm="",
    levels="model.level_embed",
    points="model.reference_points",
    proposals=("model.enc_output", "model.enc_output_norm", "model.pos_trans", "model.pos_trans_norm"),
)
DEFORMABLE_ORIGINAL = replace(
    DETR_ORIGINAL,
    attention="cross_attn",
    decoder_norms=("norm2", "norm1", "norm3"),
    classes="class_embed.{i}",
    boxes="bbox_embed.{i}",
    norm="",
    levels="transformer.level_embed",
    points="transformer.reference_points",
    proposals=(
        "transformer.enc_output",
        "transformer.enc_output_norm",
        "transformer.pos_trans",
        "transformer.pos_trans_norm",
    ),
)
AttentionRules = Callable[[str, str, bool], list[Rule]]  # our name, theirs, whether theirs is fused
INSIDE = "model.decoder."  # where transformers keeps the heads that its decoder uses
DEFORMABLE_PARTS = {
    "offsets": "sampling_offsets",
    "weights": "attention_weights",
    "project_in": "value_proj",
    "project_out": "output_proj",
}


def encoder_rules(model: ResNetV1Settings, backbone: str, names: ResNetNames) -> list[Rule]:
    """Of the backbone. Of its batch norms the counters may be there; the norms being fixed, they are of no use."""
    rules = [prefixed(rule, backbone) for rule in resnet_rules(model, names, counters=False)]
    return [*rules, aside(r".*\.num_batches_tracked$")]


def detr_rules(task: DetectSettings, names: Names) -> list[Rule]:
    rules = [*layer("head.project", names.project), same("head.queries", names.queries)]
    rules += layer("head.norm", names.norm) + layer("head.classes", names.classes)
    rules += _mlp("head.boxes", [f"{names.boxes}.layers.{k}" for k in range(3)])
    for i in range(task.encoder_depth):
        rules += _encoder_layer(i, names, _attention)
    for i in range(task.decoder_depth):
        rules += _decoder_layer(i, names, _attention)
    return rules


def deformable_rules(task: DetectSettings, names: Names, *, inside: bool, one: bool) -> list[Rule]:
    """`inside`: the heads stand in the decoder, as transformers saves those that it uses there. `one`: all layers have
    the class head of the first."""
    rules = [same("head.levels", names.levels)]
    for k in range(task.levels):
        rules += layer(f"head.project.{k}.0", f"{names.project}.{k}.0")
        rules += layer(f"head.project.{k}.1", f"{names.project}.{k}.1")
    if task.two_stage:
        ours = ("project", "norm", "project_queries", "queries_norm")
        for mine, theirs in zip(ours, names.proposals, strict=True):
            rules += layer(f"head.proposals.{mine}", theirs)
    else:
        rules += [same("head.queries", names.queries), *layer("head.points", names.points)]
    for i in range(task.encoder_depth):
        rules += _encoder_layer(i, names, _deformable)
    for i in range(task.decoder_depth):
        rules += _decoder_layer(i, names, _deformable)
    classes_start, boxes_start = (INSIDE if inside and used else "" for used in (task.two_stage, task.refine))
    num = task.decoder_depth + task.two_stage if task.refine else 1
    if one:
        for kind in ("weight", "bias"):
            rules += [repeated([f"head.classes.{i}.{kind}" for i in range(num)], f"{names.classes.format(i=0)}.{kind}")]
    for i in range(num):
        rules += [] if one else layer(f"head.classes.{i}", classes_start + names.classes.format(i=i))
        boxes = boxes_start + names.boxes.format(i=i)
        rules += _mlp(f"head.boxes.{i}", [f"{boxes}.layers.{k}" for k in range(3)])
    # Files repeat the heads: for every layer where they are shared, and inside the decoder where they are not.
    return [*rules, aside(r"((model|transformer)\.)*(decoder\.)?(class|bbox)_embed\.\d+\.")]


def _encoder_layer(i: int, names: Names, attention: AttentionRules) -> list[Rule]:
    ours, theirs = f"head.encoder.{i}.", names.encoder.format(i=i)
    rules = attention(f"{ours}attention", f"{theirs}self_attn", names.fused)
    for mine, norm in zip(("attention_residual", "mlp_residual"), names.encoder_norms, strict=True):
        rules += layer(f"{ours}{mine}.norm", theirs + norm)
    return rules + _mlp(f"{ours}mlp", [theirs + name for name in names.mlp])


def _decoder_layer(i: int, names: Names, attention: AttentionRules) -> list[Rule]:
    ours, theirs = f"head.decoder.{i}.", names.decoder.format(i=i)
    rules = _attention(f"{ours}self_attention", f"{theirs}self_attn", names.fused)
    rules += attention(f"{ours}attention", theirs + names.attention, names.fused)
    for mine, norm in zip(("self_residual", "attention_residual", "mlp_residual"), names.decoder_norms, strict=True):
        rules += layer(f"{ours}{mine}.norm", theirs + norm)
    return rules + _mlp(f"{ours}mlp", [theirs + name for name in names.mlp])


def _attention(ours: str, theirs: str, fused: bool) -> list[Rule]:
    rules = layer(f"{ours}.project_out", f"{theirs}.out_proj")
    for kind in ("weight", "bias"):
        mine = f"{ours}.project_in.{kind}"
        parts = [f"{theirs}.{part}_proj.{kind}" for part in "qkv"]
        rules.append(same(mine, f"{theirs}.in_proj_{kind}") if fused else joined(mine, parts))
    return rules


def _deformable(ours: str, theirs: str, fused: bool) -> list[Rule]:
    return [rule for mine, name in DEFORMABLE_PARTS.items() for rule in layer(f"{ours}.{mine}", f"{theirs}.{name}")]


def _mlp(ours: str, theirs: Sequence[str]) -> list[Rule]:
    *hidden, last = theirs
    rules = [rule for k, name in enumerate(hidden) for rule in layer(f"{ours}.hidden.{k}", name)]
    return rules + layer(f"{ours}.last", last)
