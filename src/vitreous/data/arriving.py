"""What was read, on its way to a GPU: copied on a stream of its own while the GPU computes with what came before."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitreous import platforms

Tensors = tuple[Tensor, ...]
# Steps that are launched and not done: more would only hold memory, on the device and pinned on the host.
MOST_AHEAD = 3


class Copied(NamedTuple):
    tensors: Tensors
    done: torch.cuda.Event | None  # when they are there; None where nothing had to be copied behind the host's back

    def arrived(self) -> Tensors:
        """For what is launched from now on."""
        if self.done is not None:
            here = torch.cuda.current_stream(self.tensors[0].device)
            here.wait_event(self.done)
            for tensor in self.tensors:  # whose memory came from the other stream, and is needed until this one is done
                tensor.record_stream(here)
        return self.tensors


class Arriving:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._steps: deque[torch.cuda.Event] = deque()  # the ends of those that were launched

    def begin(self, tensors: Sequence[Tensor]) -> Copied:
        if self._stream is None or all(tensor.is_cuda for tensor in tensors):
            return Copied(tuple(platforms.moved(tensor, self.device) for tensor in tensors), None)
        with torch.cuda.stream(self._stream):
            copied = tuple(platforms.moved(tensor, self.device) for tensor in tensors)
            return Copied(copied, self._stream.record_event())

    def one_ahead(self, found: Iterable[Tensors]) -> Iterator[tuple[Tensors, Tensors]]:
        """Each, as it was and as it arrived, while the next is being copied: for whoever waits between them."""
        waiting: tuple[Tensors, Copied] | None = None
        for tensors in found:
            begun = tensors, self.begin(tensors)
            if waiting is not None:
                yield waiting[0], waiting[1].arrived()
            waiting = begun
        if waiting is not None:
            yield waiting[0], waiting[1].arrived()

    def keep_pace(self) -> None:
        """A step was launched: wait for one of some time ago. The host could run hundreds of recorded steps ahead."""
        if self._stream is None:
            return
        end = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        end.record(torch.cuda.current_stream(self.device))
        self._steps.append(end)
        if len(self._steps) > MOST_AHEAD:
            self._steps.popleft().synchronize()
