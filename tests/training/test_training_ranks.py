"""One, two and four real processes train the same model."""

import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import ranks_job

from vitreous.training.run import RunDirectory

NAMES = ("plain", "resumed", "parts", "muon", "simclr", "hybrid", "dino", "partly", "diverged")
SHARDED = ("sharded", "sharded_parts", "sharded_dino")


def start(size, out, names):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = os.environ | {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            [sys.executable, ranks_job.__file__, str(out / str(size)), ",".join(names)],
            env=shared | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def finish(processes):
    said = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), said
    assert not any("Warning" in errors for errors in said), said  # of torch


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """<size>/<name>, of one and of two processes."""
    out = tmp_path_factory.mktemp("ranks")
    two = start(2, out, (*NAMES, *SHARDED))
    ranks_job.main(out / "1", NAMES)
    finish(two)
    return out


def losses(run):
    return [row["loss"] for row in RunDirectory(run).rows() if "loss" in row]


def weights(run: Path):
    return hashlib.sha256(next((run / "model").glob("*.safetensors")).read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["plain", "parts", "simclr", "hybrid", "dino"])
def test_two_ranks_learn_as_one(runs, name):
    """With stochastic depth: it is drawn from the samples' keys."""
    one, two = losses(runs / "1" / name), losses(runs / "2" / name)
    assert len(one) == (3 if name == "hybrid" else ranks_job.STEPS)
    assert two == pytest.approx(one, abs=1e-5)


@pytest.mark.parametrize("name", ["plain", "parts", "dino"])
def test_two_ranks_with_a_share_of_the_weights_each_learn_as_one(runs, name):
    """Parts with an average and activations computed again; a momentum teacher, whose share follows its student's."""
    sharded = "sharded" if name == "plain" else f"sharded_{name}"
    assert losses(runs / "2" / sharded) == pytest.approx(losses(runs / "1" / name), abs=1e-5)


def test_muon_moves_the_same_on_both_ranks(runs):
    """Its rounds are in bfloat16, which makes much of a rounding error."""
    one, two = losses(runs / "1" / "muon"), losses(runs / "2" / "muon")
    assert two == pytest.approx(one, abs=1e-3)


@pytest.mark.parametrize("size", ["1", "2"])
def test_resuming_is_exact(runs, size):
    assert losses(runs / size / "resumed") == losses(runs / size / "plain")
    assert weights(runs / size / "resumed") == weights(runs / size / "plain")


def test_what_the_loss_does_not_reach(runs):
    """It stays as it is. What it reaches on one rank only counts by half; a batch in parts is exchanged once."""
    one, two = (json.loads((runs / size / "partly" / "found.json").read_text()) for size in ("1", "2"))
    assert two["exchanged"] == 12
    for name in ("beside.weight", "beside.bias"):
        assert two["weights"][name] == one["weights"][name]
    for name in ("encoder.first.weight", "encoder.second.bias"):
        assert two["weights"][name] == pytest.approx(one["weights"][name], abs=1e-6)
    assert two["weights"]["at_times.weight"] != one["weights"]["at_times.weight"]


def test_every_rank_sees_what_went_wrong_on_one(runs):
    said = {path.read_text() for path in (runs / "2" / "diverged").glob("said-*.txt")}
    assert len(list((runs / "2" / "diverged").glob("said-*.txt"))) == 2
    assert len(said) == 1
    assert "at step 4;" in said.pop()


@pytest.mark.slow
def test_four_ranks_learn_as_one_and_resume_exactly(tmp_path):
    names = ("plain", "resumed", "parts", "simclr", "dino")
    four = start(4, tmp_path, names)
    ranks_job.main(tmp_path / "1", names)
    finish(four)
    for name in names:
        assert losses(tmp_path / "4" / name) == pytest.approx(losses(tmp_path / "1" / name), abs=1e-5), name
    assert losses(tmp_path / "4" / "resumed") == losses(tmp_path / "4" / "plain")
    assert weights(tmp_path / "4" / "resumed") == weights(tmp_path / "4" / "plain")


@pytest.mark.slow
def test_two_compiled_ranks_learn_as_one(tmp_path):
    for size in (1, 2):
        finish(start(size, tmp_path, ["compiled"]))
    assert losses(tmp_path / "2" / "compiled") == pytest.approx(losses(tmp_path / "1" / "compiled"), abs=1e-4)
