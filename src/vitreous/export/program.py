"""A task as a torch.export program (.pt2). Loading such a file runs code it holds: read only what you wrote."""

import torch
from torch import Tensor, nn

from vitreous.prediction.reading import Fitting
from vitreous.tasks.base import Task


class Predicting(nn.Module):
    """Normalised (B, 3, h, w) float32 -> the task's raw outputs by name, in float32 whatever is computed with inside.
    `extent` (B, 2) int64: how many rows and columns of each are picture.

    Of a task with one output, that alone: most users have a classifier, and want its logits.
    """

    def __init__(self, task: Task, dtype: torch.dtype) -> None:
        super().__init__()
        self.task, self.dtype = task.to(dtype), dtype

    def forward(self, tensors: Tensor, extent: Tensor | None = None) -> Tensor | dict[str, Tensor]:
        prediction = self.task.predict(tensors.to(self.dtype), extent)
        found = {name: one.float() for name, one in prediction.outputs().items()}
        return next(iter(found.values())) if len(found) == 1 else found


def trace(
    task: Task, size_px: tuple[int, int], dtype: torch.dtype, with_extent: bool = False
) -> torch.export.ExportedProgram:
    """For any number of pictures of this size; `with_extent`: it takes how much of each is picture."""
    examples = {"tensors": torch.zeros(2, 3, *size_px)}  # two, so that the batch is not taken for a constant
    if with_extent:
        examples["extent"] = torch.tensor([size_px] * 2)
    batch = torch.export.Dim("batch", min=1, max=4096)
    with torch.no_grad():
        return torch.export.export(
            Predicting(task, dtype), tuple(examples.values()), dynamic_shapes={name: {0: batch} for name in examples}
        )


def takes_extent(task: Task, fitting: Fitting) -> bool:
    """Whether the task needs to know how much of an input is picture."""
    return task.looks_at_extent and fitting.crop == "letterbox"
