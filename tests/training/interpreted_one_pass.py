"""Run as a program in Triton's interpreter: the loop with AdamW in one pass, against the loop with torch's own."""

import copy

import torch
from tiny import Points, Regress, make_loop
from torch import nn

from vitreous.nn import kernels
from vitreous.objectives.base import Objective
from vitreous.training.averages import AverageSettings
from vitreous.training.devices import World
from vitreous.training.optim import AdamWSettings

serve = kernels.serve


class Uneven(Regress):
    """With parameters of more and less than a piece, one that the loss does not reach, one frozen, and a buffer."""

    def __init__(self):
        super().__init__()
        self.large = nn.Parameter(torch.randn(67, 71))
        self.unreached, self.number = nn.Parameter(torch.ones(5)), nn.Parameter(torch.tensor(0.5))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, batch, progress):
        answers = self.encoder(batch.images).pooled.squeeze(1) + (self.large.T.tanh().mean() + self.number) / 2
        self.seen += 1
        return {"loss": (answers - batch.targets["wanted"]).square().mean()}

    after_step = Objective.after_step


class Clamped(Uneven):
    """Weights move once more after a step, so that the average has to wait for it."""

    def after_step(self, progress):
        with torch.no_grad():
            self.number.clamp_(max=0.45)


def trained(start, is_fused, device, graphed, **options):
    kernels.PAY = dict.fromkeys(kernels.PAY, is_fused)
    kernels.serve = (lambda _: True) if is_fused and device == "cpu" else serve
    world = World(rank=0, size=1, device=torch.device(device))
    settings = AdamWSettings(lr=0.02, weight_decay=0.3, layer_decay=0.7)
    bad_step = 7 if options.pop("goes_bad", False) else None
    loop = make_loop(
        objective=copy.deepcopy(start),
        data=Points(bad_step=bad_step, device=device),
        optimizer=settings,
        average=AverageSettings(kind=options.pop("kind", "ema"), factor=0.9),
        world=world,
        cuda_graph=graphed,
        **options,
    )
    assert (loop.one_pass is not None) == is_fused
    if loop.one_pass is not None:
        is_last = not isinstance(start, Clamped)
        assert (loop.one_pass.average is not None) == (is_last and loop.average.is_on)
    for inputs in loop.data.inputs(0, 10):
        loop.run_step(*inputs)
    state = {"optimizer": loop.optimizer.state(), "average": loop.average.state()}
    return [loop.objective.state_dict(), *state.values(), {"bad": loop.first_bad_step}]


def assert_the_same(device, graphed, tolerance=2e-7):
    torch.manual_seed(0)
    for kind in (Uneven, Clamped):
        start = kind()
        for options in ({}, {"clip": 0.05}, {"goes_bad": True}, {"kind": "none"}, {"kind": "polyak", "clip": 0.5}):
            pair = [trained(start, fused, device, graphed, **options) for fused in (True, False)]
            for ours, plain in zip(*pair, strict=True):
                assert ours.keys() == plain.keys()
                for name, tensor in plain.items():
                    told = f"{kind.__name__} {options} {name}: "
                    torch.testing.assert_close(ours[name], tensor, rtol=2e-5, atol=tolerance, msg=told.__add__)


if __name__ == "__main__":
    assert_the_same("cpu", graphed=False)
