"""The numbers of a run between two logged lines."""

from collections.abc import Mapping

import torch
from torch import Tensor

from vitreous import platforms
from vitreous.nn.gather import gather
from vitreous.training.devices import World


class Meter:
    """The mean of each number since it was last read, summed on the device."""

    def __init__(self, world: World) -> None:
        self.world, self.wide = world, platforms.widest(world.device)
        self.sums: dict[str, Tensor] = {}  # name -> (2,): sum, count

    def add(self, numbers: dict[str, Tensor], parts: int = 1) -> None:
        """`numbers` are about one of so many parts of a step: every step counts alike."""
        for name, number in numbers.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros(2, dtype=self.wide, device=self.world.device)
            added = torch.stack([number.detach().to(self.wide), torch.ones_like(number, dtype=self.wide)])
            self.sums[name].add_(added, alpha=1 / parts)

    def read(self) -> dict[str, float]:
        """The means over all ranks by name, the loss first; then the sums start again."""
        if not self.sums:
            return {}
        totals = self.world.mean(torch.stack(list(self.sums.values())))  # in one exchange
        for own in self.sums.values():
            own.zero_()
        found = {name: float(total[0] / total[1]) for name, total in zip(self.sums, totals, strict=True)}
        # In an order of its own: a file returns the names in a different order than they were added.
        return {name: found[name] for name in sorted(found, key=lambda name: (name != "loss", name))}

    def state(self) -> dict[str, Tensor]:
        """Of each number, a row per rank. All ranks must call this together."""
        if not self.sums:
            return {}
        rows = gather(torch.stack(list(self.sums.values()))[None])
        return {name: rows[:, index].clone() for index, name in enumerate(self.sums)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Every rank takes its own row, so that what is added later rounds as if it had never stopped; of another
        number of ranks, the mean."""
        self.sums = {}
        for name, saved in state.items():
            rows = saved.view(-1, 2)  # earlier versions saved the mean alone
            own = rows[self.world.rank] if len(rows) == self.world.size else rows.mean(0)
            self.sums[name] = own.to(self.world.device, self.wide, copy=True)
