"""Averages of the weights over a run, which are often better than the last weights."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.nn import shards
from vitreous.training.checkpoint import restore


@dataclass(frozen=True, kw_only=True)
class AverageSettings:
    """polyak: the same factor from the first step on, starting at the initial weights: the ViT paper's averaging "with
    a factor of 0.9999" (section 4.1, the headline numbers on ImageNet). It remembers its start for about
    1 / (1 - factor) steps, which suits fine-tuning. ema: the same, but the n-th update keeps at most
    (1 + n) / (10 + n) of the average, so that a short run, or one from random weights, soon forgets its start."""

    kind: Literal["none", "ema", "polyak"] = "none"  # ema: for training from scratch; polyak: for fine-tuning
    factor: float = 0.9999  # share of the average that a step keeps

    def build(self, module: nn.Module) -> "Average":
        """An average that starts at the current weights of `module`, on its device."""
        if not 0 <= self.factor < 1:
            raise UserError(f"average.factor: {self.factor} is not in [0, 1)")
        return Average(self, module)


class Average:
    """An average of all parameters of a module; of nothing if the settings say none."""

    _is_counted_elsewhere = False

    def __init__(self, settings: AverageSettings, module: nn.Module) -> None:
        self.settings = settings
        parameters = dict(module.named_parameters()) if self.is_on else {}
        buffers = dict(module.named_buffers()) if self.is_on else {}
        self._parameters, self._buffer_names = parameters, list(buffers)
        self._weights: list[Tensor] = [shards.local(weight) for weight in parameters.values()]
        self._buffers: list[Tensor] = list(buffers.values())
        # Always float32: bf16 cannot hold steps of one part in 10,000.
        self._shadows = [weight.detach().to(torch.float32, copy=True) for weight in self._weights]
        self._copies = [buffer.clone() for buffer in self._buffers]
        device = self._weights[0].device if self._weights else None
        self._updates = torch.zeros((), dtype=torch.int64, device=device)
        # The share of the weights that a step adds; computed as 1 - factor in float32, it would be off by 2 in 10,000.
        self._least_share = torch.tensor(1 - settings.factor, device=device)
        self._share = self._least_share
        self._averaged_here = list(zip(self._weights, self._shadows, strict=True))  # by `update`

    @property
    def is_on(self) -> bool:
        return self.settings.kind != "none"

    def leave_to_another(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """The averages of these parameters, which the caller updates from now on (training/one_pass), with `next_share`
        at every step; `update` still does the others."""
        left = {id(parameter) for parameter in parameters}
        shadows = {id(weight): shadow for weight, shadow in self._averaged_here}
        self._averaged_here = [pair for pair in self._averaged_here if id(pair[0]) not in left]
        self._is_counted_elsewhere = True
        return [shadows[id(parameter)] for parameter in parameters]

    @torch.no_grad()
    def next_share(self) -> Tensor:
        """The share of the weights in this step's average."""
        self._updates += 1
        self._share = self._least_share
        if self.settings.kind == "ema":
            self._share = torch.maximum(self._least_share, 9 / (10 + self._updates))
        return self._share

    @torch.no_grad()
    def update(self) -> None:
        """Add the weights after a step. Buffers are copied: a mean of counters would be meaningless."""
        if not self.is_on:
            return
        if not self._is_counted_elsewhere:
            self.next_share()
        if self._averaged_here:
            weights, shadows = (list(each) for each in zip(*self._averaged_here, strict=True))
            change = torch._foreach_sub(weights, shadows)
            torch._foreach_mul_(change, self._share)
            torch._foreach_add_(shadows, change)
        if self._copies:
            torch._foreach_copy_(self._copies, self._buffers)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Inside, the module has the averaged weights; afterwards its own, bit for bit."""
        live = [*self._weights, *self._buffers]
        if not live:
            yield
            return
        with torch.no_grad():
            kept = [tensor.clone() for tensor in live]
            torch._foreach_copy_(live, [*self._shadows, *self._copies])
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(live, kept)

    def state(self) -> dict[str, Tensor]:
        """The live tensors (not copies): `updates`, and the average by the module's names."""
        if not self.is_on:
            return {}
        averaged = {
            name: shards.beside(shadow, parameter)
            for (name, parameter), shadow in zip(self._parameters.items(), self._shadows, strict=True)
        }
        return {"updates": self._updates, **averaged, **dict(zip(self._buffer_names, self._copies, strict=True))}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        restore(self.state(), state, of="average")
