"""Half precision in passes without gradients: what autocast would cast in every pass is cast once."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitreous import platforms

# The functions that models call with weights: products, which autocast runs in half precision, and a norm, which it
# does not.
CALLED: tuple[Callable[..., Any], ...] = (F.linear, F.conv2d, F.layer_norm)


M = TypeVar("M", bound=nn.Module)


def half_where_native(device: torch.device) -> torch.autocast:
    """bfloat16 where it is at least twice as fast: on a GPU, and on a CPU with instructions for it; elsewhere, the
    precision that a model was saved in."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=platforms.has_bfloat16(device))


class CastOnce(TorchFunctionMode):
    """Inside, under autocast, weights are cast only once, and norms of half-precision tokens take and return half
    precision, still with sums in float32. Autocast alone casts every weight in every pass, which is most of the time
    for a single picture, and converts all tokens to float32 and back for every norm.

    Weights must not change during the life of this object. Code that asks for full precision (autocast switched off
    inside) gets the original weights.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cast: dict[int, tuple[Tensor, Tensor]] = {}  # by the weight's id: the weight, and in half precision

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function not in CALLED or not torch.is_autocast_enabled(args[0].device.type):
            return function(*args, **kwargs)
        kind = args[0].device.type
        if function is F.layer_norm and args[0].dtype != torch.get_autocast_dtype(kind):
            return function(*args, **kwargs)
        args, kwargs = tuple(map(self._once, args)), {name: self._once(one) for name, one in kwargs.items()}
        with torch.autocast(kind, enabled=function is not F.layer_norm):
            return function(*args, **kwargs)

    def _once(self, given: Any) -> Any:
        """A weight in half precision; anything else as it is."""
        if not isinstance(given, nn.Parameter) or given.dtype != torch.float32:
            return given
        if id(given) not in self.cast:
            wanted = torch.get_autocast_dtype(given.device.type)
            self.cast[id(given)] = given, given.detach().to(wanted)
        return self.cast[id(given)][1]

    def copied(self, module: M) -> M:
        """A copy of the module with the weights cast so far, for code that cannot run inside."""
        known: dict[int, Any] = {key: nn.Parameter(cast, requires_grad=False) for key, (_, cast) in self.cast.items()}
        return copy.deepcopy(module, known)
