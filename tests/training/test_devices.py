import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
from tiny import Points, Regress, make_loop, weights

import vitreous
from vitreous import platforms
from vitreous.data.augmentation import MixSettings
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.recipes.fashion import fashion_vit
from vitreous.settings import save
from vitreous.training import devices
from vitreous.training.devices import World, autocast, compiles, fresh, is_of_ranks
from vitreous.training.graph import GraphedStep
from vitreous.training.optim import SGDSettings
from vitreous.training.run import RunDirectory

# What every rank runs. A rank other than the first must not write below the run directory, and the threads of the
# process group must have ended before the interpreter does: what is left of them then aborts the process at times.
RANK = """
import atexit, os, sys
from pathlib import Path
recipe, out = sys.argv[1:]

@atexit.register
def look_for_threads():
    left = [name for file in Path("/proc/self/task").glob("*/comm") if "gloo" in (name := file.read_text().strip())]
    if left:
        print("STILL RUNNING", left, flush=True)

def watch(event, arguments):
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        changed = arguments[0]
    elif event in ("os.mkdir", "os.rename", "os.remove", "os.truncate"):
        changed = arguments[0]
    else:
        return
    if str(changed).startswith(out):
        print("WROTE", changed, flush=True)

if os.environ["RANK"] != "0":
    sys.addaudithook(watch)
from vitreous.cli import main
main(["train", recipe, "--out", out])
"""


