"""A fit by two real processes: the first leads, both train, and the numbers are those of one."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from scenes import write_scenes

TINY = ["--from", "none", "--model.width", "16", "--model.depth", "1", "--model.heads", "2", "--training.device", "cpu"]


def start(words, rank=0, ranks=1, port=0, **others):
    place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "vitreous", "fit", *words]
    env = os.environ | (place if ranks > 1 else {}) | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | others
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)


def free_port():
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        return there.getsockname()[1]


def together(words):
    port = free_port()
    both = [start(words, rank, 2, port) for rank in range(2)]
    said = [one.communicate(timeout=300)[0] for one in both]
    return [one.returncode for one in both], said


def losses(out):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    write_scenes(root / "train", {"dark": 60, "light": 60}, size=(16, 16))
    write_scenes(root / "test", {"dark": 10, "light": 10}, first=1000, size=(16, 16))
    return root


def test_two_processes_fit_what_one_does(folder, tmp_path):
    words = [str(folder), *TINY, "--training.epochs", "3", "--training.log_every_steps", "1"]
    alone = start([*words, "--out", str(tmp_path / "one")])
    told = alone.communicate(timeout=300)[0]
    assert alone.returncode == 0, told
    codes, said = together([*words, "--out", str(tmp_path / "two")])
    assert codes == [0, 0], said
    assert said[1] == "", "the second works, and says nothing"
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)
    assert (tmp_path / "two/report.html").is_file() and (tmp_path / "two/model/manifest.json").is_file()


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no process can be stopped here")
def test_a_first_process_that_is_stopped_while_it_works_alone_is_not_waited_for(folder, tmp_path):
    """The other hears from it as long as it is there, and ends within the stated time where it is not."""
    port = free_port()
    first, second = (
        start([str(folder), *TINY, "--out", str(tmp_path / "run")], rank, 2, port, VITREOUS_RANK_TIMEOUT_S="8")
        for rank in range(2)
    )
    try:
        for line in first.stdout:
            if "a first model" in line:
                break
        first.send_signal(signal.SIGSTOP)
        said = second.communicate(timeout=100)[0]
    finally:
        for one in (first, second):
            one.kill()
            one.communicate()
    assert second.returncode == 2
    assert said.startswith("vitreous: rank 1 of 2 lost another one") and said.count("\n") == 1
