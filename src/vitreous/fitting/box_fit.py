"""What detectors bring to a fit: their drafts. Scores are calibrated as they are measured."""

from vitreous.fitting.base import ByPictureFit
from vitreous.fitting.box_drafts import BoxDrafts


class BoxFit(ByPictureFit):
    drafts = BoxDrafts
