"""Half precision in passes without gradients: what autocast would cast in every pass is cast once."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitreous import platforms

# What models call with weights: products, which autocast takes in half precision, and a norm, which it does not.
CALLED: tuple[Callable[..., Any], ...] = (F.linear, F.conv2d, F.layer_norm)


M = TypeVar("M", bound=nn.Module)


def half_where_native(device: torch.device) -> torch.autocast:
    """bfloat16 where it is twice as fast at least: on a GPU, and on a CPU with instructions for it; elsewhere, what a
    model was saved in."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=platforms.has_bfloat16(device))


class CastOnce(TorchFunctionMode):
    """Inside, under autocast, products find their weights cast already, and the norms of half-precision tokens take and
    return half precision, with their sums in float32 as ever. Autocast alone casts every weight in every pass, which is
    most of the time of a single picture, and brings all tokens to float32 and back for every norm.

    Weights must stay as they are for as long as this lives. What asks for full precision (autocast switched off inside)
    gets the weights themselves.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cast: dict[int, tuple[Tensor, Tensor]] = {}  # by the weight's identity: itself, and in half precision

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
        """A module with the cast weights, as far as there are any, for what cannot run inside."""
        known: dict[int, Any] = {key: nn.Parameter(cast, requires_grad=False) for key, (_, cast) in self.cast.items()}
        return copy.deepcopy(module, known)
