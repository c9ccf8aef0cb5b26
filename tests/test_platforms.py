"""Other systems and devices, as far as Linux can play them: with the modules and functions hidden that they lack."""

import io
import os
import pickle
import socket
import subprocess
import sys
import tarfile
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from promises import OPEN, shrunk
from scenes import encoded, scene, write_scenes
from vitreous import platforms
from vitreous.data.memory import InMemory
from vitreous.data.sources import DataSettings
from vitreous.errors import UserError
from vitreous.jobs.build import build_loader, build_objective
from vitreous.jobs.train import train
from vitreous.models.base import Grid
from vitreous.objectives.beit import draw_blocks
from vitreous.prediction.embedder import Embedder
from vitreous.recipes import find_recipe
from vitreous.tasks.base import Task
from vitreous.training.devices import World
from vitreous.training.loop import Meter

# Windows, but for what torch itself needs: no fcntl, no resource, no reading at an offset, other locks, no fork.
ELSEWHERE = """
import fcntl, importlib, os, pkgutil, signal, sys, types
import torch.utils.data, multiprocessing.connection, subprocess, tempfile, matplotlib.pyplot, PIL.Image

def locking(handle, mode, size):
    fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, size)

sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in ("pread", "preadv", "O_NONBLOCK", "O_CLOEXEC", "getloadavg", "fork"):
    delattr(os, name)
import vitreous
from vitreous import platforms
platforms.WINDOWS, platforms.CHILD_ENDED, platforms.READERS_START = True, None, "spawn"
for module in pkgutil.walk_packages(vitreous.__path__, "vitreous."):
    if not module.name.startswith(("vitreous.serve", "vitreous.__main__", "vitreous.nn.kernels.")):  # these need Triton
        importlib.import_module(module.name)
if __name__ == "__main__":
    from vitreous.cli import main
    main(sys.argv[1:])
"""


