"""All tasks and objectives. A new one is one file, and one name here."""

from vitreous.objectives.beit import BEiTSettings
from vitreous.objectives.byol import BYOLSettings
from vitreous.objectives.dino import DINOSettings
from vitreous.objectives.igpt import NextPixelSettings
from vitreous.objectives.mae import MAESettings
from vitreous.objectives.masked import MaskedSettings
from vitreous.objectives.moco import MoCoV3Settings
from vitreous.objectives.simclr import SimCLRSettings
from vitreous.objectives.simmim import SimMIMSettings
from vitreous.objectives.swav import SwAVSettings
from vitreous.objectives.tokeniser import VisualTokensSettings
from vitreous.tasks.classify import ClassifySettings
from vitreous.tasks.detect import DetectSettings
from vitreous.tasks.distill import DistillSettings
from vitreous.tasks.image_text import ImageTextSettings
from vitreous.tasks.mask_queries import MaskQuerySettings
from vitreous.tasks.matching import FunctionMatchingSettings
from vitreous.tasks.segment import SegmentSettings

ObjectiveSettings = (
    ClassifySettings
    | SegmentSettings
    | DetectSettings
    | ImageTextSettings
    | MaskQuerySettings
    | DistillSettings
    | FunctionMatchingSettings
    | MaskedSettings
    | MAESettings
    | SimMIMSettings
    | SimCLRSettings
    | MoCoV3Settings
    | BYOLSettings
    | DINOSettings
    | SwAVSettings
    | NextPixelSettings
    | VisualTokensSettings
    | BEiTSettings
)
TaskSettings = ClassifySettings | SegmentSettings | DetectSettings | ImageTextSettings | MaskQuerySettings


def task_settings(objective: ObjectiveSettings) -> TaskSettings | None:
    """The settings of the task that an objective leaves behind; None if it leaves only an encoder."""
    if isinstance(objective, DistillSettings):
        return objective.student
    return objective if isinstance(objective, TaskSettings) else None


__all__ = [
    "ClassifySettings",
    "DetectSettings",
    "DistillSettings",
    "ImageTextSettings",
    "MaskQuerySettings",
    "ObjectiveSettings",
    "SegmentSettings",
    "TaskSettings",
    "task_settings",
]
