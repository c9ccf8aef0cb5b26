"""What each of several processes runs, and one alone: small recipes, one after the other.

python ranks_job.py OUT NAME,NAME...     NAME@20: up to that step
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
from tiny import Points, Regress, make_loop
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import vitreous
from vitreous.data.augmentation import MixSettings
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.models.stems import ConvStem
from vitreous.nn.shards import fitted
from vitreous.recipes.contrastive import cifar10_simclr
from vitreous.recipes.fashion import fashion_vit
from vitreous.recipes.multicrop import cifar10_dino
from vitreous.training.averages import AverageSettings
from vitreous.training.checkpoint import Checkpoints
from vitreous.training.devices import World
from vitreous.training.loop import MemorySettings
from vitreous.training.optim import AdamWSettings, MuonSettings
from vitreous.training.ranks import shard
from vitreous.training.run import RunDirectory
from vitreous.training.saving import Saver
from vitreous.training.stopping import DivergedError

STEPS = 50


def small(recipe, **training):
    options = {"steps": STEPS, "batch_size": 16, "log_every_steps": 1, "evaluate_every_epochs": 0.0, "workers": 0}
    options |= {"precision": "fp32", "compile": False, "cuda_graph": False, "device": "cpu"}
    return replace(
        recipe,
        data=replace(recipe.data, where="fashion", train_limit=96, val_fraction=0.0),
        model=ViTSettings(picture_px=(28, 28), patch=7, width=16, depth=3, heads=2, stochastic_depth=0.4),
        optimizer=AdamWSettings(lr=1e-3),
        training=replace(recipe.training, **(options | training)),
    )


def plain():
    recipe = small(fashion_vit())
    return replace(recipe, augmentation=replace(recipe.augmentation, mix=MixSettings(mixup=0.8)))


def thirds():
    """Three may share its batch; a logged line is the mean of eight steps."""
    return small(fashion_vit(), batch_size=12, log_every_steps=8, steps=26)


def halves():
    """The same as plain, a batch in two parts."""
    recipe = plain()
    return replace(recipe, training=replace(recipe.training, memory=MemorySettings(accumulate=2)))


def parts():
    """A batch in parts, activations computed again; an average, scored in between, of which the best is kept."""
    memory = MemorySettings(accumulate=2, recompute=True)
    recipe = small(fashion_vit(), memory=memory, evaluate_every_epochs=4.0, keep="best")
    data = replace(recipe.data, val_fraction=0.25)
    return replace(recipe, data=data, average=AverageSettings(kind="ema", factor=0.9))


def sharded():
    """The same as plain, with a share of every weight on each rank."""
    return in_shards(plain())


def sharded_parts():
    return in_shards(parts())


def sharded_dino():
    return in_shards(dino())


def sizes():
    """The same as plain, in shares where there are several ranks: at a size after the other."""
    return in_shards(plain()) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else plain()


def lost():
    """A checkpoint after every step."""
    return small(fashion_vit(), checkpoint_every_s=0.0)


def half():
    return small(fashion_vit(), steps=20, precision="bf16")


def sharded_half():
    return in_shards(half())


def sharded_compiled():
    return in_shards(compiled())


def sharded_together():
    return in_shards(together())


def in_shards(recipe):
    memory = replace(recipe.training.memory, shard=True)
    return replace(recipe, training=replace(recipe.training, memory=memory))


def muon():
    return replace(small(fashion_vit()), optimizer=MuonSettings(lr=1e-3))


def simclr():
    """Every sample is compared with those of all ranks."""
    return replace(small(cifar10_simclr(picture_px=28)), optimizer=AdamWSettings(lr=3e-4))


def hybrid():
    """Convolutions, some of one pixel, before the transformer."""
    recipe = small(fashion_vit(), steps=3)
    stem = ConvStem(widths=(8, 16), strides=(2, 2), residuals=(1, 1))
    return replace(recipe, model=replace(recipe.model, stem=stem, patch=1))


def dino():
    """A momentum teacher, a centre over all ranks, crops of two sizes, a last layer that is frozen at first."""
    recipe = small(cifar10_dino(local_crops=2, picture_px=28))
    return replace(recipe, objective=replace(recipe.objective, prototypes=32, hidden=32, bottleneck=16))


def compiled():
    recipe = small(fashion_vit(), steps=5, compile=True, memory=MemorySettings(accumulate=2, recompute=True))
    return replace(recipe, average=AverageSettings(kind="ema", factor=0.9))


def together():
    """All that takes less time or memory, at once."""
    recipe = compiled()
    return replace(recipe, training=replace(recipe.training, precision="bf16"))


_WHOLE = (plain, thirds, halves, parts, muon, simclr, hybrid, dino, lost, half, compiled, together)
_SHARDED = (sizes, sharded, sharded_parts, sharded_dino, sharded_half, sharded_compiled, sharded_together)
RECIPES = {recipe.__name__: recipe for recipe in (*_WHOLE, *_SHARDED)}


class Partly(Regress):
    """The loss does not reach one of its layers, though another number does; a second layer only the first rank's."""

    def __init__(self):
        super().__init__()
        self.beside, self.at_times = nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, batch, progress):
        losses = super().forward(batch, progress) | {"beside": self.beside(batch.images).mean()}
        if int(os.environ.get("RANK", "0")) == 0:
            losses["loss"] = losses["loss"] + self.at_times(batch.images).square().mean()
        return losses


