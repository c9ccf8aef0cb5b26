"""A real server on this machine that plays the hub, with cuts, damage and silence when it is told to."""

import hashlib
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from safetensors.torch import save

COMMIT, TAGGED = "a" * 40, "b" * 40


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
                "merges.txt": b"a b",
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
        self.silent = None  # "list", "HEAD" or "body": accepted, and never answered
        self.is_busy = False
        self.over = threading.Event()  # lets those go that wait in silence

    def environment(self, home):
        """For a process of its own: the library reads its environment when it is imported."""
        clean = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE"):
            clean.pop(name, None)
        return clean | {"HF_ENDPOINT": self.address, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}

    def downloads(self):
        return [path.rsplit("/", 1)[-1] for method, path, _ in self.asked if method == "GET" and "/resolve/" in path]


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
        if play.silent == ("list" if parts[0] == "api" else self.command):
            self.close_connection = True
            return play.over.wait()
        if play.is_busy and parts[0] != "api":
            return self.refuse("Busy", 429, ("Retry-After", "3600"))
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

    def refuse(self, code, status=404, *headers):
        self.send_response(status)
        for name, value in (("X-Error-Code", code), *headers):
            self.send_header(name, value)
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
            if play.silent == "body" and is_large:
                self.wfile.write(part[:100_000])
                self.wfile.flush()
                self.close_connection = True
                play.over.wait()
                return
            self.wfile.write(part)


@pytest.fixture
def play():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.play = Hub()
    server.play.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server.play
    server.play.over.set()
    server.shutdown()
    server.server_close()
    thread.join()
