"""What capturing a CUDA graph needs: knowing beforehand whether it can be done, and recovering from a failure."""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor


def abandon(device: int, pool: Any) -> None:
    """End the capture for the allocator and the random number generator, which torch forgets if a capture fails."""
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        with suppress(RuntimeError, AttributeError):
            getattr(torch._C, name)(device, pool)
    generator = torch.cuda.default_generators[device]
    generator.graphsafe_set_state(generator.clone_state())


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Inside, no earlier graph is freed that a reference cycle keeps alive, as in finished runs: CUDA forbids that
    during a capture, which would fail."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def waits_of(step: Callable[..., object], inputs: tuple[Tensor, ...]) -> list[str]:
    """Take the step; returns torch's message for every place where it waits for the device."""
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
