"""Objective: a batch in, named losses out. It knows no device, file, optimizer or step."""

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from vitreous.batch import Batch
from vitreous.models.base import Encoder


class Objective(nn.Module):
    """A learning rule around an encoder."""

    encoder: Encoder  # what remains when training ends (may be a property: DINO returns its teacher)
    across_samples: bool = False  # a sample's loss depends on the others in its batch, so a batch cannot be split
    on_device: bool = True  # a step waits for nothing on the host, so it can be a CUDA graph

    @property
    def learner(self) -> Encoder:
        """The encoder that the gradients update."""
        return self.encoder

    @property
    def task(self) -> "Objective | None":
        """The part that makes predictions about pictures, if there is one."""
        return None

    def look(self, batches: Iterable[Batch]) -> None:
        """Called once, before the first step of a run, with all training pictures, not augmented (colour clusters)."""

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        """Named losses and other 0-d numbers worth logging; "loss" is minimised.

        progress: 0-d float tensor from 0 (start of the run) to 1 (its end). Schedules derive from it, so nothing extra
        has to be saved.
        """
        raise NotImplementedError

    def after_step(self, progress: Tensor) -> None:
        """Called after each optimizer step: momentum teachers, queues."""

    def concern(self, numbers: Mapping[str, float]) -> str | None:
        """A line for the user if the logged numbers show that something is wrong, and why."""
        return None
