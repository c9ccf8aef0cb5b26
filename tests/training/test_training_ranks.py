"""One, two and four real processes train the same model."""

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import ranks_job
import torch
from tiny import Regress, write_shares

from hosts import ADDRESSES, CABLE, NoHosts, two_hosts
from vitreous import platforms
from vitreous.conversion.convert import convert
from vitreous.jobs.verify import verify
from vitreous.training.checkpoint import Checkpoints
from vitreous.training.devices import World
from vitreous.training.ranks import wants_shards
from vitreous.training.run import RunDirectory
from vitreous.weights import own
from vitreous.weights.trained import Trained

NAMES = ("plain", "resumed", "parts", "muon", "simclr", "hybrid", "dino", "partly", "scaled", "diverged")
SHARDED = ("sharded", "sharded_resumed", "sharded_parts", "uneven")


def start(size, out, names, **environment):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = os.environ | {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            [sys.executable, ranks_job.__file__, str(out / str(size)), ",".join(names)],
            env=shared | {"RANK": str(rank), "OMP_NUM_THREADS": "1"} | environment,
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
    save_in_three_shares(out / "2" / "three")
    two = start(2, out, (*NAMES, *SHARDED, "early", "apart"))
    ranks_job.main(out / "1", (*NAMES, "halves"))
    finish(two)
    return out


def save_in_three_shares(folder):
    """Two rows each, of which there are five, and of one row nothing for the second and the third."""
    objective = {name: tensor.detach() for name, tensor in ranks_job.Uneven(factor=3.0).named_parameters()}
    two, one = {"rows": objective["rows"][2:4]}, {"rows": objective["rows"][4:]}
    checkpoints = Checkpoints(folder)
    draft, files = write_shares(checkpoints, 1, [objective | {"rows": objective["rows"][:2]}, two, one])
    checkpoints.finish(1, draft, files, 0.0)


def losses(run):
    return [row["loss"] for row in RunDirectory(run).rows() if "loss" in row]


def weights(run: Path):
    return hashlib.sha256(next((run / "model").glob("*.safetensors")).read_bytes()).hexdigest()


def test_weights_are_shared_where_their_state_would_fill_more_than_half_a_device(monkeypatch):
    objective, (one, two) = Regress(), (World(0, size, torch.device("cpu")) for size in (1, 2))
    assert not wants_shards(objective, "auto", two, averaged=True)  # the memory of a CPU is not one rank's
    state = 16 * sum(p.numel() for p in objective.parameters())
    monkeypatch.setattr(platforms, "device_memory", lambda device: 2 * state)
    found = [wants_shards(objective, "auto", world, averaged) for world in (one, two) for averaged in (False, True)]
    assert found == [False, False, False, True]
    assert wants_shards(objective, True, one, averaged=False) and not wants_shards(objective, False, two, averaged=True)


@pytest.mark.parametrize("name", ["plain", "parts", "simclr", "hybrid", "dino"])
def test_two_ranks_learn_as_one(runs, name):
    """With stochastic depth: it is drawn from the samples' keys."""
    one, two = losses(runs / "1" / name), losses(runs / "2" / name)
    assert len(one) == (3 if name == "hybrid" else ranks_job.STEPS)
    assert two == pytest.approx(one, abs=1e-5)


@pytest.mark.parametrize(("name", "sharded"), [("plain", "sharded"), ("parts", "sharded_parts")])
def test_two_ranks_with_a_share_of_the_weights_each_learn_as_one(runs, name, sharded):
    assert losses(runs / "2" / sharded) == pytest.approx(losses(runs / "1" / name), abs=1e-5)


def test_two_ranks_equal_one_process_that_computes_a_batch_in_two_parts(runs):
    """Bit for bit: ranks change nothing but the order in which sums are rounded."""
    assert losses(runs / "2" / "plain") == losses(runs / "1" / "halves")
    assert weights(runs / "2" / "plain") == weights(runs / "1" / "halves")


def test_muon_moves_the_same_on_both_ranks(runs):
    """Its rounds are in bfloat16, which makes much of a rounding error."""
    one, two = losses(runs / "1" / "muon"), losses(runs / "2" / "muon")
    assert two == pytest.approx(one, abs=1e-3)


@pytest.mark.parametrize(("size", "name"), [("1", "plain"), ("2", "plain"), ("2", "sharded")])
def test_resuming_is_exact(runs, size, name):
    resumed = "sharded_resumed" if name == "sharded" else "resumed"
    assert losses(runs / size / resumed) == losses(runs / size / name)
    assert weights(runs / size / resumed) == weights(runs / size / name)


def test_what_shares_leave_behind_is_a_plain_model(runs):
    images = torch.randn(8, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    one, two = (Trained.load(runs / size / name).task() for size, name in (("1", "plain"), ("2", "sharded")))
    assert (one.predict(images).logits - two.predict(images).logits).abs().max() < 1e-3


def test_a_checkpoint_in_shares_becomes_a_plain_model(runs, tmp_path):
    run = runs / "2" / "sharded"
    convert(str(run / "checkpoints" / "step-00000050"), tmp_path / "model")
    left, made = own.load_model(run / "model")[0], own.load_model(tmp_path / "model")[0]
    assert left.keys() == made.keys()
    assert all(torch.equal(made[name], tensor) for name, tensor in left.items())


def test_a_run_of_two_ranks_is_verified_by_one(runs):
    """From what they saved in shares."""
    checks = verify(runs / "2" / "sharded_resumed", resume=True)
    assert all(check.holds for check in checks), checks
    assert checks[-1].found.startswith("steps 21 to 28, without a stop and with one after 24: losses and all state eq")


def test_every_rank_saves_its_rows(runs):
    """About the same number of bytes each, nothing twice, and nothing but safetensors and JSON."""
    one, two = (
        runs / size / name / "checkpoints" / "step-00000050" for size, name in (("1", "plain"), ("2", "sharded"))
    )
    held = {file.name: file.stat().st_size for file in two.iterdir()}
    assert {Path(name).suffix for name in held} == {".safetensors", ".json"}
    for stem in ("objective", "optimizer"):
        whole = (one / f"{stem}.safetensors").stat().st_size
        shares = [held[f"{stem}-0000{rank}-of-00002.safetensors"] for rank in (1, 2)]
        assert sum(shares) == pytest.approx(whole, rel=0.2)
        assert max(shares) < 0.6 * whole
    saved, plain = (
        RunDirectory(runs / "2" / "sharded").latest_checkpoint(),
        RunDirectory(runs / "1" / "plain").latest_checkpoint(),
    )
    for stem in ("objective", "optimizer", "average"):
        assert {name: tensor.shape for name, tensor in saved.tensors[stem].items()} == {
            name: tensor.shape for name, tensor in plain.tensors[stem].items()
        }
    assert {tensor.shape for tensor in saved.tensors["meter"].values()} == {(2, 2)}, "a row per rank"


def test_what_cannot_be_shared_evenly_is_saved_and_read(runs):
    """By two ranks, from what two and three have saved, by one: rows, a row, a number; each at the rank that has it."""
    checkpoints = RunDirectory(runs / "2" / "uneven").checkpoints
    for step, factor in ((1, 1.0), (2, 6.0)):
        found = checkpoints.read(step).tensors["objective"]
        wanted = dict(ranks_job.Uneven(factor).named_parameters())
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    folder = own.read_folder(checkpoints.paths()[2])
    assert {name: len(tensor) for name, tensor in folder.tensors["objective-00002-of-00002"].items()}["rows"] == 2
    assert folder.documents["shards-00002-of-00002"]["objective"]["rows"] == [3, 0]
    assert "number" not in folder.tensors["objective-00002-of-00002"]


def test_shares_are_scored_and_the_best_kept(runs):
    one, two = (
        json.loads((runs / size / name / "results.json").read_text())
        for size, name in (("1", "parts"), ("2", "sharded_parts"))
    )
    assert two["val"] == pytest.approx(one["val"], abs=1e-4)
    scored = [
        [row for row in RunDirectory(runs / size / name).rows() if "val_average/accuracy" in row]
        for size, name in (("1", "parts"), ("2", "sharded_parts"))
    ]
    assert len(scored[0]) == len(scored[1]) > 2
    for row, other in zip(*scored, strict=True):
        assert other == pytest.approx(row, abs=1e-4)


def test_single_numbers_are_averaged_over_shares_too(runs):
    """And a batch in parts is exchanged once."""
    assert losses(runs / "2" / "scaled") == pytest.approx(losses(runs / "1" / "scaled"), abs=1e-6)
    assert json.loads((runs / "2" / "scaled" / "exchanged.json").read_text()) == 12


def wait_for_checkpoint(run, step, processes):
    checkpoints = RunDirectory(run).checkpoints
    while max(checkpoints.paths(), default=0) < step:
        assert all(process.poll() is None for process in processes), [process.communicate() for process in processes]
        time.sleep(0.02)


def test_a_rank_that_hangs_ends_the_others_and_fewer_go_on(tmp_path):
    """The others wait no longer than they were told. What two ranks saved in shares, one takes up as it is."""
    two = start(2, tmp_path, ["lost_in_shards"], VITREOUS_RANK_TIMEOUT_S="12")
    try:
        wait_for_checkpoint(tmp_path / "2" / "lost", 20, two)
        two[1].send_signal(signal.SIGSTOP)
        said = two[0].communicate(timeout=100)[1]
    finally:
        for process in two:
            process.kill()
        two[1].communicate()
    assert "LostRankError: rank 0 of 2 lost another one, which ended or did not answer for 12 s" in said
    assert two[0].returncode == 1
    found = RunDirectory(tmp_path / "2" / "lost").latest_checkpoint()
    assert found.step >= 20 and not found.notes
    ranks_job.main(tmp_path / "2", ["lost"])
    ranks_job.main(tmp_path / "1", ["lost"])
    assert losses(tmp_path / "2" / "lost") == pytest.approx(losses(tmp_path / "1" / "lost"), abs=1e-5)


def test_what_the_loss_does_not_reach(runs):
    """It stays as it is. What it reaches on one rank only counts by half; a batch in parts is exchanged once."""
    one, two = (json.loads((runs / size / "partly" / "found.json").read_text()) for size in ("1", "2"))
    assert two["exchanged"] == 12
    for name in ("beside.weight", "beside.bias"):
        assert two["weights"][name] == one["weights"][name]
    for name in ("encoder.first.weight", "encoder.second.bias"):
        assert two["weights"][name] == pytest.approx(one["weights"][name], abs=1e-6)
    assert two["weights"]["at_times.weight"] != one["weights"]["at_times.weight"]


def test_gradients_are_exchanged_while_others_are_computed(runs):
    events = json.loads((runs / "2" / "early" / "events.json").read_text())
    assert events == ["gradients exchanged", "first layer reached", "gradients exchanged"]


def test_every_rank_sees_what_went_wrong_on_one(runs):
    said = {path.read_text() for path in (runs / "2" / "diverged").glob("said-*.txt")}
    assert len(list((runs / "2" / "diverged").glob("said-*.txt"))) == 2
    assert len(said) == 1
    assert "at step 4;" in said.pop()


def test_ranks_that_find_different_checkpoints_do_not_go_on(runs):
    """They would exchange gradients of different steps."""
    one, two = (runs / "2" / "apart" / f"said-{rank}.txt" for rank in range(2))
    assert "find different checkpoints in it, of the steps 6, 0; it must be one folder" in one.read_text()
    assert "of the steps 6, 0;" in two.read_text()


@pytest.mark.slow
def test_three_ranks_resume_exactly(tmp_path):
    """Between two logged lines, each the mean of some steps: a third is rounded."""
    finish(start(3, tmp_path, ["thirds", "thirds_resumed"]))
    through, resumed = (RunDirectory(tmp_path / "3" / name) for name in ("thirds", "thirds_resumed"))
    assert resumed.rows() == through.rows() and len(through.rows()) == 4
    assert weights(resumed.path) == weights(through.path)


@pytest.mark.slow
def test_four_ranks_learn_as_one_and_resume_exactly(tmp_path):
    names = ("plain", "resumed", "parts", "muon", "simclr", "dino")
    shares = {"sharded": "plain", "sharded_resumed": "resumed", "sharded_parts": "parts", "sharded_dino": "dino"}
    # Muon's rounds are in bfloat16. Of eight parts of two pictures each, 1.1e-5 was seen in a loss of 2.2.
    rounded = {"muon": 1e-3, "parts": 2e-5}
    four = start(4, tmp_path, (*names, *shares))
    ranks_job.main(tmp_path / "1", names)
    finish(four)
    for name, alone in [*zip(names, names, strict=True), *shares.items()]:
        within = rounded.get(name, 1e-5)
        assert losses(tmp_path / "4" / name) == pytest.approx(losses(tmp_path / "1" / alone), abs=within), name
    for resumed, through in (("resumed", "plain"), ("sharded_resumed", "sharded")):
        assert losses(tmp_path / "4" / resumed) == losses(tmp_path / "4" / through)
        assert weights(tmp_path / "4" / resumed) == weights(tmp_path / "4" / through)


@pytest.mark.slow
def test_a_run_goes_on_at_any_number_of_ranks(tmp_path):
    """Whole, then in four shares, in two, and whole again."""
    stages = [(1, "sizes@10"), (4, "sizes@20"), (2, "sizes@35"), (1, "sizes")]
    for (size, name), (following, _) in pairwise([*stages, (0, "")]):
        finish(start(size, tmp_path, [name]))
        (tmp_path / str(following)).mkdir(exist_ok=True)
        (tmp_path / str(size) / "sizes").rename(tmp_path / str(following) / "sizes")
    ranks_job.main(tmp_path / "1", ["plain"])
    assert losses(tmp_path / "0" / "sizes") == pytest.approx(losses(tmp_path / "1" / "plain"), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "within"), [("compiled", 1e-4), ("half", 2e-2), ("together", 2e-2)])
def test_two_compiled_or_narrow_ranks_learn_as_one(tmp_path, name, within):
    """In bfloat16 gathered norms are rounded, too."""
    names = [name, f"sharded_{name}"]
    finish(start(2, tmp_path, names))
    finish(start(1, tmp_path, [name]))
    for each in names:
        assert losses(tmp_path / "2" / each) == pytest.approx(losses(tmp_path / "1" / name), abs=within)


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]


