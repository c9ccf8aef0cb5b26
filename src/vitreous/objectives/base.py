"""Objective: a batch in, named losses out. It knows no device, file, optimizer or step."""

from torch import Tensor, nn

from vitreous.batch import Batch
from vitreous.models.base import Encoder


class Objective(nn.Module):
    """A learning rule around an encoder."""

    encoder: Encoder  # what remains when training ends (may be a property: DINO answers its teacher)

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        """Named losses and other 0-d numbers worth logging; "loss" is the one that is minimised.

        progress: 0-d float tensor from 0 (start of the run) to 1 (its end). Schedules derive from it, so
        nothing extra has to be saved.
        """
        raise NotImplementedError

    def after_step(self, progress: Tensor) -> None:
        """Called after each optimizer step: momentum teachers, queues."""
