"""Semantic segmentation: a class for every pixel, by Segmenter's decoders (Strudel et al. 2021).

The encoder's map has one feature per patch, so a decoder's logits are as coarse as the patches. Training enlarges them
to the pictures (bilinear); a prediction stays coarse, and is enlarged once, to the picture's original size.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.batch import IGNORED, Batch
from vitreous.errors import UserError
from vitreous.models.base import Encoder, Features, Output
from vitreous.nn.attention import Attention
from vitreous.nn.bilinear import resized_maps
from vitreous.nn.blocks import Block, Mlp
from vitreous.nn.gather import mean_over_ranks
from vitreous.tasks.base import Metric, Task
from vitreous.tasks.classify import zero_linear
from vitreous.tasks.mask_targets import mask_of
from vitreous.tasks.pixel_metric import PixelMetric
from vitreous.tasks.predictions import PixelLogits

Inference = Literal["whole", "windows"]


@dataclass(frozen=True, kw_only=True)
class SegmentSettings:
    task_kind: ClassVar[Literal["segment"]] = "segment"

    decoder: Literal["linear", "mask-transformer"] = "mask-transformer"  # linear: on each patch (or map) separately
    depth: int = 2  # mask-transformer: blocks
    width: int | None = None  # mask-transformer: of a token; none: the encoder's
    heads: int | None = None  # mask-transformer: of the attention; none: one per 64 of the width
    dropout: float = 0.0  # mask-transformer: after its dense layers
    class_weights: tuple[float, ...] = ()  # factor on the loss of each class's pixels; none: all equal
    inference: Inference = "whole"  # the whole picture at the model's size, or overlapping windows of that size
    overlap: float = 0.5  # windows: the least share by which neighbours overlap

    def build(self, encoder: Encoder, classes: tuple[str, ...]) -> "Segment":
        if len(classes) < 2:
            raise UserError(f"segmentation needs at least two classes, and there are {len(classes)}")
        if self.class_weights and len(self.class_weights) != len(classes):
            raise UserError(
                f"{len(self.class_weights)} class_weights for {len(classes)} classes: give one per class, or none"
            )
        if not 0 <= self.overlap <= 0.9:
            raise UserError(f"overlap is {self.overlap}: it must be from 0 to 0.9")
        return Segment(encoder, self._decoder(encoder, len(classes)), self.class_weights)

    def decoded(self, outputs: tuple[Output, ...]) -> Output:
        """The encoder's map that has the same places as the logits."""
        return outputs[0] if self.decoder == "linear" else outputs[-1]

    def _decoder(self, encoder: Encoder, num_classes: int) -> "Decoder":
        if self.decoder == "linear":
            return LinearDecoder(encoder.outputs, num_classes)
        output = self.decoded(encoder.outputs)
        width = self.width or output.width
        heads = self.heads or max(1, width // 64)
        if min(width, heads, self.depth) < 1 or width % heads:
            raise UserError(
                f"a decoder of width {width}, {heads} heads and depth {self.depth}: all must be at least 1, and the "
                "width a multiple of the heads"
            )
        attentions = [Attention(width, heads, dropout=self.dropout) for _ in range(self.depth)]
        blocks = [Block(one, Mlp(width, 4 * width, dropout=self.dropout)) for one in attentions]
        return MaskTransformer(output, num_classes, blocks)


class LinearDecoder(nn.Module):
    """A linear layer on every place of a map; for an encoder with several maps, the sum over all of them.

    The sum equals one layer on the concatenated maps, all enlarged to the finest, but only logits are enlarged.
    """

    def __init__(self, outputs: tuple[Output, ...], num_classes: int) -> None:
        super().__init__()
        self.levels = nn.ModuleList(zero_linear(output.width, num_classes) for output in outputs)

    def forward(self, features: Features) -> Tensor:
        logits = [
            level(map_.movedim(1, -1)).movedim(-1, 1)  # (B, K, h, w)
            for level, map_ in zip(self.levels, features.maps, strict=True)
        ]
        total: Tensor = logits[0]
        for one in logits[1:]:
            total = total + resized_maps(one, (total.shape[-2], total.shape[-1]))
        return total


class MaskTransformer(nn.Module):
    """One learned token per class goes through a few blocks together with the patches; the logit of a class at a patch
    is the scalar product of both, normalised (paper, section 3.2).

    A learned factor turns the cosines into logits. (The paper's code has a LayerNorm over the classes instead, which
    for two classes would leave only the sign.)
    """

    def __init__(self, output: Output, num_classes: int, blocks: list[Block]) -> None:
        super().__init__()
        width = blocks[0].attention.width
        self.project_in = nn.Linear(output.width, width)
        self.classes = nn.Parameter(torch.empty(num_classes, width))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.project_patches = nn.Linear(width, width, bias=False)
        self.project_classes = nn.Linear(width, width, bias=False)
        self.factor = nn.Parameter(torch.tensor(10.0))
        nn.init.trunc_normal_(self.classes, std=0.02)
        nn.init.trunc_normal_(self.project_in.weight, std=0.02)
        nn.init.zeros_(self.project_in.bias)
        for projection in (self.project_patches, self.project_classes):
            nn.init.normal_(projection.weight, std=width**-0.5)

    def forward(self, features: Features) -> Tensor:
        patches = features.maps[-1]  # (B, D, h, w)
        grid = patches.shape[-2:]
        tokens = self.project_in(patches.flatten(2).transpose(1, 2))
        classes = self.classes.to(tokens.dtype).expand(tokens.shape[0], -1, -1)
        tokens = torch.cat([classes, tokens], dim=1)  # (B, K + h*w, D)
        for block in self.blocks:
            tokens = block(tokens)
        tokens = self.norm(tokens)
        num = len(self.classes)
        found = F.normalize(self.project_classes(tokens[:, :num]), dim=-1)
        places = F.normalize(self.project_patches(tokens[:, num:]), dim=-1)
        masks: Tensor = self.factor * (found @ places.transpose(1, 2))
        return masks.view(-1, num, *grid)  # (B, K, h, w)


Decoder = LinearDecoder | MaskTransformer


class Segment(Task):
    class_weights: Tensor | None

    def __init__(self, encoder: Encoder, head: Decoder, class_weights: tuple[float, ...] = ()) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        # Part of training, not of the model: not saved, and a real tensor even if the weights are meta.
        factors = torch.tensor(class_weights, device="cpu") if class_weights else None
        self.register_buffer("class_weights", factors, persistent=False)

    def predict(self, images: Tensor, extent: Tensor | None = None) -> PixelLogits:
        return PixelLogits(self.head(self.encoder(images)))

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        mask = mask_of(batch)
        logits = resized_maps(self.predict(batch.images).logits, (mask.shape[-2], mask.shape[-1]))
        return {"loss": pixel_loss(logits, mask, self.class_weights)}

    def metric(self) -> Metric:
        return PixelMetric()


def pixel_loss(logits: Tensor, mask: Tensor, class_weights: Tensor | None = None) -> Tensor:
    """The mean cross-entropy of the pixels that have a class, on all ranks; 0 if none has one.

    With a gather instead of `F.cross_entropy`, which sums pixels in no fixed order on a GPU.
    """
    valid = mask != IGNORED  # (B, H, W)
    labels = mask.clamp(min=0)
    losses = logits.logsumexp(dim=1) - logits.gather(1, labels[:, None])[:, 0]
    weights = valid.to(losses.dtype) if class_weights is None else valid * class_weights[labels]
    return (losses * weights).sum() / mean_over_ranks(weights.sum()).clamp(min=torch.finfo(losses.dtype).tiny)
