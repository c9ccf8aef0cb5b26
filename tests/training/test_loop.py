import os
import signal

import pytest
import torch
from tiny import CPU, Points, Regress, make_loop, weights

from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.tasks.classify import ClassifySettings
from vitreous.training.averages import AverageSettings
from vitreous.training.devices import World
from vitreous.training.loop import MemorySettings, TrainingSettings
from vitreous.training.meter import Meter
from vitreous.training.optim import AdamWSettings, MuonSettings, SGDSettings
from vitreous.training.run import RunDirectory
from vitreous.training.saving import Saver
from vitreous.training.schedule import ScheduleSettings
from vitreous.training.stopping import StoppedError


def run(loop, path, evaluate=None):
    with RunDirectory(path, tensorboard=False) as directory:
        loop.run(directory, evaluate)
    return directory.rows()


def saved_steps(path):
    return sorted(int(folder.name.removeprefix("step-")) for folder in (path / "checkpoints").iterdir())


def test_the_loss_falls_and_is_logged_as_a_mean(tmp_path):
    rows = run(make_loop(steps=30), tmp_path)
    assert [row["step"] for row in rows] == list(range(3, 31, 3))
    assert rows[-1]["epoch"] == 15
    assert rows[-1]["loss"] < 0.2 * rows[0]["loss"]
    one_by_one = run(make_loop(steps=30, log_every_steps=1), tmp_path / "each")
    for index, row in enumerate(rows):
        part = one_by_one[3 * index : 3 * index + 3]
        for name in ("loss", "answer", "gradient_norm"):
            assert row[name] == pytest.approx(sum(each[name] for each in part) / 3, abs=1e-12)


def test_progress_goes_from_0_towards_1(tmp_path):
    loop = make_loop(steps=4)
    run(loop, tmp_path)
    assert loop.objective.progress == [0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("optimizer", [SGDSettings(lr=0.05), AdamWSettings(lr=0.01), MuonSettings(lr=0.01)])
def test_accumulated_parts_equal_the_whole(tmp_path, optimizer):
    whole, parts = (make_loop(optimizer=optimizer, clip=1.0, memory=MemorySettings(accumulate=num)) for num in (1, 4))
    rows = run(whole, tmp_path / "1"), run(parts, tmp_path / "4")
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(weights(parts)[name], tensor, atol=1e-6, rtol=0)
    for one, other in zip(*rows, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], abs=1e-6)
        assert other["gradient_norm"] == pytest.approx(one["gradient_norm"], abs=1e-6)


def test_a_batch_that_cannot_be_cut_evenly_is_refused():
    with pytest.raises(UserError, match="evenly"):
        make_loop(memory=MemorySettings(accumulate=3))


@pytest.mark.parametrize("optimizer", [SGDSettings(lr=0.05), AdamWSettings(lr=0.01), MuonSettings(lr=0.01)])
def test_nan_is_caught_before_the_step(tmp_path, optimizer):
    good = make_loop(optimizer=optimizer, steps=4)
    run(good, tmp_path / "good")
    bad = make_loop(optimizer=optimizer, steps=12, data=Points(bad_step=5))
    with pytest.raises(UserError, match="at step 5, the pictures are not finite;"):
        run(bad, tmp_path / "bad")
    for name, tensor in weights(good).items():
        assert torch.equal(weights(bad)[name], tensor), name
    for name, tensor in good.optimizer.state().items():
        assert torch.equal(bad.optimizer.state()[name], tensor), name
    assert [row["step"] for row in RunDirectory(tmp_path / "bad").rows()] == [3]


def test_nan_never_reaches_a_checkpoint(tmp_path):
    loop = make_loop(steps=12, data=Points(bad_step=5), checkpoint_every_s=0, log_every_steps=100)
    with pytest.raises(UserError, match="at step 5, the pictures are not finite;"):
        run(loop, tmp_path)
    assert saved_steps(tmp_path) == [3, 4]
    resumed = make_loop(steps=12, checkpoint_every_s=0, log_every_steps=100)  # the data are mended
    run(resumed, tmp_path)
    through = make_loop(steps=12, log_every_steps=100)
    run(through, tmp_path / "through")
    for name, tensor in weights(through).items():
        assert torch.equal(weights(resumed)[name], tensor)


def test_infinity_in_one_part_is_caught(tmp_path):
    class Infinite(Regress):
        def forward(self, batch, progress):
            losses = super().forward(batch, progress)
            return losses | {"loss": losses["loss"] + torch.where(batch.ids[0] == 2, torch.inf, 0.0)}

    loop = make_loop(objective=Infinite(), memory=MemorySettings(accumulate=4))
    before = weights(loop)
    with pytest.raises(UserError, match="at step 1, first in the loss;"):
        run(loop, tmp_path)
    assert all(torch.equal(weights(loop)[name], tensor) for name, tensor in before.items())


def test_clipping(tmp_path):
    loop = make_loop(steps=1, clip=0.01, optimizer=SGDSettings(lr=1.0, momentum=0.0))
    before = weights(loop)
    (row,) = run(loop, tmp_path)
    moved = torch.cat([(weights(loop)[name] - tensor).flatten() for name, tensor in before.items()])
    assert row["gradient_norm"] > 0.1  # logged as it was
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)


