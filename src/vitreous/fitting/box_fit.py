"""What models that find objects bring to a fit: their drafts. Scores are calibrated as they are measured."""

from vitreous.fitting.base import ByPictureFit
from vitreous.fitting.box_drafts import BoxDrafts
from vitreous.fitting.instance_drafts import InstanceDrafts


class BoxFit(ByPictureFit):
    drafts = BoxDrafts


class InstanceFit(ByPictureFit):
    drafts = InstanceDrafts