def test_elsewhere_everything_is_imported_and_trains_with_spawned_readers(tmp_path):
    write_scenes(tmp_path / "pictures", {"dark": 20, "light": 20}, size=(28, 28))
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    command = ["train", "fashion_vit", "--data.where", str(tmp_path / "pictures"), "--data.keep_gb", "0"]
    command += ["--model.width", "16", "--model.depth", "1", "--model.heads", "2", "--training.batch_size", "8"]
    command += ["--training.steps", "3", "--training.workers", "1", "--training.evaluate_every_epochs", "0"]
    command += ["--device", "cpu", "--out", str(tmp_path / "run")]
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "elsewhere.py"), *command], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    # Readers are started anew, and read the same.
    here = find_recipe(str(tmp_path / "run" / "recipe.json"), {})
    train(replace(here, training=replace(here.training, workers=0)), tmp_path / "here")
    weights = [(tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("run", "here")]
    assert weights[0] == weights[1]


def sources(tmp_path):
    write_scenes(tmp_path / "folder", {"a": 2, "b": 2}, size=(9, 8))
    yield str(tmp_path / "folder")
    (tmp_path / "table.csv").write_text("path,label\nfolder/a/0000.png,x\nfolder/b/0001.png,y\n")
    yield str(tmp_path / "table.csv")
    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        for label in "ab":
            content = encoded(scene(ord(label), size=(9, 8)))
            member = tarfile.TarInfo(f"{label}/1.png")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    yield str(tmp_path / "set.tar")
    yield "fashion"
    yield "rendered:orientation"


def test_every_source_can_be_sent_to_a_reader_that_was_not_forked(tmp_path):
    for where in sources(tmp_path):
        settings = DataSettings(where=where, val_fraction=0.0, test_fraction=0.0, keep_gb=0.0)
        train = settings.build().train
        for source in (train, InMemory(train)) if len(train) < 100 else (train,):
            sent = pickle.loads(pickle.dumps(source))
            assert np.array_equal(sent.read(1), source.read(1)) and sent.where(1) == source.where(1)
            assert np.array_equal(sent.labels, source.labels)


def test_reading_at_a_place_without_the_calls_of_unix(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(bytes(range(100)))
    descriptor = os.open(tmp_path / "file", platforms.READING)
    for hidden in (False, True):
        if hidden:
            monkeypatch.delattr(os, "pread")
            monkeypatch.delattr(os, "preadv")
        room = bytearray(8)
        assert platforms.read_at(descriptor, 5, 40) == bytes(range(40, 45))
        assert platforms.read_at(descriptor, 50, 98) == b"bc"
        assert platforms.read_into(descriptor, memoryview(room), 96) == 4 and room == b"`abc\0\0\0\0"
    os.close(descriptor)


def test_is_running():
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert platforms.is_running(os.getpid()) and platforms.is_running(1)
    assert not platforms.is_running(ended.pid) and not platforms.is_running(2**80)


# ---- A device without float64


class Watch(TorchDispatchMode):
    """Torch's device of shapes without values stands in for one that lacks float64."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            assert not (isinstance(tensor, torch.Tensor) and tensor.is_meta and tensor.dtype == torch.float64), (
                f"{func} makes float64"
            )
        return made


@pytest.fixture
def lacking(monkeypatch):
    monkeypatch.setattr(platforms, "WITHOUT_FLOAT64", {"meta"})
    monkeypatch.setattr(torch, "autocast", lambda *words, **options: nullcontext())  # which shapes alone do not have
    return World(rank=0, size=1, device=torch.device("meta"))


RANDAUGMENT = {"augmentation.warp.ops": "2", "augmentation.mix.mixup": "0.8", "augmentation.mix.cutmix": "1"}
CASES = {
    "cifar10_tuned": RANDAUGMENT | {"augmentation.erase.probability": "0.5", "augmentation.colour.brightness": "0.2"},
    "cifar10_byol": {},  # crops of any size, all of colour
    "cifar10_mae": {},
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_makes_no_float64_on_a_device_that_has_none(lacking, name):
    recipe = shrunk(find_recipe(name, CASES[name]))
    splits = OPEN(recipe.data)
    objective = build_objective(recipe, splits.train.classes).to(lacking.device)
    loader, meter = build_loader(recipe, splits.train, lacking), Meter(lacking)
    with Watch():
        inputs = next(loader.inputs(0, 1))
        batch = loader.prepare(*inputs)
        losses = objective(batch, torch.zeros((), device=lacking.device))
        losses["loss"].backward()
        meter.add(losses)
        meter.load_state({name: torch.zeros(2, dtype=torch.float64) for name in losses})
        if isinstance(objective.task, Task):
            objective.task.metric().update(objective.task.predict(batch.images), batch)
    assert batch.images.is_meta and meter.sums["loss"].dtype == torch.float32


def test_blocks_make_no_float64_on_a_device_that_has_none(lacking):
    with Watch():
        draw_blocks(torch.zeros(4, dtype=torch.int64, device="meta"), Grid(8, 8), 20, least=4, aspect=0.3)


def test_the_watch_sees_float64():
    with Watch(), pytest.raises(AssertionError, match="makes float64"):
        torch.ones(2, device="meta").double()


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="there is one")
def test_an_apple_gpu_that_is_not_there():
    with pytest.raises(UserError, match="no Apple GPU"):
        World.join("mps")


@pytest.mark.parametrize("ask", [World.join, partial(Embedder.load, "vitreous-xs")], ids=["training", "predicting"])
def test_a_device_that_is_not_there_is_one_line(ask, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="device is cuda, but this torch finds no GPU here"):
        ask("cuda")
    with pytest.raises(UserError, match="device is 'gpu', and there is none of that name"):
        ask("gpu")


def test_how_long_processes_wait_for_each_other(monkeypatch):
    monkeypatch.delenv("VITREOUS_READER_TIMEOUT_S", raising=False)
    assert platforms.reader_timeout_s() == 600
    monkeypatch.setenv("VITREOUS_READER_TIMEOUT_S", "2.5")
    assert platforms.reader_timeout_s() == 2.5
    for wrong in ("soon", "0", "nan", "inf"):
        monkeypatch.setenv("VITREOUS_READER_TIMEOUT_S", wrong)
        with pytest.raises(UserError, match="VITREOUS_READER_TIMEOUT_S is"):
            platforms.reader_timeout_s()


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 vaes", "", True),
        ("flags\t\t: fpu amx_bf16 amx_tile", "1", True),
        ("flags\t\t: fpu avx512_bf16", "0", False),
        ("flags\t\t: fpu avx2 not_avx512_bf16", "", False),
        (None, "", False),
    ],
)
def test_which_cpus_are_made_for_bfloat16(text, given, expected, tmp_path, monkeypatch):
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(platforms, "CPU_INFO", file)
    monkeypatch.setenv("VITREOUS_CPU_BFLOAT16", given)
    assert platforms.cpu_has_bfloat16.__wrapped__() is expected


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot do that")
def test_whoever_is_in_the_queue_can_be_accepted_when_nobody_new_gets_in():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        early = socket.create_connection(listening.getsockname())
        assert platforms.admit_no_more(listening)
        with pytest.raises(TimeoutError):
            socket.create_connection(listening.getsockname(), timeout=0.1)
        accepted, _ = listening.accept()
    with early, accepted:
        early.sendall(b"asked")
        assert accepted.recv(10) == b"asked"
