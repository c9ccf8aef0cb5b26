"""Every task and objective there is. A new one is one file and one name here."""

from vitreous.tasks.classify import ClassifySettings

ObjectiveSettings = ClassifySettings
TaughtSettings = ()  # those that learn from a trained model
TaskSettings = ClassifySettings


def task_settings(objective: ObjectiveSettings) -> TaskSettings | None:
    """Of the task that an objective leaves behind; None where it leaves an encoder alone."""
    return objective if isinstance(objective, ClassifySettings) else None


__all__ = ["ClassifySettings", "ObjectiveSettings", "TaskSettings", "TaughtSettings", "task_settings"]
