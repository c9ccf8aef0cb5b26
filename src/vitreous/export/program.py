"""A task as a torch.export program (.pt2). Loading such a file runs code it holds: read only what you wrote."""

from pathlib import Path

import torch
from torch import Tensor, nn

from vitreous.tasks.base import Task


class Predicting(nn.Module):
    """Normalised (B, 3, h, w) float32 -> the task's raw outputs by name, in float32 whatever is computed with inside.

    Of a task with one output, that alone: most users have a classifier, and want its logits.
    """

    def __init__(self, task: Task, dtype: torch.dtype) -> None:
        super().__init__()
        self.task, self.dtype = task.to(dtype), dtype

    def forward(self, tensors: Tensor) -> Tensor | dict[str, Tensor]:
        found = {name: one.float() for name, one in self.task.predict(tensors.to(self.dtype)).outputs().items()}
        return next(iter(found.values())) if len(found) == 1 else found


def trace(task: Task, size_px: tuple[int, int], dtype: torch.dtype) -> torch.export.ExportedProgram:
    """For any number of pictures of this size."""
    example = torch.zeros(2, 3, *size_px)  # two, so that the batch is not taken for a constant
    batch = torch.export.Dim("batch", min=1, max=4096)
    with torch.no_grad():
        return torch.export.export(Predicting(task, dtype), (example,), dynamic_shapes={"tensors": {0: batch}})


def write_program(task: Task, size_px: tuple[int, int], dtype: torch.dtype, path: Path) -> None:
    torch.export.save(trace(task, size_px, dtype), path)
