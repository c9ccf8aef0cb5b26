"""How well a task does, over everything a loader gives."""

from collections.abc import Iterable

import torch

from vitreous.batch import Batch
from vitreous.nn.graphed import Graphed
from vitreous.tasks.base import Task


@torch.no_grad()
def score(task: Task, batches: Iterable[Batch]) -> dict[str, float]:
    metric, predict = task.metric(), Graphed(task, lambda task, images, extent: task.predict(images, extent))
    for batch in batches:
        metric.update(predict(batch.images, batch.extent), batch)
    return metric.compute()
