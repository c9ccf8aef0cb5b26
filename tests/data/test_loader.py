"""Batches: the same for any number of workers, from any step on, in any number of parts."""

import multiprocessing
import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from vitreous import signals
from vitreous.batch import Batch
from vitreous.data.augmentation import Augmentation, CropSettings, MixSettings, WarpSettings
from vitreous.data.base import BadFiles, Source
from vitreous.data.images import BadPicture
from vitreous.data.loader import EvalLoader, TrainLoader
from vitreous.data.order import OrderSettings
from vitreous.data.targets import ClassLabels, ManyLabels
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError

SIZE = Preprocessing(size_px=(12, 14))
MIXED = Augmentation(mix=MixSettings(mixup=0.8, cutmix=1.0))


class Made(Source):
    """Pictures made from their number; `bad` ones cannot be read."""

    def __init__(self, num: int, shape: tuple[int, int] | None = None, bad: tuple[int, ...] = ()) -> None:
        self.name, self.classes, self.shape, self.unreadable = "made", ("a", "b", "c"), shape, bad
        self.targets = ClassLabels(np.arange(num) % 3)

    def read(self, index: int) -> np.ndarray:
        if index in self.unreadable:
            raise BadPicture("cut short")
        generator = np.random.default_rng(index)
        shape = self.shape or tuple(generator.integers(8, 40, 2))
        return generator.integers(0, 256, (*shape, 3)).astype(np.uint8)

    def where(self, index: int) -> str:
        return f"made/{index}.png"


class Kept(Made):
    """The same, in memory and of one size."""

    def __init__(self, num: int, shape: tuple[int, int] = (16, 18)) -> None:
        super().__init__(num, shape)
        self.pictures = np.stack([self.read(index) for index in range(num)])


def train_loader(source: Source, augmentation: Augmentation = MIXED, **options) -> TrainLoader:
    return TrainLoader(source, [augmentation.build(SIZE)], **{"batch_size": 8, "seed": 3, **options})


def assert_equal(a: Batch, b: Batch) -> None:
    assert torch.equal(a.ids, b.ids)
    assert torch.equal(a.keys, b.keys)
    assert a.targets.keys() == b.targets.keys()
    for name in a.targets:
        assert torch.equal(a.targets[name], b.targets[name])
    for view_a, view_b in zip(a.views, b.views, strict=True):
        assert torch.equal(view_a, view_b)


# ---- Training


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_do_not_change_the_batches(workers: int):
    source = Made(200, bad=(5, 17))
    alone = list(train_loader(source).batches(0, 30))
    helped = list(train_loader(source, workers=workers).batches(0, 30))
    assert len(alone) == len(helped) == 30
    for a, b in zip(alone, helped, strict=True):
        assert_equal(a, b)


@pytest.mark.parametrize("kind", [Made, Kept])
def test_any_step_can_come_first(kind):
    loader = train_loader(kind(50))
    whole = list(loader.batches(0, 14))
    for start in (1, 5, 6, 13):
        assert_equal(next(train_loader(kind(50)).batches(start, 14)), whole[start])


@pytest.mark.parametrize("kind", [Made, Kept])
@pytest.mark.parametrize("augmentation", [MIXED, Augmentation()])
def test_ranks_share_the_global_batch(kind, augmentation):
    source = kind(50)
    for step, whole in enumerate(train_loader(source, augmentation).batches(0, 7)):
        parts = [
            next(train_loader(source, augmentation, rank=rank, world=4).batches(step, step + 1)) for rank in range(4)
        ]
        assert [len(part) for part in parts] == [2, 2, 2, 2]
        assert torch.equal(torch.cat([part.ids for part in parts]), whole.ids)
        for name, target in whole.targets.items():
            assert torch.equal(torch.cat([part.targets[name] for part in parts]), target)
        torch.testing.assert_close(torch.cat([part.images for part in parts]), whole.images)


@pytest.mark.parametrize("kind", [Made, Kept])
def test_an_epoch_sees_every_sample_at_most_once(kind):
    loader = train_loader(kind(50))
    assert loader.steps_per_epoch == 6
    first, second = (torch.cat([batch.ids for batch in loader.batches(6 * epoch, 6 * epoch + 6)]) for epoch in range(2))
    assert len(first.unique()) == 48
    assert not torch.equal(first, second)


