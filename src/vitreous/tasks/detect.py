"""Detection: boxes with their classes, by DETR (Carion et al. 2020), Deformable DETR (Zhu et al. 2021), or CenterNet
(Zhou et al. 2019).

On the maps of any encoder. None needs anchors or a search for duplicates: a query predicts one box, or none.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor

from vitreous import platforms
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models.base import Encoder
from vitreous.nn.centres import Centres, Placed, surest
from vitreous.nn.deformable_detr import DeformableDetr, DeformableSizes
from vitreous.nn.detr import Decoded, Detr, Sizes
from vitreous.nn.pyramid import SCALES, SimplePyramid
from vitreous.tasks.base import Metric, Task
from vitreous.tasks.box_metric import BoxMetric
from vitreous.tasks.centre_loss import centre_losses
from vitreous.tasks.detect_loss import CostSettings, LossSettings, detection_losses, noised, objects_of
from vitreous.tasks.predictions import Detections

MOST_MAPS = 3  # of an encoder that are used; coarser ones are computed from them (Deformable DETR, appendix A.2)


@dataclass(frozen=True, kw_only=True)
class DetectSettings:
    task_kind: ClassVar[Literal["detect"]] = "detect"

    # Attention to a whole map, or to places of several; or none: each place predicts the object centred there.
    decoder: Literal["detr", "deformable", "centres"] = "deformable"
    queries: int = 100  # most objects that can be found in a picture
    width: int = 256  # of a token
    heads: int = 8  # of the attention
    mlp_width: int = 1024
    encoder_depth: int = 6
    decoder_depth: int = 6
    dropout: float = 0.1
    levels: int = 4  # deformable: maps to look at
    points: int = 4  # deformable: per map and head
    refine: bool = True  # deformable: each layer of the decoder corrects the boxes of the previous one
    two_stage: bool = False  # deformable: start from boxes that the encoder proposes
    finest: Literal[4, 2, 1] = 2  # on a plain ViT, except detr: how many times its map is enlarged
    cost: CostSettings = field(default_factory=CostSettings)
    weights: LossSettings = field(default_factory=LossSettings)

    def build(self, encoder: Encoder, classes: tuple[str, ...]) -> "Detect":
        if not classes:
            raise UserError("detection needs at least one class")
        counts = ("queries", "width", "heads", "mlp_width", "decoder_depth", "levels", "points")
        if min(getattr(self, name) for name in counts) < 1 or self.encoder_depth < 0:
            raise UserError(f"{', '.join(counts[:-1])} and {counts[-1]} must be at least 1")
        if self.width % self.heads or self.width % 4:
            raise UserError(f"a width of {self.width} and {self.heads} heads: it must be a multiple of both and of 4")
        if self.two_stage and not self.refine:
            raise UserError("two_stage needs refine: its first boxes have to be corrected")
        if self.weights.hints and not (self.two_stage and self.decoder == "deformable"):
            raise UserError("weights.hints needs two_stage, in which queries are made from boxes")
        if self.decoder == "detr":
            sizes = Sizes(**self._sizes())
            return Detect(encoder, None, Detr(encoder.outputs[-1].width, len(classes), sizes), self, len(classes))
        num_maps = min(self.levels, MOST_MAPS)
        pyramid, widths = None, [output.width for output in encoder.outputs[-num_maps:]]
        if self.decoder == "centres":
            enlarged = self.finest if len(encoder.outputs) == 1 else 1
            centres = Centres(
                widths,
                len(classes),
                width=self.width,
                depth=self.encoder_depth,
                enlarged=enlarged,
            )
            return Detect(encoder, None, centres, self, len(classes))
        if len(encoder.outputs) == 1:  # a plain ViT
            scales = (1.0,) if num_maps == 1 else SCALES[SCALES.index(self.finest) :][:num_maps]
            pyramid = SimplePyramid(widths[0], self.width, scales)
            widths = [self.width] * len(scales)
        more: dict[str, Any] = {
            "levels": self.levels,
            "points": self.points,
            "refine": self.refine,
            "two_stage": self.two_stage,
        }
        head = DeformableDetr(widths, len(classes), DeformableSizes(**self._sizes(), **more))
        return Detect(encoder, pyramid, head, self, len(classes))

    def _sizes(self) -> dict[str, Any]:
        names = ("queries", "width", "heads", "mlp_width", "encoder_depth", "decoder_depth", "dropout")
        return {name: getattr(self, name) for name in names}


class Detect(Task):
    looks_at_extent = True

    def __init__(
        self,
        encoder: Encoder,
        pyramid: SimplePyramid | None,
        head: Detr | DeformableDetr | Centres,
        settings: DetectSettings,
        num_classes: int,
    ) -> None:
        super().__init__()
        self.encoder, self.pyramid, self.head = encoder, pyramid, head
        self.settings, self.num_classes = settings, num_classes

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """The maps that the head reads, finest first."""
        maps = self.encoder(images).maps
        maps = maps if self.pyramid is None else self.pyramid(maps[-1])
        used = 1 if isinstance(self.head, Detr) else min(self.settings.levels, MOST_MAPS)
        return tuple(maps[-used:])

    def decoded(self, images: Tensor, extent: Tensor | None = None, hints: Tensor | None = None) -> Decoded | Placed:
        """The predictions of every layer of the decoder, or of every place. extent: (B, 2), how many rows and columns
        of the images are picture. hints: (B, M, 4), boxes to start from, in addition to those that are proposed."""
        more = () if hints is None else (hints,)
        found: Decoded | Placed = self.head(self.maps(images), extent, (images.shape[-2], images.shape[-1]), *more)
        return found

    def predict(self, images: Tensor, extent: Tensor | None = None) -> Detections:
        found = self.decoded(images, extent)
        if isinstance(found, Placed):
            return Detections(*surest(found, self.settings.queries))
        return Detections(found.logits[-1], found.boxes[-1])

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        objects, settings = objects_of(batch), self.settings
        hints = noised(objects.boxes, batch.keys) if settings.weights.hints else None
        decoded = self.decoded(batch.images, batch.extent, hints)
        with platforms.full_precision(batch.images.device):
            if isinstance(decoded, Placed):
                return centre_losses(decoded, objects, settings.weights)
            return detection_losses(
                decoded, objects, settings.cost, settings.weights, softmax=isinstance(self.head, Detr)
            )

    def metric(self) -> Metric:
        return BoxMetric(self.num_classes)
