"""Checkpoints are written beside training. (By several ranks: test_training_ranks.)"""

import threading
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from tiny import Points, make_loop, weights

from vitreous.errors import UserError
from vitreous.training import loop as loops
from vitreous.training.devices import World
from vitreous.training.run import RunDirectory
from vitreous.training.saving import Saver
from vitreous.training.stopping import DivergedError
from vitreous.weights import own


class Timed(Points):
    """A checkpoint is due after the second step. The seventh is told."""

    def __init__(self, clock, told):
        super().__init__()
        self.clock, self.told = clock, told

    def inputs(self, start, stop):
        for step, inputs in enumerate(super().inputs(start, stop), start=start + 1):
            self.clock.now += step == 2
            if step == 7:
                self.told.set()
            yield inputs


@pytest.fixture
def slow_disk(monkeypatch):
    """Of which nobody waits for the end until the seventh step is there; returns the loop."""
    clock, seventh, add = SimpleNamespace(now=0.0), threading.Event(), own.Draft.add
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(loops, "time", clock)

    def slow(self, *words):
        assert seventh.wait(60), "training waits for the disk"
        return add(self, *words)

    monkeypatch.setattr(own.Draft, "add", slow)
    return make_loop(data=Timed(clock, seventh), checkpoint_every_s=1.0)


def test_training_goes_on_and_what_is_saved_is_the_state_of_its_step(tmp_path, slow_disk):
    with RunDirectory(tmp_path, tensorboard=False) as directory:
        slow_disk.run(directory, None)
        assert list(directory.checkpoints.paths()) == [2, 12]
        second, last = (directory.checkpoints.read(step).tensors["objective"] for step in (2, 12))
    short = make_loop()
    for inputs in short.data.inputs(0, 2):
        short.step(*inputs)
    for found, expected in ((second, weights(short)), (last, weights(slow_disk))):
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_what_goes_wrong_meanwhile_ends_the_run(tmp_path, slow_disk, monkeypatch):
    def broken(*words):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(own, "save_file", broken)
    with RunDirectory(tmp_path, tensorboard=False) as directory:
        with pytest.raises(UserError, match=r"step-00000002: cannot be written \(Input/output error\)"):
            slow_disk.run(directory, None)
        assert int(slow_disk.step_count) >= 7 and not list(directory.checkpoints.folder.iterdir())


@dataclass(frozen=True)
class FirstOfTwo(World):
    """The other, who saves nothing, is here until it is lost."""

    heard: threading.Event

    def any(self, *flags):
        assert not self.heard.is_set(), "nobody answers"
        return list(flags)

    def collect(self, words):
        assert not self.heard.is_set(), "nobody answers"
        return [words]


@pytest.mark.parametrize("error", [UserError("a picture"), DivergedError("all of us")])
def test_who_fails_alone_does_not_wait_for_the_others(tmp_path, error):
    """They are at another point of the step. Where all fail after the same step, what is being written is finished."""
    is_alone, world = type(error) is UserError, FirstOfTwo(0, 2, torch.device("cpu"), threading.Event())
    with RunDirectory(tmp_path, tensorboard=False) as directory:
        with pytest.raises(UserError, match=str(error)), Saver(directory, world) as saver:
            saver.begin(1, {"objective": {"weight": torch.ones(1)}}, {})
            if is_alone:
                world.heard.set()
            raise error
        assert list(directory.checkpoints.paths()) == ([] if is_alone else [1])
