"""Streams: ranges of the pictures, each read by one rank alone, and the same global batches at any number of ranks."""

import io
import json
import os
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import streams_job
import torch
from made import png
from segmented_made import noise_png

from vitreous.data import parquet, tar_members
from vitreous.data.augmentation import Augmentation, MixSettings
from vitreous.data.base import Source, Subset
from vitreous.data.loader import TrainLoader
from vitreous.data.memory import InMemory
from vitreous.data.order import Order, OrderSettings
from vitreous.data.sources import DataSettings, open_sources
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.jobs.train import train
from vitreous.training.run import RunDirectory

SIZE = Preprocessing(size_px=(4, 4))
PER_SHARD, SHARDS = 10, 12


def streamed(num: int, batch_size: int, world: int = 1, **given):
    return OrderSettings(**{"streams": 4, "run": 5, "window": 20, **given}).build(num, batch_size, 3, world, None)


def loader_of(source: Source, world: int = 1, rank: int = 0, mix: float = 0.0, **options) -> TrainLoader:
    view = Augmentation(flip=0.0, mix=MixSettings(mixup=mix)).build(SIZE)
    order = OrderSettings(streams=4, run=5, window=10)
    return TrainLoader(source, [view], batch_size=8, seed=3, order=order, world=world, rank=rank, **options)


# ---- the order


def epoch_of(order: Order, epoch: int) -> torch.Tensor:
    """(steps, batch)"""
    places = torch.arange(order.steps_per_epoch * order.batch_size)
    return order.epochs.drawn(epoch, places).view(-1, order.batch_size)


@pytest.mark.parametrize("num", [8, 39, 40, 41, 160, 1000, 1003])
@pytest.mark.parametrize(("run", "window"), [(1, 1), (5, 20), (7, 16), (64, 1000)])
def test_none_twice_none_missing_and_each_stream_within_its_range(num, run, window):
    order = streamed(num, 8, run=run, window=window)
    for epoch in (0, 5):
        found = epoch_of(order, epoch)
        assert len(found) == num // 8 and len(found.unique()) == found.numel()
        for stream, own in enumerate(found.split(2, dim=1)):
            assert own.min() >= stream * num // 4 and own.max() < (stream + 1) * num // 4


def test_what_is_left_out_of_an_epoch_is_something_else_each_time():
    order, seen = streamed(47, 8), torch.zeros(47, dtype=torch.int64)
    for epoch in range(40):
        seen[epoch_of(order, epoch)] += 1
    assert seen.sum() == 40 * 40 and seen.min() > 40 * 40 / 47 - 15


def test_a_window_holds_few_runs_and_mixes_them():
    """What of a stream of 1,000 comes next is bounded by the window, and is not in the order that it is stored in."""
    order = streamed(4000, 8, run=25, window=100)
    stream = epoch_of(order, 0)[:, :2].flatten()
    for start in range(0, 1000, 100):
        window = stream[start : start + 100]
        gaps = window.sort()[0].diff()
        assert (gaps > 1).sum() <= 5, "four runs, of which one may be cut at the ends of window and stream"
        assert (window.diff() == 1).sum() < 15
    firsts = [int(stream[start : start + 100].min()) for start in range(0, 1000, 100)]
    assert firsts != sorted(firsts), "runs do not come as they are stored"


def test_epochs_and_seeds_differ_and_steps_do_not_depend_on_each_other():
    order = streamed(400, 8)
    assert not order(0)[0].equal(order(order.steps_per_epoch)[0])
    later = streamed(400, 8)(133)
    assert all(one.equal(other) for one, other in zip(order(133), later, strict=True))