def test_world_of_one(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    world = World.join("cpu")
    assert (world.rank, world.size, world.is_first, world.device) == (0, 1, True, torch.device("cpu"))
    assert world.mean(torch.ones(2)).eq(1).all()
    assert world.any(True, False) == [True, False]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    assert World.join("auto").device.type == "cpu"
    with pytest.raises(UserError, match="no GPU"):
        World.join("cuda")


@pytest.mark.parametrize(
    "given",
    [
        {"RANK": "1", "WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
        {"WORLD_SIZE": "two", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
    ],
)
def test_ranks_that_were_not_told_how_to_meet(given, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"but not how they meet .*: start them with torchrun") as raised:
        World.join("cpu")
    assert "\n" not in str(raised.value) and f"WORLD_SIZE={given['WORLD_SIZE']}" in str(raised.value)


def test_more_processes_than_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(UserError, match="on a host with 1 GPU, and each needs one of its own: give torchrun --nproc"):
        World.join("auto")


def test_autocast():
    x = torch.ones(2, 2)
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        with autocast(torch.device("cpu"), precision):
            assert (x @ x).dtype == dtype


def tiny_recipe():
    recipe = fashion_vit()
    return replace(
        recipe,
        data=replace(recipe.data, train_limit=240, val_fraction=0.02),
        model=ViTSettings(picture_px=(28, 28), patch=7, width=16, depth=2, heads=2),
        augmentation=replace(recipe.augmentation, mix=MixSettings(mixup=0.8)),
        optimizer=SGDSettings(lr=0.05),  # the others make much of a rounding error where a gradient is small
        training=replace(
            recipe.training, steps=60, batch_size=40, log_every_steps=7, evaluate_every_epochs=3, checkpoint_every_s=0.1
        ),
    )


def start_ranks(recipe_path, out, port=None, **environment):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = port or free.getsockname()[1]
    shared = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} | environment
    return [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(recipe_path), str(out)],
            env=shared | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def finish(processes):
    ended = [process.communicate(timeout=100) for process in processes]
    return [process.returncode for process in processes], ended


def test_two_ranks_stop_together_and_go_on(tmp_path):
    """SIGTERM reaches one of them only; both save and stop after the same step, and go on from it."""
    recipe = tiny_recipe()
    save(recipe, tmp_path / "recipe.json")
    ranks = start_ranks(tmp_path / "recipe.json", tmp_path / "two")
    while not list((tmp_path / "two").glob("checkpoints/step-*")):
        assert all(process.poll() is None for process in ranks), finish(ranks)
        time.sleep(0.005)
    ranks[1].send_signal(signal.SIGTERM)
    codes, ended = finish(ranks)
    assert codes == [143, 143], ended
    said = {errors for _, errors in ended}
    assert len(said) == 1, said
    assert "SIGTERM: stopped after step" in said.pop()

    ranks = start_ranks(tmp_path / "recipe.json", tmp_path / "two")
    codes, ended = finish(ranks)
    assert codes == [0, 0], ended
    assert "test  accuracy" in ended[0][0]
    assert ended[1] == ("", "")
    assert [row["step"] for row in RunDirectory(tmp_path / "two").rows() if "loss" in row] == [*range(7, 60, 7), 60]


@pytest.mark.parametrize("refused", ["by one", "by all"])
def test_of_the_ranks_that_torchrun_starts_on_a_host_one_says_why_all_end(tmp_path, refused):
    recipe, out = tiny_recipe(), tmp_path / "out"
    if refused == "by one":  # only the first looks at the folder
        out.mkdir()
        (out / "mine.txt").touch()
    else:
        recipe = replace(recipe, training=replace(recipe.training, batch_size=39))
    save(recipe, tmp_path / "recipe.json")
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)  # as torchrun has one
    codes, ended = finish(
        start_ranks(tmp_path / "recipe.json", out, port=store.port, TORCHELASTIC_USE_AGENT_STORE="True")
    )
    assert codes == [2, 2], ended
    said = "".join(errors for _, errors in ended)
    assert said.count("\n") == 1 and ("with 'mine.txt' in it" if refused == "by one" else "cannot share evenly") in said


def test_a_rank_whose_network_is_cut_does_not_wait_for_the_words_of_the_lost_one(monkeypatch):
    class Silent:
        def compare_set(self, *words):
            threading.Event().wait(20)

        check = compare_set

    monkeypatch.setattr(devices._Words, "store", Silent())
    monkeypatch.setattr(devices, "ANSWER_S", 0.05)
    began = time.monotonic()
    with (
        pytest.raises(devices.LostRankError, match="rank 1 of 2 lost another one"),
        World(1, 2, torch.device("cpu")).together(),
    ):
        raise RuntimeError("[gloo] Connection closed by peer")
    assert time.monotonic() - began < 10


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_graphed_step_equals_an_eager_one(tmp_path, dropout):
    class Dropping(Regress):
        def forward(self, batch, progress):
            answers = self.encoder(torch.nn.functional.dropout(batch.images, dropout)).pooled.squeeze(1)
            return {"loss": (answers - batch.targets["wanted"]).square().mean()}

        def after_step(self, progress):
            pass

    gpu, outcomes = World(rank=0, size=1, device=torch.device("cuda", 0)), []
    for graphed in (False, True):
        loop = make_loop(objective=Dropping(), world=gpu, cuda_graph=graphed, steps=20, clip=1.0)
        assert isinstance(loop.run_step, GraphedStep) == graphed
        with RunDirectory(tmp_path / str(graphed), tensorboard=False) as directory:
            loop.run(directory, None)
        outcomes.append((directory.rows(), weights(loop)))
    (eager_rows, eager_weights), (graphed_rows, graphed_weights) = outcomes
    assert [row["step"] for row in graphed_rows] == [3, 6, 9, 12, 15, 18, 20]
    for expected, found in zip(eager_rows, graphed_rows, strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert found["rate_factor"] == expected["rate_factor"]
    for name, tensor in eager_weights.items():
        torch.testing.assert_close(graphed_weights[name], tensor, atol=1e-6, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_graphed_step_that_goes_bad_changes_nothing(tmp_path):
    gpu = World(rank=0, size=1, device=torch.device("cuda", 0))

    class Quiet(Regress):
        def forward(self, batch, progress):
            answers = self.encoder(batch.images).pooled.squeeze(1)
            return {"loss": (answers - batch.targets["wanted"]).square().mean()}

        def after_step(self, progress):
            pass

    good = make_loop(objective=Quiet(), world=gpu, cuda_graph=True, steps=9)
    with RunDirectory(tmp_path / "good", tensorboard=False) as directory:
        good.run(directory, None)
    bad = make_loop(
        objective=Quiet(), world=gpu, cuda_graph=True, steps=12, data=Points(bad_step=10, device=gpu.device)
    )
    with RunDirectory(tmp_path / "bad", tensorboard=False) as directory, pytest.raises(UserError, match="at step 10;"):
        bad.run(directory, None)
    for name, tensor in weights(good).items():
        torch.testing.assert_close(weights(bad)[name], tensor, atol=1e-6, rtol=1e-5)


def test_a_cuda_graph_is_for_gpus_only(tmp_path):
    loop = make_loop(cuda_graph=True, steps=3)
    with RunDirectory(tmp_path, tensorboard=False) as directory:
        loop.run(directory, None)
    assert [row["step"] for row in directory.rows()] == [3]


@pytest.mark.parametrize(("kind", "can"), [("cpu", False), ("cpu", True), ("cuda", True), ("mps", True)])
def test_precision_and_compilation_choose_themselves_by_the_device(kind, can, monkeypatch):
    monkeypatch.setattr(platforms, "cpu_has_bfloat16", lambda: can)
    device, is_gpu = torch.device(kind), kind == "cuda"
    assert compiles(device, "auto") is is_gpu
    assert compiles(device, True) and not compiles(device, False)
    made = []
    monkeypatch.setattr(torch, "autocast", lambda _, dtype, enabled: made.append(enabled))
    for precision in ("auto", "fp32", "bf16"):
        autocast(device, precision)
    assert made == [can and kind != "mps", False, True]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_streamed_pictures_fit_a_graph_too(tmp_path):
    """What readers bring goes into the graph's own buffers: pictures need not be in memory."""
    rows = []
    for graphed in (False, True):
        recipe = tiny_recipe()
        training = replace(
            recipe.training, steps=30, precision="fp32", compile=False, cuda_graph=graphed, workers=2, device="cuda"
        )
        streamed = replace(recipe, data=replace(recipe.data, keep_gb=0.0), training=training)
        vitreous.train(streamed, tmp_path / str(graphed), read_test=False)
        rows.append([row["loss"] for row in RunDirectory(tmp_path / str(graphed)).rows() if "loss" in row])
    eager, from_graph = rows
    assert len(eager) > 3
    assert from_graph == pytest.approx(eager, rel=1e-4)


@pytest.mark.parametrize(
    ("words", "is_so"),
    [
        ("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711", True),
        ("Application timeout caused pair closure", True),
        ("Connection reset by peer", True),
        ("size mismatch for head.weight", False),
    ],
)
def test_what_torch_says_of_a_lost_rank(words, is_so):
    assert is_of_ranks(RuntimeError(words)) == is_so


def test_ranks_that_are_started_again_do_not_read_what_was_said_before():
    """Whoever comes first. torchrun keeps a store from start to start, and may start fewer."""
    host, soon = "127.0.0.1", timedelta(seconds=0.5)
    kept = torch.distributed.TCPStore(host, 0, is_master=True, wait_for_workers=False)

    def meet(start, size, rank, after_s):
        time.sleep(after_s)
        there = torch.distributed.TCPStore(host, kept.port, timeout=timedelta(seconds=20))
        store = fresh(there, rank, size, timedelta(seconds=20))
        store.set(f"place/{rank}", f"{start}/{rank}")
        return {store.get(f"place/{other}").decode() for other in range(size)}

    for start, waits in enumerate([(0.0, 0.0, 0.0), (0.2, 0.0, 0.1), (0.0, 0.2, 0.1), (0.0, 0.1)]):
        size = len(waits)
        with ThreadPoolExecutor() as threads:
            met = [threads.submit(meet, start, size, rank, after_s) for rank, after_s in enumerate(waits)]
        assert [one.result() for one in met] == [{f"{start}/{rank}" for rank in range(size)}] * size
    for rank in range(2):  # alone, where both have been before
        with pytest.raises(torch.distributed.DistError):
            fresh(torch.distributed.TCPStore(host, kept.port, timeout=soon), rank, 2, soon)
