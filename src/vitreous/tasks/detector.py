"""What all detectors share: an encoder, and a head that reads its maps."""

from torch import Tensor

from vitreous.models.base import Encoder
from vitreous.tasks.base import Metric, Task
from vitreous.tasks.box_metric import BoxMetric


class Detect(Task):
    """`predict` and `forward` are the head's own."""

    looks_at_extent = True

    def __init__(self, encoder: Encoder, num_classes: int, num_maps: int) -> None:
        super().__init__()
        self.encoder, self.num_classes, self.num_maps = encoder, num_classes, num_maps

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """The maps that the head reads, finest first."""
        return tuple(self.encoder(images).maps[-self.num_maps :])

    def metric(self) -> Metric:
        return BoxMetric(self.num_classes)
