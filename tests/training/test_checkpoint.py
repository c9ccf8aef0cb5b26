import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from tiny import write_shares

from vitreous.errors import UserError
from vitreous.storage import atomic
from vitreous.training.checkpoint import Checkpoints
from vitreous.weights import own


def tensors(step):
    return {"objective": {"w": torch.full((50,), float(step))}, "optimizer": {"w/step": torch.tensor(step)}}


def save(checkpoints, *steps):
    for step in steps:
        checkpoints.save(step, tensors(step), {"step": step})


def flip(path, seed=0):
    content = bytearray(path.read_bytes())
    at = random.Random(seed).randrange(len(content) * 8)
    content[at // 8] ^= 1 << (at % 8)
    path.write_bytes(content)


def assert_is(checkpoint, step):
    assert checkpoint.step == checkpoint.state["step"] == step
    for stem, named in tensors(step).items():
        for name, value in named.items():
            assert torch.equal(checkpoint.tensors[stem][name], value)


def test_cycle(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.latest() is None
    checkpoints.save(12, tensors(12), {"step": 12}, elapsed_s=3.5)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000012"]
    found = Checkpoints(tmp_path / "checkpoints").latest()
    assert_is(found, 12)
    assert found.elapsed_s == 3.5
    assert found.notes == ()


def test_the_newest_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    save(checkpoints, 5, 90, 100, 1000, 200_000_000)
    assert list(checkpoints.paths()) == [100, 1000, 200_000_000]
    assert_is(checkpoints.latest(), 200_000_000)
    with pytest.raises(ValueError, match="keep at least 2 checkpoints"):
        Checkpoints(tmp_path, keep=1)


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "objective.safetensors", "optimizer.safetensors"])
def test_a_flipped_bit_takes_the_one_before(tmp_path, name):
    for seed in range(5):
        checkpoints = Checkpoints(tmp_path / str(seed))
        save(checkpoints, 1, 2)
        folder = checkpoints.folder / "step-00000002"
        flip(folder / name, seed)
        found = Checkpoints(checkpoints.folder).latest()
        if own.verify_folder(folder) is None:
            # A bit of the manifest that says nothing about the files, such as a version's.
            assert name == "manifest.json"
            assert_is(found, 2)
        else:
            assert_is(found, 1)
            assert len(found.notes) == 1
            assert "step-00000002" in found.notes[0]


def test_damaged_and_later_ones_do_not_crowd_out_sound_ones(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10, 20)
    flip(tmp_path / "step-00000020" / "objective.safetensors")
    again = Checkpoints(tmp_path)
    assert_is(again.latest(), 10)
    save(again, 15)
    assert list(again.paths()) == [10, 15]
    save(again, 20, 25)
    assert list(again.paths()) == [20, 25]
    assert_is(Checkpoints(tmp_path).latest(), 25)


def test_one_that_lost_its_manifest_is_replaced(tmp_path):
    """Nobody else writes there, though it could not be told from a stranger's folder any more."""
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10, 20)
    (tmp_path / "step-00000020" / own.MANIFEST).unlink()
    assert_is(checkpoints.latest(), 10)
    save(checkpoints, 20)
    assert_is(Checkpoints(tmp_path).latest(), 20)


def test_none_whole_is_an_error_and_nothing_is_removed(tmp_path):
    save(Checkpoints(tmp_path), 1, 2)
    for folder in tmp_path.iterdir():
        flip(folder / "objective.safetensors")
    with pytest.raises(UserError, match="no checkpoint is intact"):
        Checkpoints(tmp_path).latest()
    assert len(list(tmp_path.iterdir())) == 2


def test_one_that_was_renamed_is_not_believed(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1, 2)
    (tmp_path / "step-00000002").rename(tmp_path / "step-00000900")
    found = checkpoints.latest()
    assert_is(found, 1)
    assert "step-00000900: renamed; it was saved after 2 steps" in found.notes[0]
    save(checkpoints, 2, 3)
    assert list(checkpoints.paths()) == [2, 3]


def test_a_failed_save_leaves_the_others(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1, 2)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(own, "save_file", full)
    with pytest.raises(UserError, match="No space left on device"):
        save(checkpoints, 3)
    assert list(checkpoints.paths()) == [1, 2]
    assert len(list(tmp_path.iterdir())) == 2
    assert_is(checkpoints.latest(), 2)


# One process imports torch; for every line it reads it forks another that saves checkpoints until it is killed. It
# says which steps it has saved, so that the parent can tell what must still be there.
WRITER = """
import os, sys, torch
from pathlib import Path
from vitreous.training.checkpoint import Checkpoints
from vitreous.storage import atomic
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        atomic.sweep(Path(sys.argv[1]))
        checkpoints = Checkpoints(Path(sys.argv[1]))
        step = int(line)
        while True:
            step += 1
            named = {"w": torch.full((50,), float(step))}
            tensors = {"objective": named, "optimizer": {"w/step": torch.tensor(step)}}
            checkpoints.save(step, tensors, {"step": step})
            if step % 2:  # and again, so that a replacement is killed too
                checkpoints.save(step, tensors, {"step": step})
            os.write(1, f"{step}\\n".encode())
    os.write(1, f"pid {pid}\\n".encode())
    os.waitpid(pid, 0)
    os.write(1, b"dead\\n")
"""


def test_killed_at_any_moment_there_is_a_whole_checkpoint(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    choice = random.Random(0)
    command = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        last = 0
        for _ in range(12):
            writer.stdin.write(f"{last}\n")
            writer.stdin.flush()
            said = []
            pid = None
            while pid is None or not said:  # its first checkpoint is in place
                word = writer.stdout.readline().split()
                if word[0] == "pid":
                    pid = int(word[1])
                else:
                    said.append(int(word[0]))
            time.sleep(choice.uniform(0, 0.05))
            os.kill(pid, signal.SIGKILL)
            while (line := writer.stdout.readline()) != "dead\n":
                said.append(int(line))
            found = Checkpoints(folder).latest()
            assert_is(found, found.step)
            assert found.notes == ()
            assert found.step in (said[-1], said[-1] + 1)
            last = found.step
        writer.stdin.close()
    atomic.sweep(folder)
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    assert_is(Checkpoints(folder).latest(), last)


def test_shares_of_several_ranks_are_one_checkpoint(tmp_path):
    checkpoints, full = Checkpoints(tmp_path), torch.arange(15.0).view(5, 3)
    shares = [{"w": full[:2], "count": torch.tensor(7)}, {"w": full[2:4]}, {"w": full[4:]}]
    draft, files = write_shares(checkpoints, 4, shares)
    assert checkpoints.latest() is None  # no manifest, no checkpoint
    checkpoints.finish(4, draft, files, 1.5)
    found = Checkpoints(tmp_path).latest()
    assert (found.step, found.state, found.elapsed_s) == (4, {"step": 4}, 1.5)
    assert torch.equal(found.tensors["objective"]["w"], full)
    assert found.tensors["objective"]["count"] == 7


def test_a_share_that_is_missing_is_noticed(tmp_path):
    save(Checkpoints(tmp_path), 1)
    full = torch.arange(15.0).view(5, 3)
    draft, files = write_shares(Checkpoints(tmp_path), 4, [{"w": full[:3]}, {"w": full[3:]}])
    (lost,) = (name for name in files if "00002-of" in name)
    next(tmp_path.glob(f".*/{lost}")).unlink()
    del files[lost]
    Checkpoints(tmp_path).finish(4, draft, files, 0.0)
    found = Checkpoints(tmp_path).latest()
    assert found.step == 1
    assert "some rows are missing" in found.notes[0]
