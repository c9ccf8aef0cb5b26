"""How well a task does, over everything a loader gives."""

from collections.abc import Iterable

import torch

from vitreous.batch import Batch
from vitreous.tasks.base import Task


@torch.no_grad()
def score(task: Task, batches: Iterable[Batch]) -> dict[str, float]:
    metric = task.metric()
    for batch in batches:
        metric.update(task.predict(batch.images, batch.extent), batch)
    return metric.compute()
