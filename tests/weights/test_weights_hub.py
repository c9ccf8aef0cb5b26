"""Fetching from the hub: its own library against a real server on this machine that plays the hub."""

import subprocess
import sys

import pytest
import torch

from hub_server import COMMIT, TAGGED
from vitreous.errors import UserError
from vitreous.weights import hub
from vitreous.weights.files import open_weights

pytest.importorskip("huggingface_hub")
CODE = """
import sys
from vitreous.errors import UserError
from vitreous.weights.hub import fetch
if len(sys.argv) > 3:
    import socket, time
    socket.getaddrinfo = lambda *words, **more: time.sleep(60)
try:
    print(fetch(sys.argv[1], silence_s=float(sys.argv[2])))
except UserError as error:
    print("refused:", error)
"""


@pytest.fixture
def fetch(play, tmp_path):

    def run(where, silence_s=20, without_names=False, **environment):
        ended = subprocess.run(
            [sys.executable, "-c", CODE, where, str(silence_s), *["without names"] * without_names],
            env=play.environment(tmp_path / "home") | environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ended.returncode == 0, ended.stderr
        lines = ended.stdout.splitlines()
        assert len(lines) == 1, ended.stdout
        return lines[0]

    return run


def test_fetches_what_is_read_and_nothing_else(play, fetch):
    given = open_weights(fetch("hf:owner/model"))
    assert torch.equal(given.tensors["weight"], torch.arange(60000, dtype=torch.float32))
    assert given.documents == {"config.json": {"model_type": "vit"}, "preprocessor_config.json": {}}
    expected = ["config.json", "merges.txt", "model.safetensors", "preprocessor_config.json"]
    assert sorted(play.downloads()) == expected
    play.asked.clear()
    assert COMMIT in fetch("hf:owner/model")
    assert not play.downloads()  # the cache has them
    assert COMMIT in fetch("hf:owner/model", HF_HUB_OFFLINE="1")
    # Nobody answers at this address: the cache does.
    assert COMMIT in fetch("hf:owner/model", HF_ENDPOINT="http://127.0.0.1:9")
    line = fetch("timm:vit_tiny", HF_HUB_OFFLINE="1")
    assert line.startswith("refused: timm:vit_tiny: not in the cache, and the hub cannot be reached")


def test_timm_revisions_and_shards(play, fetch):
    assert "weight" in open_weights(fetch("timm:vit_tiny")).tensors
    assert TAGGED in fetch("hf:owner/model@v1")
    given = open_weights(fetch("hf:owner/shards"))
    assert sorted(given.tensors) == ["part1", "part2"]
    assert torch.equal(given.tensors["part2"], torch.ones(3))


def test_a_cut_connection_is_resumed(play, fetch):
    play.cuts = 1
    given = open_weights(fetch("hf:owner/large"))
    assert torch.equal(given.tensors["weight"], torch.arange(3_000_000))
    ranges = [part for method, path, part in play.asked if method == "GET" and path.endswith("model.safetensors")]
    assert ranges[0] is None and len(ranges) == 2
    assert 0 < int(ranges[1].removeprefix("bytes=").rstrip("-")) <= 15_000_000  # what had arrived is kept


def test_damage_on_the_way_is_noticed(play, fetch, tmp_path):
    play.is_damaged = True
    line = fetch("hf:owner/model")
    assert line.startswith("refused: hf:owner/model: model.safetensors arrived damaged (its checksum is wrong)")
    assert fetch("hf:owner/model", HF_HUB_OFFLINE="1").startswith("refused: ")  # and is not kept
    play.is_damaged = False
    folder = fetch("hf:owner/model")
    assert "weight" in open_weights(folder).tensors
    # Damage in the cache itself is noticed too.
    blob = next(path for path in (tmp_path / "home").rglob("blobs/*") if path.stat().st_size > 1000)
    blob.write_bytes(blob.read_bytes()[:-1] + b"\1")
    assert "checksum is wrong" in fetch("hf:owner/model", HF_HUB_OFFLINE="1")
    play.is_short = True
    assert fetch("hf:owner/model").startswith("refused: hf:owner/model: cannot be fetched (Consistency check failed")


@pytest.mark.parametrize(
    ("silent", "words"),
    [
        ("list", "not in the cache, and the hub cannot be reached (or HF_HUB_OFFLINE is set)"),
        ("HEAD", "the hub sent nothing for 0.5 s; try again later"),
        ("body", "the hub sent nothing for 0.5 s; try again later"),
    ],
)
def test_a_hub_that_never_answers_is_given_up(play, fetch, silent, words):
    play.silent = silent
    assert fetch("hf:owner/model", silence_s=0.5) == f"refused: hf:owner/model: {words}"
    assert len(set(play.asked)) == len(play.asked)  # nothing is asked for twice


def test_a_busy_hub_is_not_waited_for(play, fetch):
    play.is_busy = True  # for an hour
    assert fetch("hf:owner/model") == "refused: hf:owner/model: the hub is busy, status 429; try again later"


def test_a_name_that_nobody_resolves_is_given_up(fetch):
    line = fetch("hf:owner/model", silence_s=0.5, without_names=True, HF_ENDPOINT="http://hub.invalid")
    assert "the hub cannot be reached" in line


def test_a_commit_in_the_cache_is_not_asked_for(play, fetch):
    where = f"hf:owner/model@{COMMIT}"
    folder = fetch(where)
    assert folder.endswith(COMMIT)
    play.asked.clear()
    assert fetch(where) == folder
    assert not play.asked


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("hf:owner/absent", "there is no such model on the hub"),
        ("hf:owner/model@v9", "has no such revision"),
        ("hf:owner/model/absent.bin", "has no file absent.bin"),
        ("hf:owner/arrays", "has 2 files of weights; name one of them, such as hf:owner/arrays/one.npz"),
        ("hf:owner/nothing", "has no weights in a known format"),
    ],
)
def test_refusals_are_one_line(fetch, where, words):
    line = fetch(where)
    assert line.startswith(f"refused: {where}: ") and words in line


@pytest.mark.parametrize("where", ["hf:", "hf:name", "hf:a/b/../c", "timm:", "hf:a b/c", "hf:a/b@"])
def test_addresses_that_are_none(where):
    with pytest.raises(UserError, match="not an address on the hub"):
        hub.fetch(where)


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"not installed; run pip install 'vitreous\[hub\]'"):
        hub.fetch("hf:owner/model")
