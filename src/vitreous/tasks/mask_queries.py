"""Segmentation by queries: Mask2Former (Cheng et al. 2022) on any encoder, EoMT (Kerssies et al. 2025) inside a plain
ViT. Each query predicts one mask and its class, or none.

For a class per pixel (semantic), the predictions of all queries are added up; for instances, each counts by itself.
Models, losses and matching are the same for both.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from vitreous import platforms
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models.base import Encoder, Output, TokenEncoder
from vitreous.nn.eomt import Eomt, freed, joined_layers
from vitreous.nn.mask2former import Mask2Former, PixelSizes, QuerySizes
from vitreous.nn.pyramid import SimplePyramid
from vitreous.nn.query_masks import QueryMasks, class_scores
from vitreous.tasks.base import Metric, Task
from vitreous.tasks.instance_metric import InstanceMetric
from vitreous.tasks.mask_loss import MaskWeights, Points, PointSettings, query_losses
from vitreous.tasks.mask_targets import MaskTargets, class_masks, object_masks
from vitreous.tasks.pixel_metric import PixelMetric
from vitreous.tasks.predictions import InstanceMasks, PixelLogits

FINEST_PX = 4  # distance between places of a mask, or as near to it as an encoder's maps allow


@dataclass(frozen=True, kw_only=True)
class PixelSettings:
    """Of Mask2Former's pixel decoder."""

    mask_width: int = 256  # of the pixels of the finest map
    mlp_width: int = 1024
    depth: int = 6  # layers
    looks: int = 4  # places to look at, per map and head


@dataclass(frozen=True, kw_only=True)
class MaskQuerySettings:
    decoder: Literal["mask2former", "eomt"] = "mask2former"  # after any encoder, or in the last blocks of a plain ViT
    output: Literal["semantic", "instances"] = "semantic"  # a class per pixel, or objects
    queries: int = 100  # most masks per picture
    width: int = 256  # mask2former: of a token
    heads: int = 8  # mask2former: of the attention
    mlp_width: int = 2048  # mask2former: of the decoder
    decoder_depth: int = 9  # mask2former: layers of the decoder
    dropout: float = 0.0  # mask2former
    pixel: PixelSettings = field(default_factory=PixelSettings)  # mask2former
    blocks: int = 4  # eomt: the number of last blocks of the encoder that the queries go through
    upscales: int | None = None  # eomt: how often patches are halved for the masks; none: until they are about 4 px
    points: PointSettings = field(default_factory=PointSettings)
    weights: MaskWeights = field(default_factory=MaskWeights)

    @property
    def task_kind(self) -> Literal["segment", "instances"]:
        return "segment" if self.output == "semantic" else "instances"

    def build(self, encoder: Encoder, classes: tuple[str, ...]) -> "MaskQueries":
        self._check(len(classes))
        if self.decoder == "eomt":
            return InnerQueries(encoder, self, len(classes))
        return PyramidQueries(encoder, self, len(classes))

    def num_upscales(self, stride: tuple[int, int]) -> int:
        """eomt: for patches of this stride."""
        return max(0, _halvings(stride)) if self.upscales is None else self.upscales

    def _check(self, num_classes: int) -> None:
        if num_classes < (least := 2 if self.output == "semantic" else 1):
            raise UserError(f"there are {num_classes} classes to tell apart: at least {least} are needed")
        pixel, points = self.pixel, self.points
        counts = (self.queries, self.width, self.heads, self.mlp_width, self.blocks, points.number)
        if min(*counts, pixel.mask_width, pixel.mlp_width, pixel.looks) < 1:
            raise UserError("queries, widths, heads, blocks, points and looks must be at least 1")
        if min(pixel.depth, self.decoder_depth, self.upscales or 0) < 0:
            raise UserError("depths and upscales must not be negative")
        if self.width % self.heads or self.width % 4:
            raise UserError(f"a width of {self.width} and {self.heads} heads: it must be a multiple of both and of 4")
        if not 0 <= points.uncertain <= min(1, points.candidates):
            raise UserError(f"points.uncertain is {points.uncertain}: it must be a share, at most points.candidates")


