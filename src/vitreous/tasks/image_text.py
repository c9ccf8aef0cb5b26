"""Pictures and words in one space: a picture tower and a text tower whose outputs are compared (CLIP, SigLIP, LiT)."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous import keys as K
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models.base import Encoder
from vitreous.models.text import TextSettings, TextTransformer
from vitreous.nn.blocks import shared_projection
from vitreous.objectives.contrast import sigmoid_contrast, softmax_contrast
from vitreous.tasks.base import Metric, Task
from vitreous.tasks.predictions import Embeddings
from vitreous.tasks.retrieval import RetrievalMetric


@dataclass(frozen=True, kw_only=True)
class ImageTextSettings:
    task_kind: ClassVar[Literal["match"]] = "match"

    loss: Literal["softmax", "sigmoid"] = "softmax"  # which of the batch belongs to which (CLIP); each pair (SigLIP)
    width: int | None = 512  # of the shared space; none: that of the encoder's pooled features, without a projection
    text: TextSettings = field(default_factory=TextSettings)
    tokenizer: str | None = None  # a folder or file of one, whose size the text tower gets; none: learned from captions
    locked: bool = False  # freeze the picture tower, and train only the text tower to match it (LiT)
    start_scale: float = 1 / 0.07  # initial factor on similarities, which is learned (10 in SigLIP)
    max_scale: float = 100.0  # largest value of that factor
    start_bias: float = -10.0  # initial bias of the logits (sigmoid only): most pairs do not belong together
    chunk: int = 1024  # texts that a rank compares its pictures with at a time (sigmoid only)

    def build(self, encoder: Encoder, classes: tuple[str, ...]) -> "ImageText":
        if not 0 < self.start_scale <= self.max_scale:
            raise UserError(
                f"start_scale is {self.start_scale}: it must be above 0 and at most max_scale, {self.max_scale}"
            )
        if min(self.chunk, 1 if self.width is None else self.width) < 1:
            raise UserError(f"width {self.width} and chunk {self.chunk}: both must be at least 1")
        width = self.width or encoder.width
        projection = nn.Identity() if self.width is None else shared_projection(encoder.width, width)
        return ImageText(encoder, projection, self.text.build(width), self)


def _unit(x: Tensor) -> Tensor:
    """Normalised to length 1, at least in float32: the scale magnifies small differences."""
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=1)


class ImageText(Task):
    across_samples = True

    def __init__(
        self, encoder: Encoder, projection: nn.Module, text: TextTransformer, settings: ImageTextSettings
    ) -> None:
        super().__init__()
        self.encoder, self.projection, self.text, self.settings = encoder, projection, text, settings
        self.log_scale = nn.Parameter(torch.full((), math.log(settings.start_scale)))
        self.bias = nn.Parameter(torch.full((), settings.start_bias)) if settings.loss == "sigmoid" else None
        if settings.locked:
            encoder.requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.settings.locked:  # also without dropout
            self.encoder.eval()
        return self

    def embed_pictures(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D) of length 1, float32."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.settings.locked):
            pooled = self.encoder(images).pooled
        return _unit(self.projection(pooled))

    def embed_texts(self, ids: Tensor) -> Tensor:
        """(B, L) token ids -> (B, D) of length 1, float32."""
        return _unit(self.text(ids, self.encoder.checkpointing))

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        pictures, texts = self.embed_pictures(batch.images), self.embed_texts(drawn_captions(batch))
        scale = self.log_scale.exp()
        if self.bias is None:
            return {"loss": softmax_contrast(pictures, texts, scale), "scale": scale}
        loss = sigmoid_contrast(pictures, texts, scale, self.bias, self.settings.chunk)
        return {"loss": loss, "scale": scale, "bias": self.bias}

    @torch.no_grad()
    def after_step(self, progress: Tensor) -> None:
        self.log_scale.clamp_(max=math.log(self.settings.max_scale))

    def predict(self, images: Tensor, extent: Tensor | None = None) -> Embeddings:
        return Embeddings(self.embed_pictures(images))

    def metric(self) -> Metric:
        return RetrievalMetric(self.embed_texts)


def drawn_captions(batch: Batch) -> Tensor:
    """(B, L): one caption of every picture, drawn by the sample's key."""
    captions = batch.targets.get("captions")
    if captions is None:
        known = " and ".join(batch.targets) or "nothing"
        raise UserError(f"this learns from captions, but these pictures come with: {known}")
    if captions.shape[1] == 1:
        return captions[:, 0]
    chosen = K.one_below(batch.keys, "caption", batch.targets["num_captions"])
    return captions[torch.arange(len(batch), device=chosen.device), chosen]