def test_the_seed_decides_the_order():
    one, same, other = (next(train_loader(Kept(50), seed=seed).batches(0, 1)) for seed in (1, 1, 2))
    assert_equal(one, same)
    assert not torch.equal(one.ids, other.ids)


def test_in_memory_and_read_pictures_agree_within_a_level():
    kept, read = Kept(50), Made(50, shape=(16, 18))
    augmentation = Augmentation(warp=WarpSettings(ops=0))
    for a, b in zip(
        train_loader(kept, augmentation).batches(0, 3), train_loader(read, augmentation).batches(0, 3), strict=True
    ):
        assert torch.equal(a.ids, b.ids)
        assert torch.equal(a.targets["label"], b.targets["label"])
        assert (a.images - b.images).abs().max() <= 2 / 255 + 1e-6  # one level, normalised by a std of a half


def test_labels_go_with_their_pictures():
    source = Made(50)
    for batch in train_loader(source, Augmentation()).batches(0, 6):
        assert batch.targets["label"].tolist() == source.labels[batch.ids.numpy()].tolist()
        assert batch.images.shape == (8, 3, 12, 14)
        assert batch.images.dtype == torch.float32


def test_the_partner_is_the_next_of_the_batch():
    source = Kept(50)
    plain = next(train_loader(source, Augmentation()).batches(2, 3))
    mixed = next(train_loader(source, Augmentation(mix=MixSettings(mixup=0.8))).batches(2, 3))
    assert torch.equal(mixed.targets["partner"], plain.targets["label"].roll(-1))
    share = mixed.targets["weight"][:, None, None, None]
    torch.testing.assert_close(mixed.images, plain.images * share + plain.images.roll(-1, 0) * (1 - share))


def test_several_labels_a_picture():
    source = Kept(50)
    source.targets = ManyLabels(np.eye(3)[source.labels])
    batch = next(train_loader(source).batches(0, 1))
    assert batch.targets["labels"].shape == (8, 3)
    torch.testing.assert_close(batch.targets["labels"].sum(1), torch.ones(8))


def test_the_global_generator_is_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(train_loader(Made(50)).batches(0, 2))
    list(train_loader(Made(50), workers=1).batches(0, 2))
    list(EvalLoader(Made(20), SIZE, 8))
    assert torch.equal(torch.get_rng_state(), before)


def test_waiting_is_measured():
    loader = train_loader(Made(50))
    assert loader.waited_s == 0
    list(loader.batches(0, 2))
    assert loader.waited_s > 0


def test_workers_leave_when_a_run_stops_early():
    before = set(multiprocessing.active_children())
    batches = train_loader(Made(50), workers=2).batches(0, 100)
    next(batches)
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    batches.close()
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals cannot be kept away here")
def test_readers_do_not_hear_signals_that_end_a_run():
    """Sent to all processes by a terminal or a scheduler: the run ends its readers itself, after the step."""
    before = set(multiprocessing.active_children())
    batches = train_loader(Made(50), workers=2).batches(0, 20)
    next(batches)
    for reader in set(multiprocessing.active_children()) - before:
        for number in signals.ENDING:
            os.kill(reader.pid, number)
    assert len(list(batches)) == 19
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="nothing is forked here")
def test_a_reader_killed_while_others_are_started_is_raised_where_readers_are_awaited(monkeypatch: pytest.MonkeyPatch):
    """And not in the hooks of that fork, where Python prints an error and drops it."""
    doomed, dropped = [], []

    def kill():
        while doomed:
            number = doomed.pop()
            os.kill(number, signal.SIGKILL)
            os.waitid(os.P_PID, number, os.WEXITED | os.WNOWAIT)

    os.register_at_fork(before=kill)
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)
    before = set(multiprocessing.active_children())
    batches = train_loader(Made(50), workers=2).batches(0, 100)
    next(batches)
    doomed += [reader.pid for reader in set(multiprocessing.active_children()) - before]
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid \d+\) is killed"):
        list(EvalLoader(Made(40), SIZE, 8, workers=1))
    assert not doomed and not dropped
    batches.close()


