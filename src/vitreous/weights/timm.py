"""timm's names for the weights of a plain ViT, and ours."""

from collections.abc import Mapping

from torch import Tensor

OUTSIDE_BLOCKS = {
    "patch_embed.proj": "encoder.stem.patches.linear",
    "norm": "encoder.norm",
    "fc_norm": "encoder.norm",
    "head": "head",
}
INSIDE_BLOCKS = {
    "norm1": "attention_norm",
    "attn.qkv": "attention.project_in",
    "attn.proj": "attention.project_out",
    "ls1": "attention_scale",
    "norm2": "mlp_norm",
    "mlp.fc1": "mlp.expand",
    "mlp.fc2": "mlp.contract",
    "ls2": "mlp_scale",
}


def from_timm(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A timm VisionTransformer's state dict as that of a classifier of ours (linear head)."""
    return {_our_name(name): _our_layout(name, value) for name, value in theirs.items()}


def _our_name(name: str) -> str:
    if name == "cls_token":
        return "encoder.prefix.tokens"
    if name == "pos_embed":
        return "encoder.positions.tables.0.table"
    path, _, kind = name.rpartition(".")
    if path.startswith("blocks."):
        _, number, inside = path.split(".", maxsplit=2)
        return f"encoder.blocks.{number}.{INSIDE_BLOCKS[inside]}.{'factor' if kind == 'gamma' else kind}"
    return f"{OUTSIDE_BLOCKS[path]}.{kind}"


def _our_layout(name: str, value: Tensor) -> Tensor:
    if name in ("cls_token", "pos_embed"):
        return value[0]
    if name == "patch_embed.proj.weight":
        return value.flatten(1)  # a convolution's kernel (D, C, p, p) as one matrix
    return value