@pytest.mark.parametrize(
    ("given", "world", "words"),
    [
        ({}, 3, "streams is 4, which 3 processes cannot share evenly: train with 2 processes"),
        ({"streams": 6}, 1, "batch_size is 8, to which 6 streams cannot contribute equally"),
        ({"streams": -1}, 1, "order.streams is -1; it must be at least 0"),
        ({"window": 0}, 1, "order.window is 0; it must be at least 1"),
        ({"balance": True}, 1, "so it cannot balance classes"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(given, world, words):
    with pytest.raises(UserError) as refused:
        streamed(100, 8, world, **given)
    assert words in str(refused.value) and "\n" not in str(refused.value)


# ---- the shards


def write_tars(folder):
    """In stored order, picture n has the colour n."""
    for shard in range(SHARDS):
        with tarfile.open(folder / f"train-{shard:04}.tar", "w") as tar:
            for number in range(shard * PER_SHARD, (shard + 1) * PER_SHARD):
                info = tarfile.TarInfo(f"{'ab'[number % 2]}/{number:05}.png")
                info.size = len(png(number))
                tar.addfile(info, io.BytesIO(png(number)))


def write_parquets(folder):
    for shard in range(SHARDS):
        numbers = range(shard * PER_SHARD, (shard + 1) * PER_SHARD)
        cells = pa.array([{"bytes": png(number), "path": None} for number in numbers])
        table = pa.table({"image": cells, "label": [number % 2 for number in numbers]})
        pq.write_table(table, folder / f"train-{shard:04}.parquet", row_group_size=5)


@pytest.fixture(params=[write_tars, write_parquets], ids=["tar", "parquet"])
def source(request, tmp_path) -> Source:
    request.param(tmp_path)
    return open_sources(str(tmp_path))["train"]


@pytest.fixture
def reads(monkeypatch):
    """(shard, where in it, bytes) of all that is read of shards."""
    found = []
    read_at, get = tar_members._read_at, pq.ParquetFile.read_row_group

    def recorded_read(path, offset, size):
        found.append((path.name, offset, size))
        return read_at(path, offset, size)

    class Recorded(pq.ParquetFile):
        def __init__(self, path, **options):
            super().__init__(path, **options)
            self.where = Path(path).name

        def read_row_group(self, group, **options):
            found.append((self.where, group, self.metadata.row_group(group).total_byte_size))
            return get(self, group, **options)

    monkeypatch.setattr(tar_members, "_read_at", recorded_read)
    monkeypatch.setattr(parquet.pq, "ParquetFile", Recorded)
    return found


@pytest.mark.parametrize("world", [1, 2, 4])
def test_each_rank_reads_its_own_shards_and_all_share_the_same_batches(source, reads, world):
    steps = 120 // 8
    alone = list(loader_of(source).batches(0, steps))
    reads.clear()
    shards, total = [], 0
    for rank in range(world):
        own = list(loader_of(source, world, rank).batches(0, steps))
        for whole, part in zip(alone, own, strict=True):
            mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
            assert part.ids.equal(whole.ids[mine]) and part.keys.equal(whole.keys[mine])
            assert part.images.equal(whole.images[mine])
        shards.append({shard for shard, _, _ in reads})
        assert len(reads) == len(set(reads)), "nothing is read twice"
        total += sum(size for _, _, size in reads)
        reads.clear()
    assert [len(one) for one in shards] == [SHARDS // world] * world
    assert len(set.union(*shards)) == SHARDS, "no shard is read by two"
    assert total > 0


def test_any_step_is_reached_without_what_comes_before(source, reads):
    *_, last = loader_of(source).batches(0, 11)
    reads.clear()
    assert next(loader_of(source).batches(10, 11)).images.equal(last.images)
    assert len(reads) <= 8, "of eight pictures, or of the row groups that they are in"


def test_workers_change_nothing(source):
    for one, other in zip(loader_of(source).batches(3, 9), loader_of(source, workers=2).batches(3, 9), strict=True):
        assert one.ids.equal(other.ids) and one.images.equal(other.images)


def test_a_partner_for_mixing_is_all_that_is_read_of_another_ranks_shards(source, reads):
    list(loader_of(source, world=2, rank=0, mix=0.5).batches(0, 15))
    others = {(shard, place) for shard, place, _ in reads if shard >= "train-0006"}
    assert 0 < len(others) <= 15, "one picture per step, the first of the next rank's first stream"
    assert all(shard < "train-0009" for shard, _ in others)


def test_streams_of_a_part_are_ranges_of_shards_too(source, reads):
    """As where a validation part was carved out."""
    part = Subset(source, np.setdiff1d(np.arange(120), np.arange(0, 120, 7)))
    list(loader_of(part, world=4, rank=1).batches(0, len(part) // 8))
    assert len({shard for shard, _, _ in reads}) <= SHARDS // 4 + 1


def test_row_groups_stay_as_long_as_the_window_needs_them(tmp_path, reads, monkeypatch):
    """And no longer: of 48 row groups, those of the windows of two streams."""
    monkeypatch.setattr(parquet, "CACHE_BYTES", 1)
    cells = [{"bytes": noise_png(number, side=32), "path": None} for number in range(240)]
    pq.write_table(pa.table({"image": cells, "label": [0, 1] * 120}), tmp_path / "x.parquet", row_group_size=5)
    view = Augmentation().build(SIZE)
    times = {}
    for name, order in (("streams", OrderSettings(streams=2, run=20, window=20)), ("anywhere", OrderSettings())):
        source = open_sources(str(tmp_path))["all"]
        reads.clear()
        list(TrainLoader(source, [view], batch_size=8, seed=3, order=order).batches(0, 30))
        assert len({group for _, group, _ in reads}) == 48
        times[name] = len(reads) / 48
        held = sum(column.nbytes for column in source.rows._cache.groups.values())
        assert held < 0.5 * (tmp_path / "x.parquet").stat().st_size
    assert times["streams"] < 1.3 and times["anywhere"] > 3, "row groups at the ends of runs are read twice"


def test_what_is_streamed_is_not_kept_in_memory(tmp_path):
    write_tars(tmp_path)
    settings = DataSettings(where=str(tmp_path), val_fraction=0.0, test_fraction=0.0)
    assert isinstance(settings.build().train, InMemory)
    streams = DataSettings(where=str(tmp_path), val_fraction=0.0, test_fraction=0.0, order=OrderSettings(streams=2))
    assert not isinstance(streams.build().train, InMemory)


def test_real_processes_train_alike_and_open_their_own_shards(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    write_tars(data)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, streams_job.__file__, str(data), str(tmp_path / "two")],
            env=shared | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    train(streams_job.recipe(data), tmp_path / "one", read_test=False)
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    one, two = (
        [row["loss"] for row in RunDirectory(tmp_path / name).rows() if "loss" in row] for name in ("one", "two")
    )
    assert len(one) == streams_job.STEPS and one == pytest.approx(two, abs=1e-5)
    opened = [json.loads((tmp_path / "two" / f"opened-{rank}.json").read_text()) for rank in range(2)]
    shards = [{f"train-{shard:04}.tar": 2 * PER_SHARD for shard in own} for own in (range(6), range(6, 12))]
    assert opened == shards, "every picture of a rank's shards once per epoch, and no other"
