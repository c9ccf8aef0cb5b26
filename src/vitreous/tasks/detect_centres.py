"""Detection by places of a map, each of which predicts the object centred there: CenterNet."""

from torch import Tensor

from vitreous import platforms
from vitreous.batch import Batch
from vitreous.models.base import Encoder
from vitreous.nn.centres import Centres, Placed, surest
from vitreous.tasks.centre_loss import centre_losses
from vitreous.tasks.detect_loss import LossSettings, objects_of
from vitreous.tasks.detector import Detect
from vitreous.tasks.predictions import Detections


class DetectByCentres(Detect):
    def __init__(
        self, encoder: Encoder, head: Centres, *, num_classes: int, num_maps: int, most: int, weights: LossSettings
    ) -> None:
        super().__init__(encoder, num_classes, num_maps)
        self.head, self.most, self.weights = head, most, weights

    def placed(self, images: Tensor, extent: Tensor | None = None) -> Placed:
        """The predictions of every place. extent: (B, 2), how many rows and columns of the images are picture."""
        found: Placed = self.head(self.maps(images), extent, (images.shape[-2], images.shape[-1]))
        return found

    def predict(self, images: Tensor, extent: Tensor | None = None) -> Detections:
        return Detections(*surest(self.placed(images, extent), self.most))

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        objects, placed = objects_of(batch), self.placed(batch.images, batch.extent)
        with platforms.full_precision(batch.images.device):
            return centre_losses(placed, objects, self.weights)
