"""The smallest things that the loop can train."""

import torch
from torch import nn

from vitreous.batch import Batch
from vitreous.models.base import Encoder, Features
from vitreous.objectives.base import Objective
from vitreous.training.averages import AverageSettings
from vitreous.training.devices import World
from vitreous.training.loop import Loop, TrainingSettings
from vitreous.training.optim import SGDSettings
from vitreous.training.schedule import ScheduleSettings

CPU = World(rank=0, size=1, device=torch.device("cpu"))


class Line(Encoder):
    width = 1

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, images):
        return Features(maps=(), prefix=None, pooled=self.second(torch.tanh(self.first(images))))

    def stages(self):
        return [self.first, self.second]


class Regress(Objective):
    """Squared error, and a second number that is worth logging."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = Line()
        self.progress = []

    def forward(self, batch, progress):
        answers = self.encoder(batch.images).pooled.squeeze(1).float()
        self.seen_dtype = self.encoder.second(torch.zeros(1, 4)).dtype
        return {"loss": (answers - batch.targets["wanted"]).square().mean(), "answer": answers.mean()}

    def after_step(self, progress):
        self.progress.append(float(progress))


class Points:
    """16 samples; a batch of a step is a function of the step alone. `bad_step` (1 = the first) has a NaN."""

    steps_per_epoch = 2
    waited_s = 0.0

    def __init__(self, bad_step=None, device="cpu"):
        torch.manual_seed(1)
        self.x = torch.randn(16, 3)
        self.wanted = (self.x @ torch.tensor([1.0, -2.0, 0.5])).to(device)
        self.x = self.x.to(device)
        self.bad_step = bad_step

    def inputs(self, start, stop):
        for step in range(start, stop):
            ids = (torch.arange(8, device=self.x.device) + 8 * step) % 16
            factor = torch.full((), float("nan") if step + 1 == self.bad_step else 1.0, device=self.x.device)
            yield ids, factor

    def prepare(self, ids, factor):
        return Batch(views=(self.x[ids] * factor,), targets={"wanted": self.wanted[ids]}, ids=ids, keys=ids)


def make_loop(*, data=None, objective=None, optimizer=None, average=None, world=CPU, **training):
    objective = (objective or Regress()).to(world.device)
    options = {"steps": 12, "batch_size": 8, "log_every_steps": 3, "clip": None, "checkpoint_every_s": 1e9}
    return Loop(
        objective,
        data or Points(device=world.device),
        optimizer=(optimizer or SGDSettings(lr=0.05)).build(objective),
        schedule=ScheduleSettings(decay="constant"),
        average=(average or AverageSettings()).build(objective),
        settings=TrainingSettings(**(options | training)),
        world=world,
    )


def weights(loop):
    return {name: tensor.clone() for name, tensor in loop.objective.state_dict().items()}


def write_shares(checkpoints, step, shares):
    """As ranks do together, of which the first begins and finishes; without saying where in a tensor their rows begin,
    as earlier versions did not."""
    draft, files = checkpoints.draft(step), {}
    draft.begin()
    rows = {name: sum(len(share.get(name, ())) for share in shares) for name, one in shares[0].items() if one.ndim}
    shapes = {"objective": {name: [num, *shares[0][name].shape[1:]] for name, num in rows.items()}}
    for rank, named in enumerate(shares):
        documents = {} if rank else {"state": {"step": step}, "shards": {"ranks": len(shares), "tensors": shapes}}
        files |= draft.add({f"objective-0000{rank + 1}-of-0000{len(shares)}": named}, documents)
    return draft, files
