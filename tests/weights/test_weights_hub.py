"""Fetching from the hub: its own library against a real server on this machine that plays the hub."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from safetensors.torch import save

from vitreous.errors import UserError
from vitreous.weights import hub
from vitreous.weights.files import open_weights

pytest.importorskip("huggingface_hub")
COMMIT, TAGGED = "a" * 40, "b" * 40
CODE = """
import sys
from vitreous.errors import UserError
from vitreous.weights.hub import fetch
try:
    print(fetch(sys.argv[1]))
except UserError as error:
    print("refused:", error)
"""


class Hub:
    """Repositories by name, each a dict of files; what is asked for is kept in `asked`."""

    def __init__(self):
        weights = save({"weight": torch.arange(60000, dtype=torch.float32)})
        self.repositories = {
            "owner/model": {
                "model.safetensors": weights,
                "pytorch_model.bin": b"never asked for",
                "config.json": b'{"model_type": "vit"}',
                "preprocessor_config.json": b"{}",
                "README.md": b"never asked for either",
            },
            "timm/vit_tiny": {"model.safetensors": weights, "config.json": b"{}"},
            "owner/arrays": {"one.npz": b"PK", "two.npz": b"PK"},
            "owner/nothing": {"README.md": b"words"},
        }
        shards = {f"model-0000{i}-of-00002.safetensors": save({f"part{i}": torch.ones(3)}) for i in (1, 2)}
        table = {f"part{i}": name for i, name in enumerate(shards, start=1)}
        index = json.dumps({"weight_map": table}).encode()
        self.repositories["owner/shards"] = {"model.safetensors.index.json": index, "config.json": b"{}", **shards}
        self.asked = []  # (method, path, range)
        self.repositories["owner/large"] = {"model.safetensors": save({"weight": torch.arange(3_000_000)})}
        self.cuts = 0  # connections that break after 15 million bytes
        self.is_damaged = False  # one byte of a large file is another
        self.is_short = False


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *words):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        play = self.server.play
        self.server.play.asked.append((self.command, self.path, self.headers.get("Range")))
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            name, revision = "/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main"
            return self.describe(play.repositories.get(name), name, revision)
        if len(parts) > 4 and parts[2] == "resolve":
            files, name = play.repositories.get("/".join(parts[:2])), "/".join(parts[4:])
            if files and name in files:
                return self.serve(files[name], TAGGED if parts[3] in ("v1", TAGGED) else COMMIT)
        return self.refuse("EntryNotFound")

    def describe(self, files, name, revision):
        if files is None:
            return self.refuse("RepoNotFound")
        if revision not in ("main", "v1", COMMIT, TAGGED):
            return self.refuse("RevisionNotFound")
        sha = TAGGED if revision == "v1" else COMMIT
        siblings = [{"rfilename": file} for file in files]
        return self.send(json.dumps({"id": name, "modelId": name, "sha": sha, "siblings": siblings}).encode())

    def refuse(self, code):
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def serve(self, body, commit):
        play, is_large = self.server.play, len(body) > 1000
        git = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
        etag = hashlib.sha256(body).hexdigest() if is_large else git
        start = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
        sent = bytearray(body)
        if play.is_damaged and is_large:
            sent[5000] ^= 1
        if play.is_short and is_large:
            sent = sent[:-10]
        part = bytes(sent[start:])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", commit)
        if is_large:
            self.send_header("X-Linked-Size", str(len(body)))
            self.send_header("X-Linked-Etag", f'"{etag}"')
        self.send_header("Content-Length", str(len(part)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(sent) - 1}/{len(sent)}")
        self.end_headers()
        if self.command == "GET":
            if play.cuts and is_large:
                play.cuts -= 1
                part = part[:15_000_000]
                self.close_connection = True
            self.wfile.write(part)


@pytest.fixture
def play():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.play = Hub()
    server.play.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.play
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def fetch(play, tmp_path):
    """In a process of its own: the library reads its environment when it is imported."""

    def run(where, **environment):
        names = {"HF_ENDPOINT": play.address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_TELEMETRY": "1"}
        clean = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE"):
            clean.pop(name, None)
        ended = subprocess.run(
            [sys.executable, "-c", CODE, where],
            env=clean | names | environment,
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


def got(play):
    return [path.rsplit("/", 1)[-1] for method, path, _ in play.asked if method == "GET" and "/resolve/" in path]


def test_fetches_what_is_read_and_nothing_else(play, fetch):
    given = open_weights(fetch("hf:owner/model"))
    assert torch.equal(given.tensors["weight"], torch.arange(60000, dtype=torch.float32))
    assert given.documents == {"config.json": {"model_type": "vit"}, "preprocessor_config.json": {}}
    assert sorted(got(play)) == ["config.json", "model.safetensors", "preprocessor_config.json"]
    play.asked.clear()
    assert COMMIT in fetch("hf:owner/model")
    assert not got(play)  # the cache has them
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
    ("where", "words"),
    [
        ("hf:owner/absent", "there is no such model on the hub"),
        ("hf:owner/model@v9", "has no such revision"),
        ("hf:owner/model/absent.bin", "has no file absent.bin"),
        ("hf:owner/arrays", "has 2 files of weights; name one of them, such as hf:owner/arrays/one.npz"),
        ("hf:owner/nothing", "has no weights that are read"),
    ],
)
def test_refusals_are_one_line(fetch, where, words):
    line = fetch(where)
    assert line.startswith(f"refused: {where}: ") and words in line


@pytest.mark.parametrize("where", ["hf:", "hf:name", "hf:a/b/../c", "timm:", "hf:a b/c", "hf:a/b@"])
def test_addresses_that_are_none(where):
    with pytest.raises(UserError, match="no address on the hub"):
        hub.fetch(where)


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"not installed; run pip install 'vitreous\[hub\]'"):
        hub.fetch("hf:owner/model")
