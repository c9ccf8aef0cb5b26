"""One CUDA graph for a whole training step."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from vitreous.nn.capture import abandon, nothing_collected, waits_of

Graph = Literal["auto"] | bool
WARM_UP_STEPS = 3  # before a graph is captured: compilation, autotuning and lazy state happen in them
ROOM = 0.8  # share of a device's memory: a graph keeps what its step needs, and evaluation needs more besides

GiveUp = Callable[[str], object]  # is told why a step is not captured


class GraphedStep:
    """A step whose every kernel is launched by one call.

    Small models and batches are bound by launching kernels one by one. The step's Python runs a few times in full, then
    once more to be recorded; from then on only its kernels run. It must be pure device work on tensors of fixed shape,
    with its state (weights, moments, counters) changed in place. A call with inputs of other shapes runs in full.

    With `give_up`, a step that turns out to wait for the host, to need too much memory, or to be refused by CUDA runs
    in full from then on, and `give_up` is told why, once; without it, that is an error.
    """

    def __init__(self, step: Callable[..., None], give_up: GiveUp | None = None) -> None:
        self.step, self.give_up = step, give_up
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()
        self.is_given_up = False

    def __call__(self, *inputs: Tensor) -> None:
        self.calls += 1
        if self.graph is None and not self.is_given_up:
            if self.calls <= WARM_UP_STEPS:
                self._warm_up(inputs)
                return
            self._capture(inputs)
        if self.graph is None or not same_shapes(self.inputs, inputs):
            self.step(*inputs)
            return
        for buffer, tensor in zip(self.inputs, inputs, strict=True):
            buffer.copy_(tensor, non_blocking=True)
        self.graph.replay()

    def _warm_up(self, inputs: tuple[Tensor, ...]) -> None:
        is_tried = self.give_up is not None and self.calls == WARM_UP_STEPS
        waits: list[str] = []
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            if is_tried:
                torch.cuda.reset_peak_memory_stats()
                waits = waits_of(self.step, inputs)
            else:
                self.step(*inputs)
        torch.cuda.current_stream().wait_stream(self.stream)
        if waits:
            self._without(f"the step waits for the host in {waits[0]}")
        elif is_tried and (reason := too_large()) is not None:
            self._without(reason)

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = tuple(tensor.clone() for tensor in inputs)
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        # Meanwhile a thread of the readers pins memory, which is not part of the step.
        capturing = torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode="thread_local")
        try:
            # The outer context restores the stream if the capture fails.
            with nothing_collected(), torch.cuda.stream(torch.cuda.current_stream()), capturing:
                self.step(*self.inputs)
        except RuntimeError as error:
            if self.give_up is None:
                raise
            abandon(self.stream.device_index, pool)
            self._without(f"CUDA refuses to capture the step ({str(error).splitlines()[0]})")
            return
        self.graph = graph

    def _without(self, reason: str) -> None:
        assert self.give_up is not None
        self.is_given_up, self.inputs = True, ()
        self.give_up(reason)


def same_shapes(expected: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> bool:
    return [(one.shape, one.dtype) for one in expected] == [(one.shape, one.dtype) for one in inputs]


def too_large() -> str | None:
    """Why the memory of a step should not be reserved for it; None if there is enough."""
    most, room = torch.cuda.max_memory_allocated(), torch.cuda.get_device_properties().total_memory
    if most <= ROOM * room:
        return None
    return f"a step takes {most / 2**30:.1f} of {room / 2**30:.1f} GiB, which a graph would reserve"