def test_bf16_keeps_the_weights_in_float32(tmp_path):
    loop = make_loop(steps=30, precision="bf16")
    rows = run(loop, tmp_path)
    assert loop.objective.seen_dtype == torch.bfloat16
    assert all(tensor.dtype == torch.float32 for tensor in weights(loop).values())
    assert rows[-1]["loss"] < 0.2 * rows[0]["loss"]


def test_compiled_equals_eager(tmp_path, monkeypatch):
    """With a backend that needs no compiler: what counts is that the loop can be traced and keeps its state."""
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: compile(function, backend="aot_eager", **options))

    class Pure(Regress):
        def forward(self, batch, progress):
            answers = self.encoder(batch.images).pooled.squeeze(1)
            return {"loss": (answers - batch.targets["wanted"]).square().mean(), "answer": answers.mean()}

    rows = [run(make_loop(objective=Pure(), compile=on), tmp_path / str(on)) for on in (True, False)]
    for one, other in zip(*rows, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-6)


def test_evaluation_on_schedule_with_raw_and_averaged_weights(tmp_path):
    seen = []

    def evaluate(objective):
        assert not objective.training
        assert not torch.is_grad_enabled()
        seen.append(objective.encoder.first.weight.clone())
        return {"score": float(len(seen))}

    loop = make_loop(steps=10, log_every_steps=100, evaluate_every_epochs=2, average=AverageSettings(kind="ema"))
    rows = run(loop, tmp_path, evaluate)
    assert loop.objective.training
    assert [row["step"] for row in rows if "val/score" in row] == [4, 8, 10]
    assert [(row["val/score"], row["val_average/score"]) for row in rows if "val/score" in row] == [
        (1, 2),
        (3, 4),
        (5, 6),
    ]
    assert torch.equal(seen[4], loop.objective.encoder.first.weight)
    with loop.average.swapped():
        assert torch.equal(seen[5], loop.objective.encoder.first.weight)
    assert not torch.equal(seen[4], seen[5])


@pytest.mark.parametrize(("every", "steps"), [(0, [5]), (0.5, [1, 2, 3, 4, 5]), (0.01, [1, 2, 3, 4, 5]), (2.2, [4, 5])])
def test_how_often_is_evaluated(tmp_path, every, steps):
    loop = make_loop(steps=5, evaluate_every_epochs=every)
    rows = run(loop, tmp_path, lambda objective: {"score": 1.0})
    assert [row["step"] for row in rows if "val/score" in row] == steps
    assert not any("val_average/score" in row for row in rows)


@pytest.mark.parametrize("stop", [1, 4, 6])
def test_resume_is_exact_in_the_midst_of_a_logged_window(tmp_path, stop):
    options = {"steps": 11, "average": AverageSettings(kind="ema", factor=0.5)}
    through = make_loop(**options)
    expected = run(through, tmp_path / "through")

    class Killed(Points):
        def inputs(self, start, end):
            yield from super().inputs(start, stop)
            raise KeyError("as good as a kill")

    with pytest.raises(KeyError):
        run(make_loop(data=Killed(), checkpoint_every_s=0, **options), tmp_path / "killed")
    resumed = make_loop(**options)
    assert run(resumed, tmp_path / "killed") == expected
    assert (tmp_path / "killed/metrics.jsonl").read_text() == (tmp_path / "through/metrics.jsonl").read_text()
    for name, tensor in through.average.state().items():
        assert torch.equal(resumed.average.state()[name], tensor)


def test_a_logged_line_counts_its_steps_alike_in_however_many_parts(tmp_path):
    """A run may go on with more parts of a batch, in the midst of a line."""
    options = {"steps": 6, "log_every_steps": 6}
    (expected,) = run(make_loop(**options), tmp_path / "through")
    with RunDirectory(tmp_path / "parts", tensorboard=False) as directory:
        make_loop(**options).run(directory, None, until=2)
    (found,) = run(make_loop(memory=MemorySettings(accumulate=4), **options), tmp_path / "parts")
    assert found == pytest.approx(expected, rel=1e-5)


def aimed(*falls):
    return ScheduleSettings(decay="constant", falls=falls)


def test_a_run_whose_course_changes_is_the_run_that_its_last_course_describes(tmp_path):
    courses = {4: (aimed((6, 1.0, 20)), 20), 8: (aimed((6, 1.0, 20), (8, 12 / 14, 15)), 15)}
    asked = []

    def course(step):
        asked.append(step)
        return courses.get(step)

    changing = make_loop(steps=100)
    with RunDirectory(tmp_path / "changing", tensorboard=False) as directory:
        changing.run(directory, lambda objective: {"seen": 1.0}, course=course)
    assert asked == list(range(1, 16)) and saved_steps(tmp_path / "changing") == [15]
    rows = directory.rows()
    assert [row["step"] for row in rows if "val/seen" in row][-1] == 15 == rows[-1]["step"]
    described = make_loop(steps=15)
    described.schedule = courses[8][0]
    run(described, tmp_path / "described")
    assert all(torch.equal(tensor, weights(described)[name]) for name, tensor in weights(changing).items())


