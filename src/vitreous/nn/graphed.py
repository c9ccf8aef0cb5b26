"""Forward passes without gradients, as fast as a GPU can run them: one call launches every kernel of a batch.

With a small model, or a few pictures, a GPU finishes each kernel before the host has launched the next. So a pass over
a batch size that recurs is recorded as a CUDA graph, which costs about as much as one pass.
"""

import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from vitreous.errors import first_line
from vitreous.nn.capture import abandon, nothing_collected, waits_of
from vitreous.nn.folded import folded
from vitreous.nn.half import CastOnce
from vitreous.nn.shards import is_sharded

M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")
Inputs = tuple[Tensor | None, ...]

PLAIN_CALLS = 2  # before a batch size is recorded: a pass must have run, and a single batch needs no graph
MOST_GRAPHS = 8  # per object; the least recently used goes first

# Concurrent passes would only wait for each other on the GPU; and nothing may interfere with one being recorded.
_TURN = threading.RLock()


class Graphed(Generic[M, T]):
    """`forward(module, *inputs)`, of tensors (B, ...); an input may be None. It returns tensors (B, ...), alone or in
    dataclasses, dicts and tuples, which the caller may keep.

    Under autocast, weights are cast once, and fixed norms are folded into the convolutions before them, so weights must
    not change during the life of this object. A batch smaller than a recorded one is padded to it and cut again. With
    gradients, on other devices, in training mode and with sharded weights, `forward` is simply called.

    compiled: a mode of torch.compile, which also fuses kernels. It takes most of a minute per batch size and saves 10
    to 20 % of the time: it pays for millions of pictures.
    """

    def __init__(self, module: M, forward: Callable[..., T], compiled: str | None = None) -> None:
        self.module, self.forward, self.compiled = module, forward, compiled
        self.refused: str | None = None  # why nothing can be recorded
        self._is_whole = not any(map(is_sharded, module.parameters()))
        self._casting = CastOnce()
        self._short: M | None = None  # the module in its short form for half precision
        self._asked: Counter[Any] = Counter()
        self._graphs: OrderedDict[Any, _Graph[T]] = OrderedDict()  # by signature and batch size
        self._pool: Any = None
        self._fused: Callable[..., T] | None = None

    def __call__(self, *inputs: Tensor | None) -> T:
        first = inputs[0]
        assert first is not None
        if not (self._is_on_gpu(first) and self._is_served()):
            return self.forward(self.module, *inputs)
        with _TURN:
            return self._pass(inputs)

    def forget(self) -> None:
        """Free the memory of all recordings."""
        with _TURN:
            self._graphs.clear()
            self._asked.clear()
            self._casting, self._pool, self._fused, self._short = CastOnce(), None, None, None

    def _is_served(self) -> bool:
        is_fixed = self._is_whole and not (torch.is_grad_enabled() or self.module.training)
        return is_fixed and not torch.compiler.is_compiling()

    @staticmethod
    def _is_on_gpu(tensor: Tensor) -> bool:
        return tensor.is_cuda

    def _pass(self, inputs: Inputs) -> T:
        signature, num = _signature(inputs), _num(inputs)
        sizes = [size for known, size in self._graphs if known == signature and size >= num]
        size = min(sizes, default=None)
        if self.refused is None and (size is None or 2 * num <= size):
            self._asked[signature, num] += 1
            if self._asked[signature, num] > PLAIN_CALLS:
                size = self._record(signature, inputs) or size
        if size is None:
            is_next = self.refused is None and self._asked[signature, num] == PLAIN_CALLS
            return _on_the_side(lambda: self._tried(inputs) if is_next else self._forward(inputs))
        self._graphs.move_to_end((signature, size))
        return self._graphs[signature, size](inputs)

    def _forward(self, inputs: Inputs) -> T:
        if self._fused is not None:
            return self._fused(*inputs)
        short = self._shortened()
        with self._casting:
            found = self.forward(short, *inputs)
        if not self.compiled:
            return found
        module = self._casting.copied(short)  # with the weights that were just cast
        fused = torch.compile(self.forward, dynamic=False, mode=self.compiled)
        self._fused = lambda *given: fused(module, *given)
        return self._fused(*inputs)  # compiled here, not in the pass that is watched for waits

    def _shortened(self) -> M:
        if not torch.is_autocast_enabled("cuda"):
            return self.module
        if self._short is None:
            self._short = folded(self.module, torch.get_autocast_dtype("cuda"))
        return self._short

    def _tried(self, inputs: Inputs) -> T:
        """The pass before the recorded one: a pass that waits for the device cannot be recorded."""
        found: list[T] = []
        if waits := waits_of(lambda: found.append(self._forward(inputs)), ()):
            self._refuse(f"it waits for the device in {waits[0]}")
        return found[0]

    def _refuse(self, reason: str) -> None:
        self.refused = reason
        print(f"kernels are launched one by one, since this cannot be a CUDA graph: {reason}", file=sys.stderr)

    def _record(self, signature: Any, inputs: Inputs) -> int | None:
        """The size of a new graph; None if there can be none."""
        while len(self._graphs) >= MOST_GRAPHS:
            self._graphs.popitem(last=False)
        num = _num(inputs)
        try:
            # All graphs share one memory pool: a graph's outputs are copied before another runs.
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            self._graphs[signature, num] = _Graph(self._forward, inputs, self._pool)
        except RuntimeError as error:
            abandon(torch.cuda.current_device(), self._pool)
            self._pool = None
            self._refuse(first_line(error))
            return None
        return num


