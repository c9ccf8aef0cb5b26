"""The fit of each kind of task: one line each. The stages are the same for all (`fit`)."""

from typing import Any

from vitreous.data.kinds import TaskKind
from vitreous.errors import UserError
from vitreous.fitting.base import TaskFit
from vitreous.fitting.box_fit import BoxFit, InstanceFit
from vitreous.fitting.class_fit import ClassFit
from vitreous.fitting.pixel_fit import PixelFit

KINDS: dict[TaskKind, type[TaskFit[Any]]] = {
    "classify": ClassFit,
    "label": ClassFit,
    "segment": PixelFit,
    "detect": BoxFit,
    "instances": InstanceFit,
}


def fit_of(task: TaskKind | None, where: str) -> type[TaskFit[Any]]:
    """Pictures without known targets go to the classifier's fit, which says what is missing."""
    if task is not None and task not in KINDS:
        if task == "match":
            raise UserError(
                f"{where}: its pictures have captions, which `fit` does not learn from: `vitreous train flickr8k_clip "
                f"--data {where}` does"
            )
        known = ", ".join(KINDS)
        raise UserError(f"{where}: `fit` has no task {task!r}, only {known}; train a recipe on these pictures")
    return KINDS[task or "classify"]