class Half(Points):
    """Each rank's share of the points."""

    def prepare(self, ids, factor):
        world = World.join("cpu")
        return super().prepare(ids.chunk(world.size)[world.rank], factor)


def partly(out):
    """Weights after some steps in two parts each, and how many buckets were exchanged."""
    world = World.join("cpu")
    loop = make_loop(objective=Partly(), data=Half(), world=world, memory=MemorySettings(accumulate=2))
    exchanged = []
    if world.size > 1:

        def count(_, bucket):
            exchanged.append(len(bucket.parameters()))
            return torch.distributed.all_reduce(bucket.buffer() / world.size, async_op=True).get_future().then(first)

        loop.losses.register_comm_hook(None, count)
    with RunDirectory(out, owner=world.is_first, tensorboard=False) as directory:
        loop.run(directory, None)
    found = {name: tensor.flatten().tolist() for name, tensor in loop.objective.state_dict().items()}
    if world.is_first:
        (out / "found.json").write_text(json.dumps({"weights": found, "exchanged": len(exchanged)}))


def first(future):
    return future.value()[0]


class Wide(Regress):
    """With layers of a megabyte and more, whose gradients are exchanged apart."""

    def __init__(self):
        super().__init__()
        self.below, self.above = nn.Linear(3, 2**17), nn.Linear(2**17, 3)

    def forward(self, batch, progress):
        losses = super().forward(batch, progress)
        return losses | {"loss": losses["loss"] + self.above(self.below(batch.images)).square().mean()}


def early(out):
    """What comes after what in a backward pass."""
    world = World.join("cpu")
    loop = make_loop(objective=Wide(), data=Half(), world=world, steps=1)
    events = []

    def exchange(_, bucket):
        events.append("gradients exchanged")
        return torch.distributed.all_reduce(bucket.buffer() / world.size, async_op=True).get_future().then(first)

    loop.losses.register_comm_hook(None, exchange)
    loop.objective.below.weight.register_hook(lambda _: events.append("first layer reached"))
    with RunDirectory(out, owner=world.is_first, tensorboard=False) as directory:
        loop.run(directory, None)
    if world.is_first:
        (out / "events.json").write_text(json.dumps(events))


