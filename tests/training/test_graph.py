"""One CUDA graph for a step wherever a step allows it, and why not where it does not."""

import gc

import pytest
import torch
from tiny import Points, Regress, make_loop, weights

from vitreous.settings import from_json, to_json
from vitreous.training.devices import World
from vitreous.training.graph import WARM_UP_STEPS, GraphedStep, same_shapes
from vitreous.training.loop import MemorySettings, TrainingSettings
from vitreous.training.run import RunDirectory

GPU = World(rank=0, size=1, device=torch.device("cuda", 0))
on_gpu = pytest.mark.gpu


class OnHost(Regress):
    on_device = False


class Quiet(Regress):
    """Without what a test on the CPU notes of each step."""

    def forward(self, batch, progress):
        answers = self.encoder(batch.images).pooled.squeeze(1).float()
        return {"loss": (answers - batch.targets["wanted"]).square().mean()}

    def after_step(self, progress):
        pass


class Waiting(Quiet):
    """Asks the host in every step."""

    def forward(self, batch, progress):
        losses = super().forward(batch, progress)
        return {"loss": losses["loss"] * (1.0 if float(losses["loss"]) > 0 else 2.0)}


def step_of(monkeypatch, world, objective=None, **training):
    """What the loop would run on a GPU, without one."""
    loop = make_loop(objective=objective)
    loop.settings, loop.world = TrainingSettings(batch_size=8, **training), world
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    return loop, loop._step_to_run()


def test_by_default_a_step_on_one_gpu_is_a_graph(monkeypatch, capsys):
    loop, step = step_of(monkeypatch, GPU)
    assert isinstance(step, GraphedStep) and step.give_up is not None
    for world in (World(0, 1, torch.device("cpu")), World(0, 2, torch.device("cuda", 0))):
        loop, step = step_of(monkeypatch, world)
        assert step == loop.step
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("objective", "training", "said"),
    [
        (OnHost, {}, "OnHost needs the host within a step"),
        (Regress, {"memory": MemorySettings(recompute=True)}, "random numbers on the host"),
    ],
)
def test_where_there_can_be_no_graph_one_line_says_so(objective, training, said, monkeypatch, capsys):
    loop, step = step_of(monkeypatch, GPU, objective(), **training)
    assert step == loop.step
    assert loop._step_to_run() == loop.step  # a run that changes its schedule asks again
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_asked_for_it_is_not_given_up(monkeypatch):
    for objective in (OnHost(), Regress()):
        _, step = step_of(monkeypatch, GPU, objective, cuda_graph=True)
        assert step.give_up is None
    loop, step = step_of(monkeypatch, GPU, cuda_graph=False)
    assert step == loop.step


def test_recipes_of_before_are_read():
    for given in (True, False, "auto"):
        assert from_json(TrainingSettings, to_json(TrainingSettings()) | {"cuda_graph": given}).cuda_graph == given


def test_shapes_are_compared():
    one, other = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int64)
    assert same_shapes((one, other), (one.clone(), other.clone()))
    assert not same_shapes((one,), (other,)) and not same_shapes((one,), (one[:1],)) and not same_shapes((), (one,))


def trained(path, objective, data=None, **training):
    loop = make_loop(objective=objective, world=GPU, data=data, **{"steps": 14, "clip": 1.0} | training)
    with RunDirectory(path, tensorboard=False) as directory:
        loop.run(directory, None)
    return loop, [row["loss"] for row in directory.rows()]


@on_gpu
def test_a_step_that_waits_for_the_host_goes_on_without(tmp_path, capsys):
    loop, losses = trained(tmp_path / "auto", Waiting())
    assert loop.ungraphed and capsys.readouterr().err.count("the step waits for the host in") == 1
    plain, expected = trained(tmp_path / "plain", Waiting(), cuda_graph=False)
    assert losses == pytest.approx(expected, rel=1e-5)
    for name, tensor in weights(plain).items():
        torch.testing.assert_close(weights(loop)[name], tensor, atol=1e-6, rtol=1e-5)


@on_gpu
def test_a_capture_that_fails_takes_no_step_away(tmp_path, capsys, monkeypatch):
    """As where the host is waited for by something that torch's watch does not see."""
    monkeypatch.setattr("vitreous.training.graph.waits_of", lambda step, inputs: step(*inputs) or [])
    _, losses = trained(tmp_path / "auto", Waiting())
    assert "CUDA refuses to capture" in capsys.readouterr().err
    assert losses == pytest.approx(trained(tmp_path / "plain", Waiting(), cuda_graph=False)[1], rel=1e-5)
    torch.nn.functional.dropout(torch.ones(8, device="cuda"))  # random numbers are whole


@on_gpu
def test_a_batch_of_another_shape_is_taken_in_full(tmp_path):
    class Uneven(Points):
        def inputs(self, start, stop):
            for step, (ids, factor) in enumerate(super().inputs(start, stop), start):
                yield (ids[:4] if step % 5 == 4 else ids), factor

    loop, losses = trained(tmp_path / "auto", Quiet(), Uneven(device="cuda"))
    assert isinstance(loop.run_step, GraphedStep) and loop.run_step.graph is not None
    _, expected = trained(tmp_path / "plain", Quiet(), Uneven(device="cuda"), cuda_graph=False)
    assert losses == pytest.approx(expected, rel=1e-5)


@pytest.mark.gpu
def test_the_graph_of_a_run_before_is_not_freed_during_a_capture():
    """A run and its graph refer to each other. A collector that came at that moment would spoil the capture."""
    x, refused = torch.ones(4, device="cuda"), []

    def step():
        for _ in range(1000):
            cycle = []
            cycle.append(cycle)
        x.mul_(1)

    before, after = GraphedStep(step), GraphedStep(step, refused.append)
    for _ in range(5):
        before()
    before.itself = before
    thresholds = gc.get_threshold()
    gc.disable()  # so that it is still there
    try:
        del before
        for _ in range(WARM_UP_STEPS):
            after()
        gc.set_threshold(10, 1, 1)
        gc.enable()
        after()
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
    assert not refused and after.graph is not None
