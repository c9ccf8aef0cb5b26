"""Detection by queries, each of which predicts one box or none: DETR and Deformable DETR."""

from torch import Tensor

from vitreous import platforms
from vitreous.batch import Batch
from vitreous.models.base import Encoder
from vitreous.nn.deformable_detr import DeformableDetr
from vitreous.nn.detr import Decoded, Detr
from vitreous.nn.pyramid import SimplePyramid
from vitreous.tasks.detect_loss import CostSettings, LossSettings, detection_losses, noised, objects_of
from vitreous.tasks.detector import Detect
from vitreous.tasks.predictions import Detections


class DetectByQueries(Detect):
    def __init__(
        self,
        encoder: Encoder,
        pyramid: SimplePyramid | None,
        head: Detr | DeformableDetr,
        *,
        num_classes: int,
        num_maps: int,
        cost: CostSettings,
        weights: LossSettings,
    ) -> None:
        super().__init__(encoder, num_classes, num_maps)
        self.pyramid, self.head = pyramid, head
        self.cost, self.weights = cost, weights

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        return super().maps(images) if self.pyramid is None else tuple(self.pyramid(self.encoder(images).maps[-1]))

    def decoded(self, images: Tensor, extent: Tensor | None = None, hints: Tensor | None = None) -> Decoded:
        """The predictions of every layer of the decoder. extent: (B, 2), how many rows and columns of the images are
        picture. hints: (B, M, 4), boxes to start from, in addition to those that are proposed."""
        more = () if hints is None else (hints,)
        found: Decoded = self.head(self.maps(images), extent, (images.shape[-2], images.shape[-1]), *more)
        return found

    def predict(self, images: Tensor, extent: Tensor | None = None) -> Detections:
        found = self.decoded(images, extent)
        return Detections(found.logits[-1], found.boxes[-1])

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        objects = objects_of(batch)
        hints = noised(objects.boxes, batch.keys) if self.weights.hints else None
        decoded = self.decoded(batch.images, batch.extent, hints)
        with platforms.full_precision(batch.images.device):
            return detection_losses(decoded, objects, self.cost, self.weights, softmax=self.head.softmax)
