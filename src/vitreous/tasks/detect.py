"""Detection: boxes with their classes, by DETR (Carion et al. 2020), Deformable DETR (Zhu et al. 2021), or CenterNet
(Zhou et al. 2019).

On the maps of any encoder. None needs anchors or a search for duplicates: a query predicts one box, or none.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vitreous.errors import UserError
from vitreous.models.base import Encoder
from vitreous.nn.centres import Centres
from vitreous.nn.deformable_detr import DeformableDetr, DeformableSizes
from vitreous.nn.detr import Detr, Sizes
from vitreous.nn.pyramid import SCALES, SimplePyramid
from vitreous.tasks.detect_centres import DetectByCentres
from vitreous.tasks.detect_loss import CostSettings, LossSettings
from vitreous.tasks.detect_queries import DetectByQueries
from vitreous.tasks.detector import Detect

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

    def build(self, encoder: Encoder, classes: tuple[str, ...]) -> Detect:
        self._check(classes)
        built = {"detr": self._detr, "deformable": self._deformable, "centres": self._centres}
        return built[self.decoder](encoder, len(classes))

    def _check(self, classes: tuple[str, ...]) -> None:
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

    def _detr(self, encoder: Encoder, num_classes: int) -> Detect:
        head = Detr(encoder.outputs[-1].width, num_classes, Sizes(**self._sizes()))
        return self._by_queries(encoder, None, head, num_classes)

    def _deformable(self, encoder: Encoder, num_classes: int) -> Detect:
        pyramid, widths = None, self._widths(encoder)
        if len(encoder.outputs) == 1:  # a plain ViT
            scales = (1.0,) if self.num_maps == 1 else SCALES[SCALES.index(self.finest) :][: self.num_maps]
            pyramid = SimplePyramid(widths[0], self.width, scales)
            widths = [self.width] * len(scales)
        more = {name: getattr(self, name) for name in ("levels", "points", "refine", "two_stage")}
        head = DeformableDetr(widths, num_classes, DeformableSizes(**self._sizes(), **more))
        return self._by_queries(encoder, pyramid, head, num_classes)

    def _by_queries(
        self, encoder: Encoder, pyramid: SimplePyramid | None, head: Detr | DeformableDetr, num_classes: int
    ) -> Detect:
        counts = {"num_classes": num_classes, "num_maps": self.num_maps}
        return DetectByQueries(encoder, pyramid, head, **counts, cost=self.cost, weights=self.weights)

    def _centres(self, encoder: Encoder, num_classes: int) -> Detect:
        enlarged = self.finest if len(encoder.outputs) == 1 else 1
        widths = self._widths(encoder)
        head = Centres(widths, num_classes, width=self.width, depth=self.encoder_depth, enlarged=enlarged)
        counts = {"num_classes": num_classes, "num_maps": self.num_maps, "most": self.queries}
        return DetectByCentres(encoder, head, **counts, weights=self.weights)

    @property
    def num_maps(self) -> int:
        """Of an encoder's maps that are used, the coarsest."""
        return 1 if self.decoder == "detr" else min(self.levels, MOST_MAPS)

    def _widths(self, encoder: Encoder) -> list[int]:
        return [output.width for output in encoder.outputs[-self.num_maps :]]

    def _sizes(self) -> dict[str, Any]:
        names = ("queries", "width", "heads", "mlp_width", "encoder_depth", "decoder_depth", "dropout")
        return {name: getattr(self, name) for name in names}
