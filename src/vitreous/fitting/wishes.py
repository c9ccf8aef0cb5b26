"""Wishes: what the user asked for, and the hardware."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from vitreous.training.devices import World

Balance = Literal["auto", "none", "sampling", "weights"]

DEFAULT_S = 600.0  # the time of a fit if neither a time nor a length was given
SMALL_PX = 40  # pictures up to this size are trained on as they are
KEEPS_WEIGHTS = ("model.picture_px", "model.dropout", "model.stochastic_depth")


@dataclass(frozen=True, kw_only=True)
class Hardware:
    kind: Literal["cpu", "cuda"]
    name: str

    @classmethod
    def here(cls, device: str = "auto") -> "Hardware":
        place = World.join(device).device
        if place.type == "cuda":
            return cls(kind="cuda", name=torch.cuda.get_device_name(place))
        threads = torch.get_num_threads()
        return cls(kind="cpu", name=f"{threads} CPU thread{'s' if threads > 1 else ''} of {os.cpu_count()}")


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user asked for."""

    start: str | None = None  # weights to start from; "none": random ones; None: whatever suits
    balance: Balance = "auto"
    seconds: float | None = None  # of the whole command
    has_unlabelled: bool = False  # whether there are unlabelled pictures to learn from, too
    changes: Mapping[str, str]  # of the recipe, by dotted name

    def gives(self, *names: str) -> bool:
        return any(given == name or given.startswith(f"{name}.") for given in self.changes for name in names)

    @property
    def gives_a_model(self) -> bool:
        """Whether the user chose a part of the model that trained weights would decide."""
        names = [name for name in self.changes if name == "model" or name.startswith("model.")]
        return any(name not in KEEPS_WEIGHTS for name in names)

    @property
    def gives_a_length(self) -> bool:
        return self.gives("training.epochs", "training.steps")

    @property
    def budget_s(self) -> float | None:
        """The time to keep: the given one, else the default; None if only a length was given."""
        return None if self.seconds is None and self.gives_a_length else self.seconds or DEFAULT_S