class MaskQueries(Task):
    def __init__(self, encoder: Encoder, settings: MaskQuerySettings, num_classes: int) -> None:
        super().__init__()
        self.encoder, self.settings, self.num_classes = encoder, settings, num_classes

    def decoded(self, images: Tensor, learning: "Learning | None" = None) -> QueryMasks:
        """The queries' predictions, layer by layer. Without `learning`, there may be only the last layer."""
        raise NotImplementedError

    def predict(self, images: Tensor, extent: Tensor | None = None) -> PixelLogits | InstanceMasks:
        said = self.decoded(images)
        if self.settings.output == "semantic":
            return PixelLogits(class_scores(said))
        return InstanceMasks(said.logits[-1], said.masks())

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        targets, settings = self._targets(batch), self.settings
        said = self.decoded(batch.images, Learning(batch.keys, progress))
        with platforms.full_precision(batch.images.device):
            return query_losses(said, targets, Points.drawn(batch.keys, settings.points), settings.weights)

    def _targets(self, batch: Batch) -> MaskTargets:
        return class_masks(batch, self.num_classes) if self.settings.output == "semantic" else object_masks(batch)

    def metric(self) -> Metric:
        return PixelMetric() if self.settings.output == "semantic" else InstanceMetric(self.num_classes)


@dataclass(frozen=True)
class Learning:
    """What a network in training needs to know about its samples."""

    keys: Tensor  # (B,) int64
    progress: Tensor  # 0-d, 0 to 1


class PyramidQueries(MaskQueries):
    """Mask2Former on the maps of an encoder; a plain ViT's one map becomes several first."""

    def __init__(self, encoder: Encoder, settings: MaskQuerySettings, num_classes: int) -> None:
        super().__init__(encoder, settings, num_classes)
        width, pixel = settings.width, settings.pixel
        outputs: tuple[Output, ...] = encoder.outputs
        self.pyramid = None
        if len(outputs) == 1:
            self.pyramid = SimplePyramid(outputs[0].width, width, _scales(outputs[0].stride))
            outputs = (Output(width, outputs[0].stride),) * len(self.pyramid.levels)
        self.head = Mask2Former(
            [output.width for output in outputs],
            num_classes,
            PixelSizes(
                width=width,
                heads=settings.heads,
                mlp_width=pixel.mlp_width,
                depth=pixel.depth,
                points=pixel.looks,
                mask_width=pixel.mask_width,
                dropout=settings.dropout,
            ),
            QuerySizes(
                queries=settings.queries,
                width=width,
                heads=settings.heads,
                mlp_width=settings.mlp_width,
                depth=settings.decoder_depth,
                dropout=settings.dropout,
            ),
            normed=[output.normed for output in outputs],
        )

    def decoded(self, images: Tensor, learning: Learning | None = None) -> QueryMasks:
        maps = self.encoder(images).maps
        found: QueryMasks = self.head(maps if self.pyramid is None else self.pyramid(maps[-1]))
        return found


class InnerQueries(MaskQueries):
    """EoMT: the encoder's last blocks are the decoder. Trained queries attend everywhere, whatever their masks."""

    encoder: TokenEncoder

    def __init__(self, encoder: Encoder, settings: MaskQuerySettings, num_classes: int) -> None:
        if not isinstance(encoder, TokenEncoder):
            raise UserError(f"eomt needs a plain ViT, and this is a {type(encoder).__name__}: use mask2former")
        super().__init__(encoder, settings, num_classes)
        if settings.blocks > len(encoder.blocks):
            raise UserError(f"blocks is {settings.blocks}, and the encoder has {len(encoder.blocks)}")
        output = encoder.outputs[-1]
        upscales = settings.num_upscales(output.stride)
        self.head = Eomt(output.width, num_classes, settings.queries, settings.blocks, upscales)

    def decoded(self, images: Tensor, learning: Learning | None = None) -> QueryMasks:
        encoder, head = self.encoder, self.head
        said: list[QueryMasks] = []
        encoder.check(images)
        tokens, grid = encoder.embed(images)
        depth, num_prefix = len(encoder.blocks), encoder.num_prefix

        def before(block: int, x: Tensor) -> tuple[Tensor, Tensor | None]:
            number = block - (depth - head.blocks)
            x = head.joined(x) if number == 0 else x
            if number < 0 or learning is None:
                return x, None
            said.append(head.says(encoder.normed(x), num_prefix, grid))
            free = freed(learning.keys, learning.progress, number, head.blocks, len(head.queries))
            return x, head.looks(said[-1], num_prefix, grid, free)

        encoded = encoder.encode(tokens, grid, depths=(depth,), before=before)
        said.append(head.says(encoder.normed(encoded.depths[depth]), num_prefix, grid))
        return joined_layers(said)


def _halvings(stride: tuple[int, int]) -> int:
    """How often a stride must be halved to be nearest to that of a mask; negative if it is finer."""
    return round(math.log2(min(stride) / FINEST_PX))


def _scales(stride: tuple[int, int]) -> list[float]:
    """The scales of a plain ViT's pyramid: four maps, the finest with a stride of about 4 px."""
    finest = 2.0 ** min(2, max(0, _halvings(stride)))
    return [finest / 2**level for level in range(4)]