def agent(words, out, **others):
    return subprocess.Popen(
        [*words, ranks_job.__file__, str(out), "lost_in_shards"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "VITREOUS_RANK_TIMEOUT_S": "20"} | others,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_torchrun_starts_lost_ranks_anew(tmp_path, sent):
    """One of two is killed or stopped in mid-run; both are started again, and go on from the last checkpoint."""
    host = agent([*TORCHRUN, "2", "--standalone", "--max-restarts", "3"], tmp_path / "2")
    wait_for_checkpoint(tmp_path / "2" / "lost", 10, [host])
    os.kill(next(child for child in children(host.pid) if "RANK=1" in environment(child)), sent)
    said = host.communicate(timeout=300)[1]
    assert host.returncode == 0, said
    ranks_job.main(tmp_path / "1", ["lost"])
    assert losses(tmp_path / "2" / "lost") == pytest.approx(losses(tmp_path / "1" / "lost"), abs=1e-5)
    assert len(json.loads((tmp_path / "2" / "lost" / "environment.json").read_text())) == 2  # starts


@pytest.mark.slow
def test_torchrun_passes_on_a_signal_that_it_is_told_of(tmp_path):
    """Otherwise SIGUSR1 ends torchrun alone, and its ranks go on."""
    host = agent([*TORCHRUN, "2", "--standalone", "--signals-to-handle", "SIGUSR1"], tmp_path / "2")
    wait_for_checkpoint(tmp_path / "2" / "lost", 5, [host])
    host.send_signal(signal.SIGUSR1)
    said = host.communicate(timeout=100)[1]
    steps = {int(step) for step in re.findall(r"StoppedError: SIGUSR1: stopped after step (\d+) of 50, saved", said)}
    assert steps == {max(RunDirectory(tmp_path / "2" / "lost").checkpoints.paths())}, said


@pytest.mark.slow
def test_of_two_hosts_without_a_network_one_goes_on_alone(tmp_path):
    """Both end their step when the cable is pulled. torchrun starts the first again, which goes on with one rank."""
    meeting = ["--nnodes", "1:2", "--max-restarts", "2", "--rdzv-backend", "c10d"]
    meeting += ["--rdzv-endpoint", f"{ADDRESSES[0]}:29400", "--rdzv-conf", "last_call_timeout=10,is_host="]
    agents = []
    try:
        with two_hosts() as hosts:
            for number, address in enumerate(ADDRESSES):
                words = [*hosts.inside(number), *TORCHRUN, "1", *meeting[:-1], f"{meeting[-1]}{int(number == 0)}"]
                words += ["--local-addr", address]
                agents.append(agent(words, tmp_path / "2", GLOO_SOCKET_IFNAME=CABLE))
            wait_for_checkpoint(tmp_path / "2" / "lost", 10, agents)
            hosts.pull_the_cable()
            said = [agents[0].communicate(timeout=400)[1]]
    except NoHosts as error:
        pytest.skip(str(error))
    finally:
        for each in agents:  # that of the second looks for the first for some minutes
            each.kill()
    said.append(agents[1].communicate(timeout=60)[1])
    assert agents[0].returncode == 0, said
    assert all(f"LostRankError: rank {rank} of 2 lost another one" in words for rank, words in enumerate(said)), said
    ranks_job.main(tmp_path / "1", ["lost"])
    assert losses(tmp_path / "2" / "lost") == pytest.approx(losses(tmp_path / "1" / "lost"), abs=1e-5)


def children(process):
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def environment(process):
    return Path(f"/proc/{process}/environ").read_text().split("\0")
