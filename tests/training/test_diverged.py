"""A run whose loss or gradient is no longer finite says where that began."""

from pathlib import Path

import pytest
import torch
from torch import nn

from training.tiny import Regress, make_loop
from vitreous.training import diverged
from vitreous.training.run import RunDirectory
from vitreous.training.stopping import DivergedError


class Shrink(nn.Module):
    """Divides by 0 in the second step, which begins with sample 8; or takes a root whose slope is infinite there."""

    def __init__(self, backward):
        super().__init__()
        self.backward = backward

    def forward(self, x, ids):
        factor = torch.where(ids[0] == 8, 0.0, 1.0)
        return (x * factor).abs().sqrt() if self.backward else x / factor


class Fragile(Regress):
    def __init__(self, backward):
        super().__init__()
        self.shrink = Shrink(backward)

    def forward(self, batch, progress):
        shrunk = self.shrink(self.encoder(batch.images).pooled, batch.ids)
        return {"loss": shrunk.square().mean() + shrunk.mean()}


class OneOfTwo(Regress):
    def forward(self, batch, progress):
        found = super().forward(batch, progress)
        part = found["loss"] * torch.where(batch.ids[0] == 8, torch.nan, 1.0)
        return {"loss": found["loss"] + part, "part": part}


@pytest.mark.parametrize(
    ("objective", "where"),
    [
        (Fragile(backward=False), r"first in the output of shrink \(Shrink\)"),
        (OneOfTwo(), "first in the part `part` of the loss"),
        (Fragile(backward=True), r"first in the gradient of Abs \(test_diverged.py, line \d+\)"),
    ],
)
def test_it_says_where(tmp_path, monkeypatch, objective, where):
    monkeypatch.setattr(diverged, "PACKAGE", Path(__file__).parent)
    message = f"at step 2, {where}; that step was not taken"
    with RunDirectory(tmp_path, tensorboard=False) as directory, pytest.raises(DivergedError, match=message):
        make_loop(objective=objective).run(directory, None)


def test_what_does_not_happen_again_is_said(tmp_path):
    loop = make_loop()
    loop.losses = lambda batch, progress: {"loss": loop.objective(batch, progress)["loss"] * torch.nan}
    message = "at step 1, though not when computed again; that step"
    with RunDirectory(tmp_path, tensorboard=False) as directory, pytest.raises(DivergedError, match=message):
        loop.run(directory, None)
