"""Models that have only shapes: to be filled with weights, or to be counted."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


@contextmanager
def shapes_only() -> Iterator[None]:
    """What is built here takes no memory and is not initialised."""
    with torch.device("meta"), _Unfilled():
        yield


class _Unfilled(TorchFunctionMode):
    """Skips initialisation, and joins shapes by hand. torch would import its whole compiler for either on the meta
    device, which takes longer than to import torch itself."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        if func is torch.cat and all(tensor.is_meta for tensor in args[0]):
            return _joined(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _joined(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    shapes = [list(tensor.shape) for tensor in tensors]
    length = sum(shape.pop(dim) for shape in shapes)
    if any(shape != shapes[0] for shape in shapes):
        raise RuntimeError("tensors of these shapes cannot be joined")
    shapes[0].insert(dim % tensors[0].ndim, length)
    return tensors[0].new_empty(shapes[0])