class Scaled(Regress):
    """One of its parameters is a single number, which has no rows to share."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, batch, progress):
        losses = super().forward(batch, progress)
        return losses | {"loss": losses["loss"] * self.factor.square()}


def scaled(out):
    """Losses, and how often gradients were exchanged, of steps in two parts each."""
    world = World.join("cpu")
    objective = Scaled()
    if world.size > 1:
        shard(objective, world, half=False, compiled=False)
    loop = make_loop(objective=objective, data=Half(), world=world, clip=0.5, memory=MemorySettings(accumulate=2))
    with RunDirectory(out, owner=world.is_first, tensorboard=False) as directory, Exchanges() as exchanges:
        loop.run(directory, None)
    if world.is_first:
        (out / "exchanged.json").write_text(json.dumps(exchanges.num))


class Exchanges(TorchDispatchMode):
    """How often shards of gradients are added up over ranks."""

    num = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.num += "reduce_scatter" in str(function)
        return function(*args, **(kwargs or {}))


class Uneven(nn.Module):
    """Rows that two ranks do not share evenly, a row that one of them has alone, a number that has none."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.rows = nn.Parameter(factor * torch.arange(15.0).view(5, 3))
        self.row = nn.Parameter(factor * torch.arange(2.0).view(1, 2))
        self.number = nn.Parameter(torch.tensor(factor))


def uneven(out):
    """Saves at step 1 what two ranks share, and at step 2 what three ranks had saved, each as large again."""
    world = World.join("cpu")
    objective = Uneven()
    shard(objective, world, half=False, compiled=False)
    with RunDirectory(out, owner=world.is_first, tensorboard=False) as directory, Saver(directory, world) as saver:
        saver.begin(1, {"objective": objective.state_dict()}, {"of": 2})
        saver.finish()
        three = Checkpoints(out.parent / "three").read(1).tensors["objective"]
        objective.load_state_dict(fitted(three, objective.state_dict()))
        with torch.no_grad():
            for parameter in objective.parameters():
                parameter.mul_(2)
        saver.begin(2, {"objective": objective.state_dict()}, {"of": 2})


class BadOnTheLast(Half):
    """Of the last rank only, the points of step 4 are no numbers."""

    def prepare(self, ids, factor):
        batch, world = super().prepare(ids, torch.ones(())), World.join("cpu")
        return replace(batch, views=(batch.images * factor,)) if world.rank == world.size - 1 else batch


def diverged(out):
    """What each rank says of it."""
    world = World.join("cpu")
    loop = make_loop(data=BadOnTheLast(bad_step=4), world=world)
    with RunDirectory(out, owner=world.is_first, tensorboard=False) as directory:
        try:
            loop.run(directory, None)
        except DivergedError as error:
            (out / f"said-{world.rank}.txt").write_text(str(error))


def apart(out):
    """What each rank says where the second does not see what the first has saved."""
    world = World.join("cpu")
    with RunDirectory(out, owner=world.is_first, tensorboard=False) as directory:
        make_loop(data=Half(), world=world).run(directory, None, until=6)
    world.wait()
    seen = out if world.is_first else out / "elsewhere"
    with RunDirectory(seen, owner=world.is_first, tensorboard=False) as directory:
        try:
            make_loop(data=Half(), world=world).run(directory, None)
        except UserError as error:
            (out / f"said-{world.rank}.txt").write_text(str(error))


JOBS = {job.__name__: job for job in (partly, early, scaled, uneven, diverged, apart)}


def main(out, names):
    for name in names:
        if name in JOBS:
            JOBS[name](out / name)
        elif name.endswith("resumed"):
            recipe = RECIPES[name.removesuffix("resumed").removesuffix("_") or "plain"]
            vitreous.train(recipe(), out / name, read_test=False, until=20)
            vitreous.train(recipe(), out / name, read_test=False)
        elif name == "lost_in_shards":
            vitreous.train(in_shards(lost()), out / "lost", read_test=False)
        else:
            recipe, _, until = name.partition("@")
            vitreous.train(RECIPES[recipe](), out / recipe, read_test=False, until=int(until) if until else None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(","))