class _Graph(Generic[T]):
    """A pass over one batch size, and where it reads and writes."""

    def __init__(self, forward: Callable[[Inputs], T], inputs: Inputs, pool: Any) -> None:
        self.inputs = tuple(None if one is None else one.clone() for one in inputs)
        self.replay, self.found = recorded(lambda: forward(self.inputs), pool)

    def __call__(self, inputs: Inputs) -> T:
        num = _num(inputs)
        for buffer, given in zip(self.inputs, inputs, strict=True):
            if buffer is not None and given is not None:
                buffer[:num].copy_(given, non_blocking=True)
        self.replay()
        return mapped(self.found, lambda tensor: tensor[:num].clone())


def recorded(run: Callable[[], T], pool: Any) -> tuple[Callable[[], None], T]:
    """A function that repeats the kernels of a pass, and the tensors that it writes. Not by `torch.cuda.graph`, which
    first empties the memory cache: during training that costs more than the graph saves."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with nothing_collected(), torch.cuda.stream(_side(torch.cuda.current_device())):
        # Other threads may allocate and copy meanwhile: readers pin memory.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            found = run()
        finally:
            graph.capture_end()
    return graph.replay, found


@cache
def _side(device: int) -> torch.cuda.Stream:
    """One per GPU, as the default stream cannot be recorded, and libraries keep a workspace for each stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _on_the_side(run: Callable[[], T]) -> T:
    """On the stream that will be recorded, so that libraries have set up what they need there."""
    side, here = _side(torch.cuda.current_device()), torch.cuda.current_stream()
    side.wait_stream(here)
    with torch.cuda.stream(side):
        found = run()
    here.wait_stream(side)
    return found


def _num(inputs: Inputs) -> int:
    assert inputs[0] is not None
    return len(inputs[0])


def _signature(inputs: Inputs) -> Any:
    """Everything that a graph depends on, except the batch size."""
    shapes = tuple(None if one is None else (one.dtype, tuple(one.shape[1:])) for one in inputs)
    return shapes, torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None


def mapped(found: T, change: Callable[[Tensor], Tensor]) -> T:
    """The same structure with every tensor changed; anything else stays."""
    made: Any = found
    if isinstance(found, Tensor):
        made = change(found)
    elif is_dataclass(found) and not isinstance(found, type):
        made = replace(found, **{field.name: mapped(getattr(found, field.name), change) for field in fields(found)})
    elif isinstance(found, dict):
        made = {name: mapped(one, change) for name, one in found.items()}
    elif isinstance(found, tuple):
        made = tuple(mapped(one, change) for one in found)
    return made  # type: ignore[no-any-return]