@pytest.mark.parametrize("batch_size", [0, 51])
def test_a_batch_must_fit_the_source(batch_size: int):
    with pytest.raises(UserError, match=rf"batch_size is {batch_size}.*made has 50"):
        train_loader(Made(50), batch_size=batch_size)


def test_ranks_must_share_evenly():
    with pytest.raises(UserError, match="3 processes"):
        train_loader(Made(50), world=3)


# ---- Bad pictures


def test_bad_pictures_are_replaced_by_the_next_and_named():
    source = Made(300, bad=(5, 6, 299))
    loader = train_loader(source, Augmentation(), batch_size=100)
    clean = train_loader(Made(300), Augmentation(), batch_size=100)
    pairs = [
        pair
        for a, b in zip(loader.batches(0, 6), clean.batches(0, 6), strict=True)
        for pair in zip(a.ids.tolist(), b.ids.tolist(), strict=True)
    ]
    expected = {5: 7, 6: 7, 299: 0}
    assert all(seen == expected.get(drawn, drawn) for seen, drawn in pairs)
    assert {drawn for seen, drawn in pairs if seen != drawn} == set(expected)
    assert loader.bad.reasons == {f"made/{index}.png": "cut short" for index in (5, 6, 299)}
    assert "made/5.png: cut short" in loader.bad.summary()


@pytest.mark.parametrize("workers", [0, 1])
def test_too_many_bad_pictures_stop_the_run(workers: int):
    source = Made(100, bad=(3, 20, 60, 70))
    with pytest.raises(UserError, match=r"4 of 100 pictures cannot be read .*made/\d+.png: cut short") as caught:
        list(train_loader(source, workers=workers).batches(0, 12))
    assert "Traceback" not in str(caught.value)
    with pytest.raises(UserError, match="4 of 100"):
        list(EvalLoader(Made(100, bad=(3, 20, 60, 70)), SIZE, 16, workers=workers))


def test_when_nothing_can_be_read_and_all_of_it_is_accepted_it_still_ends():
    source = Made(20, bad=range(20))
    source.bad = BadFiles("made", 20, 20)
    with pytest.raises(UserError, match="made: none of its pictures can be read"):
        list(train_loader(source).batches(0, 1))


def test_draws_of_a_class_stay_in_it_when_a_picture_cannot_be_read_and_classes_are_balanced():
    source = Made(42, bad=(31,))
    source.targets = ClassLabels([0] * 31 + [1] * 2 + [0] * 8 + [2])
    batches = list(train_loader(source, batch_size=42, order=OrderSettings(balance=True)).batches(0, 3))
    counts = torch.bincount(torch.cat([batch.targets["label"] for batch in batches]))
    assert counts.tolist() == [42, 42, 42]
    assert 31 not in torch.cat([batch.ids for batch in batches])


# ---- Evaluation


@pytest.mark.parametrize("kind", [Made, Kept])
def test_evaluation_sees_everything_once_in_order(kind):
    source = kind(21)
    loader = EvalLoader(source, SIZE, 8)
    for _ in range(2):
        batches = list(loader)
        assert [len(batch) for batch in batches] == [8, 8, 5]
        assert torch.cat([batch.ids for batch in batches]).tolist() == list(range(21))
        assert torch.cat([batch.targets["label"] for batch in batches]).tolist() == source.labels.tolist()
        images = torch.cat([batch.images for batch in batches])
        for index in range(21):
            assert torch.equal(images[index], SIZE.normalised(SIZE.resized(source.read(index))))


def test_evaluation_without_room_to_keep_is_the_same(monkeypatch: pytest.MonkeyPatch):
    kept = list(EvalLoader(Kept(21), SIZE, 8))
    monkeypatch.setattr("vitreous.data.loader.KEEP_BYTES", 0)
    for a, b in zip(EvalLoader(Kept(21), SIZE, 8), kept, strict=True):
        assert_equal(a, b)


def test_evaluation_leaves_bad_pictures_out():
    loader = EvalLoader(Made(200, bad=(3, 199)), SIZE, 64)
    ids = torch.cat([batch.ids for batch in loader])
    assert ids.tolist() == [index for index in range(199) if index != 3]
    assert loader.bad.reasons == {f"made/{index}.png": "cut short" for index in (3, 199)}


