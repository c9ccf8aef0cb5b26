"""What capturing a CUDA graph needs: to know beforehand whether it can be done, and to come out of a failure."""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor


def abandon(device: int, pool: Any) -> None:
    """Bring allocator and random numbers, which torch leaves as they are in a capture that fails, out of it."""
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        with suppress(RuntimeError, AttributeError):
            getattr(torch._C, name)(device, pool)
    generator = torch.cuda.default_generators[device]
    generator.graphsafe_set_state(generator.clone_state())


@contextmanager
def nothing_collected() -> Iterator[None]:
    """A graph of before, held by a cycle as those of finished runs are, must not be freed in the midst of a capture:
    CUDA forbids that, and the capture fails."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def waits_of(step: Callable[..., object], inputs: tuple[Tensor, ...]) -> list[str]:
    """Take the step; what torch says of every place where it waits for the device."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step(*inputs)
        finally:
            torch.cuda.set_sync_debug_mode(before)
    waits = [one for one in found if "synchronizing CUDA operation" in str(one.message)]
    for other in found:
        if other not in waits and "Synchronization debug mode" not in str(other.message):  # nothing to tell a user
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    return [f"{one.filename}:{one.lineno}" for one in waits]
