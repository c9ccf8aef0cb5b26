"""Every task there is. A new one is one file and one name here."""

from vitreous.tasks.classify import ClassifySettings

ObjectiveSettings = ClassifySettings
TaskSettings = ClassifySettings

__all__ = ["ClassifySettings", "ObjectiveSettings", "TaskSettings"]