def test_evaluation_workers_stay_and_agree():
    alone = list(EvalLoader(Made(40), SIZE, 8))
    helped = EvalLoader(Made(40), SIZE, 8, workers=2)
    for _ in range(2):
        for a, b in zip(alone, helped, strict=True):
            assert_equal(a, b)
    assert len(list(islice(helped, 1))) == 1  # left in the middle, then whole again
    assert len(list(helped)) == 5


STOPPED = """
import multiprocessing, os, signal
from test_loader import SIZE, EvalLoader, Made
helped = EvalLoader(Made(40), SIZE, 8, workers=2)
list(helped)
os.kill(multiprocessing.active_children()[0].pid, signal.SIGSTOP)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no process can be stopped here")
@pytest.mark.parametrize(("then", "code"), [("list(helped)", 1), ("", 0)])
def test_an_idle_reader_that_was_stopped_is_waited_for_no_longer_than_stated(then: str, code: int):
    """Neither by the next evaluation, nor by the end of the program."""
    ended = subprocess.run(
        [sys.executable, "-c", STOPPED + then],
        cwd=Path(__file__).parent,
        env=os.environ | {"VITREOUS_READER_TIMEOUT_S": "2"},
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    assert ("ReaderStalledError: the processes that read pictures" in ended.stderr) == (code == 1)


SIGNALLED = """
import os, signal
from multiprocessing.process import BaseProcess
from test_loader import SIZE, EvalLoader, Made
from vitreous.signals import Process
start = BaseProcess.start
BaseProcess.start = lambda process: (start(process), os.kill(os.getpid(), signal.SIGUSR1))
with Process() as process:
    process.hear()
    list(EvalLoader(Made(40), SIZE, 8, workers=2))
"""


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="nothing is forked here")
def test_a_signal_while_readers_are_started_waits_until_they_are_known():
    """Or nobody ends those that are running already, and Python waits for them for ever."""
    command, here = [sys.executable, "-c", SIGNALLED], Path(__file__).parent
    ended = subprocess.run(command, check=False, cwd=here, capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stderr) == (138, "vitreous: SIGUSR1: stopped\n")


BROKEN_OFF = """
import multiprocessing.resource_sharer as sharer, socket, time
from vitreous.data.readers import _begin_reading
_begin_reading(0)
taker = socket.socket(socket.AF_UNIX)
taker.connect(sharer.DupFd(1)._id[0])
taker.close()
time.sleep(0.3)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of sockets with a path")
def test_a_reader_whose_batch_is_not_taken_prints_no_traceback():
    """The process that takes it ends because another reader was killed, say."""
    ended = subprocess.run([sys.executable, "-c", BROKEN_OFF], check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


# ---- Compilation


@pytest.mark.parametrize("crop", ["random-resized", "pad"])
def test_prepare_traces_without_breaks(crop):
    loader = train_loader(
        Kept(50), Augmentation(crop=CropSettings(method=crop), mix=MixSettings(mixup=0.8, cutmix=1.0))
    )
    compiled = torch.compile(loader.prepare, backend="aot_eager", fullgraph=True)
    for inputs in loader.inputs(0, 2):
        plain, traced = loader.prepare(*inputs), compiled(*inputs)
        torch.testing.assert_close(traced.images, plain.images)
        assert torch.equal(traced.targets["weight"], plain.targets["weight"])


@pytest.mark.parametrize("crop", ["pad", "squash", "centre"])
def test_pictures_cut_once_equal_those_cut_each_time(crop, monkeypatch):
    source = Kept(40)
    made = {}
    for name, room in (("once", 2**31), ("each time", 0)):
        monkeypatch.setattr("vitreous.data.loader.KEEP_BYTES", room)
        view = Augmentation(crop=CropSettings(method=crop)).build(Preprocessing(size_px=(16, 16)))
        loader = TrainLoader(source, [view], batch_size=8, seed=3)
        assert (loader._pictures.shape[1:3] == (16, 16)) == (name == "once")
        made[name] = [batch.images for batch in loader.batches(0, 6)]
    assert all(torch.equal(a, b) for a, b in zip(*made.values(), strict=True))
