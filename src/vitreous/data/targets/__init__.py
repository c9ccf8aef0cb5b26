"""What a source knows about its pictures beside the pixels, one file per kind."""

from vitreous.data.targets.base import NoTargets, Shares, Targets
from vitreous.data.targets.boxes import Boxes
from vitreous.data.targets.captions import Captions
from vitreous.data.targets.instances import Instances
from vitreous.data.targets.labels import ClassLabels, ManyLabels, PseudoLabels
from vitreous.data.targets.pixels import Masks, PixelLabels

__all__ = [
    "Boxes",
    "Captions",
    "ClassLabels",
    "Instances",
    "ManyLabels",
    "Masks",
    "NoTargets",
    "PixelLabels",
    "PseudoLabels",
    "Shares",
    "Targets",
]
