"""The numbers of a run between two logged lines."""

from collections.abc import Mapping

import torch
from torch import Tensor

from vitreous import platforms
from vitreous.training.devices import World


class Meter:
    """The mean of each number since it was last read, summed on the device."""

    def __init__(self, world: World) -> None:
        self.world, self.wide = world, platforms.widest(world.device)
        self.sums: dict[str, Tensor] = {}  # name -> (2,): sum, count

    def add(self, numbers: dict[str, Tensor]) -> None:
        for name, number in numbers.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros(2, dtype=self.wide, device=self.world.device)
            self.sums[name] += torch.stack([number.detach().to(self.wide), torch.ones_like(number, dtype=self.wide)])

    def read(self) -> dict[str, float]:
        """The means by name, the loss first; then the sums start again."""
        totals = self.state()
        for total in self.sums.values():
            total.zero_()
        # In an order of its own: a file returns the names in a different order than they were added.
        names = sorted(totals, key=lambda name: (name != "loss", name))
        return {name: float(totals[name][0] / totals[name][1]) for name in names}

    def state(self) -> dict[str, Tensor]:
        """The sum and count of each, over all ranks, which must all call this together."""
        if not self.sums:
            return {}
        totals = self.world.mean(torch.stack(list(self.sums.values())))  # in one exchange
        return {name: total.clone() for name, total in zip(self.sums, totals, strict=True)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.sums = {name: total.to(self.world.device, self.wide) for name, total in state.items()}
