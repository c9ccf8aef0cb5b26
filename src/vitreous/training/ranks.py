"""An objective over ranks, by torch's own engines: every rank gets the mean gradient of all.

If it fits on every device, DistributedDataParallel: gradients are exchanged in buckets while the backward pass still
computes the others. Otherwise fully_shard (FSDP2): every rank holds its rows of every weight, gradient and moment; a
block's weights are gathered while the block before it computes, and dropped after it. In a single process, an objective
stays as it is.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitreous import platforms
from vitreous.batch import Batch
from vitreous.nn.blocks import Repeated
from vitreous.objectives.base import Objective
from vitreous.training.devices import World

Losses = Callable[[Batch, Tensor], dict[str, Tensor]]  # an objective, as it is or compiled
Shard = Literal["auto"] | bool
ROOM = 0.5  # share of a device's memory; the rest is for activations


# ---- sharded


def wants_shards(objective: Objective, wanted: Shard, world: World, averaged: bool) -> bool:
    """auto: if what stays on a device between steps would leave too little memory for a step."""
    if wanted != "auto":
        return wanted
    if world.size == 1 or (room := platforms.device_memory(world.device)) is None:
        return False
    # A weight, its gradient and two moments in float32; of frozen ones, only the weight.
    held = sum(p.numel() * (16 if p.requires_grad else 4) + 4 * averaged * p.numel() for p in objective.parameters())
    return held > ROOM * room


def shard(objective: Objective, world: World, *, half: bool, compiled: bool) -> None:
    """In place, before optimizer and averages are built: from then on every rank holds its rows of each weight.

    half: a block's weights are gathered in bfloat16, to which autocast would convert its matrices anyway."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    world.meet()
    mesh = init_device_mesh(world.device.type, (world.size,))
    # Gradients are summed in float32, and autocast decides the type of activations between blocks.
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    # A scalar has no rows to share.
    numbers = {p for p in objective.parameters() if p.ndim == 0}
    for block in [part for part in objective.modules() if isinstance(part, Repeated)]:
        if compiled:  # inside the hooks that gather its weights; blocks of one shape share what is compiled
            block.forward = torch.compile(block.forward, dynamic=False)
        fully_shard(block, mesh=mesh, mp_policy=policy if half else MixedPrecisionPolicy(), ignored_params=numbers)
    # Dropped after each pass, so that between passes all weights are where optimizer and averages change them.
    fully_shard(objective, mesh=mesh, reshard_after_forward=True, ignored_params=numbers)
    for number in numbers:
        number.data = number.data.to(world.device)
        if number.requires_grad:
            number.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda p: setattr(p, "grad", world.mean(p.grad))
            )


def is_sharded(objective: nn.Module) -> bool:
    return hasattr(objective, "set_requires_gradient_sync")


@contextmanager
def gathered(objective: nn.Module) -> Iterator[None]:
    """Inside, any of its methods may be called, not only its forward pass: what is outside its blocks is whole on every
    rank. All ranks must enter together."""
    if not is_sharded(objective):
        yield
        return
    objective.unshard()  # type: ignore[operator]
    try:
        yield
    finally:
        objective.reshard()  # type: ignore[operator]


# ---- whole on every rank


def over_ranks(objective: Objective, world: World, *, compiled: bool) -> Losses:
    """The objective, such that a backward pass through its loss leaves the mean gradient of all ranks, which must all
    call this together. The parameters must stay the same objects from then on."""
    if is_sharded(objective):
        return objective
    # Inductor's advice to round float32 products: where rounding is acceptable, autocast does it.
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    # Compiled inside: torch splits the graph where its gradient buckets end, so that it computes while it exchanges.
    losses: Losses = torch.compile(objective, dynamic=False) if compiled else objective
    if world.size == 1:
        return losses
    # A warning about 1x1 kernels, whose strides are meaningless.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    engine = DistributedDataParallel(
        _OnlyTheLoss(losses).to(world.device),
        # Otherwise torch would wait for a parameter that the loss does not reach. It also keeps torch from rebuilding
        # the buckets after the first step: among four ranks or more, the order of a sum depends on the place in a
        # bucket, and a resumed run must sum like one that was not interrupted.
        find_unused_parameters=True,
        gradient_as_bucket_view=True,  # no second copy of all gradients
    )
    engine.broadcast_buffers = False  # an objective shares what it has to (see nn/gather)
    return engine


class _OnlyTheLoss(nn.Module):
    """Detaches the other numbers: parameters that only they reach have no gradient, and must not be waited for."""

    def __init__(self, objective: Losses) -> None:
        super().__init__()
        self.objective = objective
        self.unused = nn.Parameter(torch.zeros(1))  # without one, torch prints a warning past Python's filters

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        losses = self.objective(batch, progress)
        return {name: number if name == "loss" else number.detach() for name, number in losses.items()}


# ---- both


@contextmanager
def held_back(losses: Losses) -> Iterator[None]:
    """Inside, gradients only accumulate on their own rank; the next backward pass outside exchanges the sum."""
    if isinstance(losses, DistributedDataParallel):
        with losses.no_sync():
            yield
    elif isinstance(losses, nn.Module) and is_sharded(losses):
        losses.set_requires_gradient_sync(False)  # type: ignore[operator]
        yield
        losses.set_requires_gradient_sync(True)  # type: ignore[operator]
    else:
        yield