def test_a_passed_over_checkpoint_is_named(tmp_path, capsys):
    run(make_loop(steps=4, checkpoint_every_s=0), tmp_path)
    (tmp_path / "checkpoints/step-00000004/objective.safetensors").write_bytes(b"rubbish")
    loop = make_loop(steps=4)
    run(loop, tmp_path)
    assert "objective.safetensors: damaged" in capsys.readouterr().err
    assert int(loop.step_count) == 4


@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C")])
def test_a_signal_stops_after_the_step(tmp_path, number, name):
    class Signalled(Regress):
        def after_step(self, progress):
            super().after_step(progress)
            if len(self.progress) == 5:
                os.kill(os.getpid(), number)

    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)]
    with pytest.raises(StoppedError, match=f"{name}: stopped after step 5 of 12") as error:
        run(make_loop(objective=Signalled()), tmp_path)
    assert error.value.exit_code == 128 + number
    assert saved_steps(tmp_path) == [5]
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)] == handlers


def test_a_signal_while_the_last_checkpoint_is_written_is_not_lost(tmp_path, monkeypatch):
    begin = Saver.begin
    monkeypatch.setattr(Saver, "begin", lambda *words: (os.kill(os.getpid(), signal.SIGTERM), begin(*words)))
    with pytest.raises(StoppedError, match="SIGTERM: stopped after step 5 of 5"):
        run(make_loop(steps=5), tmp_path)
    assert saved_steps(tmp_path) == [5]


def test_checkpoints_are_written_at_the_end_and_when_due(tmp_path):
    run(make_loop(steps=5), tmp_path / "end")
    assert saved_steps(tmp_path / "end") == [5]
    run(make_loop(steps=5, checkpoint_every_s=0), tmp_path / "due")
    assert saved_steps(tmp_path / "due") == [4, 5]


def test_meter():
    meter = Meter(CPU)
    for value in (1.0, 2.0, 6.0):
        meter.add({"b": torch.tensor(value), "loss": torch.tensor(2 * value, dtype=torch.bfloat16)})
    other = Meter(CPU)
    other.load_state(meter.state())
    assert meter.read() == {"loss": 6.0, "b": 3.0}
    assert list(other.read()) == ["loss", "b"]
    other.add({"b": torch.tensor(5.0), "loss": torch.tensor(1.0)})
    assert other.read() == {"loss": 1.0, "b": 5.0}  # reading forgets


@pytest.mark.parametrize(
    ("rank", "size", "own"), [(0, 3, (0.3, 1)), (2, 3, (0.7, 1)), (1, 2, (0.5, 1)), (0, 1, (0.5, 1))]
)
def test_of_what_ranks_measured_each_goes_on_with_its_own(rank, size, own):
    """Where there are as many as there were; the mean is rounded, and what is added to it rounds differently."""
    saved = torch.tensor([[0.3, 1], [0.5, 1], [0.7, 1]], dtype=torch.float64)
    meter = Meter(World(rank, size, torch.device("cpu")))
    meter.load_state({"loss": saved})
    assert meter.sums["loss"].tolist() == pytest.approx(own, abs=1e-15)
    meter.load_state({"loss": torch.tensor([0.25, 1.0], dtype=torch.float64)})  # as earlier versions saved it
    assert meter.sums["loss"].tolist() == [0.25, 1.0]


def test_checkpointing_changes_nothing_but_memory(tmp_path):
    class Pictures(Points):
        def prepare(self, ids, factor):
            images = torch.sin(torch.arange(8 * 3 * 8 * 8).view(8, 3, 8, 8) + ids[0])
            return Batch(views=(images,), targets={"label": ids % 4}, ids=ids, keys=ids)

    rows = []
    for on in (False, True):
        torch.manual_seed(0)
        encoder = ViTSettings(picture_px=(8, 8), patch=4, width=16, depth=2, heads=2, dropout=0.1).build()
        encoder.checkpointing = on
        task = ClassifySettings().build(encoder, ("a", "b", "c", "d"))
        rows.append(run(make_loop(objective=task, data=Pictures()), tmp_path / str(on)))
    assert rows[0] == rows[1]  # dropout's draws are repeated too
    assert rows[0][-1]["loss"] < rows[0][0]["loss"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"steps": 0},
        {"log_every_steps": 0},
        {"epochs": float("nan")},
        {"workers": -1},
        {"clip": 0.0},
        {"checkpoint_every_s": -1.0},
    ],
)
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(UserError, match=f"training.{next(iter(wrong))} is"):
        TrainingSettings(**wrong)
    with pytest.raises(UserError, match=r"training\.memory\.accumulate is 0"):
        MemorySettings(accumulate=0)


def test_length_of_a_run():
    assert TrainingSettings(epochs=2.5).num_steps(10) == 25
    assert TrainingSettings(epochs=0.001).num_steps(10) == 1
    assert TrainingSettings(epochs=7, steps=3).num_steps(10) == 3
