"""The same rows by a real Ray cluster, whose workers are killed meanwhile."""

import hashlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import uuid
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bulk_inputs import picture, save_model, served, write_tar
from vitreous.bulk import engines
from vitreous.bulk.output import Output
from vitreous.cli import main

CALM = ("--device", "cpu", "--quiet")


def test_without_ray_one_line_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    save_model(tmp_path / "model")
    (tmp_path / "a.png").write_bytes(picture(0))
    words = ["embed", tmp_path / "model", tmp_path / "a.png", "--out", tmp_path / "out"]
    with pytest.raises(SystemExit, match="2"):
        main([*map(str, words), "--engine", "ray"])
    assert capsys.readouterr().err == (
        "vitreous: --engine ray needs Ray: pip install 'vitreous[ray]'; --engine local needs nothing\n"
    )
    main(list(map(str, words)))  # and what was refused has left nothing behind
    assert "1 row, 0 without a result" in capsys.readouterr().out


slow_with_ray = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'vitreous[ray]'"
    ),
    pytest.mark.skipif(importlib.util.find_spec("aiohttp") is None, reason="aiohttp is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="workers are found in /proc"),
]


def with_marks(test):
    for mark in slow_with_ray:
        test = mark(test)
    return test


class Command:
    """`vitreous ...` in a process of its own, whose cluster can be told from others on this machine."""

    def __init__(self, *words):
        self.token = uuid.uuid4().hex
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "VITREOUS_TEST": self.token, "RAY_ADDRESS": "local"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vitreous", *map(str, words)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill_workers(self):
        """Every process of Ray that has a model; returns how many there were."""
        found = 0
        for folder in Path("/proc").iterdir():
            try:
                is_worker = (folder / "cmdline").read_bytes().startswith(b"ray::MapWorker")
                if is_worker and self.token.encode() in (folder / "environ").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)
                    found += 1
            except OSError:  # no process, or gone meanwhile
                continue
        return found

    def ended(self):
        out, errors = self.process.communicate(timeout=400)
        return self.process.returncode, out, errors


def hashes(out):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in Path(out, "rows").iterdir()}


@with_marks
@pytest.mark.parametrize("verb", ["embed", "predict"])
def test_killed_workers_leave_the_same_rows(tmp_path, verb):
    """Of files behind a server, a tar file and a list with what is no picture. The server keeps one picture back until
    the workers, one of which waits for it, are dead."""
    save_model(tmp_path / "model")
    write_tar(tmp_path / "shard.tar", [(f"{number:02}.png", picture(50 + number)) for number in range(20)])
    killed, lock = [], threading.Lock()

    def kill(name, time):
        with lock:
            if name == "09.png" and time == 1:
                killed.append(command.kill_workers())

    with served(20, kill) as (address, here):
        urls = [f"{address}/{name}" for name in here.content]
        (tmp_path / "list.txt").write_text("\n".join([*urls, f"{address}/nothing.png", str(tmp_path / "shard.tar")]))
        words = [verb, tmp_path / "model", tmp_path / "list.txt", "--part", 4, "--batch", 3, *CALM]
        command = Command(*words, "--engine", "ray", "--workers", 2, "--out", tmp_path / "ray")
        code, out, errors = command.ended()
        assert code == 0, errors
        assert killed and killed[0] >= 1
        assert here.asked["09.png"] == 2
        alone = Command(*words, "--engine", "local", "--out", tmp_path / "local")
        assert alone.ended()[0] == 0
    assert "41 rows, 1 without a result" in out
    assert hashes(tmp_path / "ray") == hashes(tmp_path / "local")
    assert not list((tmp_path / "ray" / "begun").iterdir())


@with_marks
def test_a_part_that_kills_every_worker_ends_the_command(tmp_path):
    save_model(tmp_path / "model")

    def kill(name, time):
        if name == "05.png" and is_deadly:
            command.kill_workers()

    is_deadly = True
    with served(12, kill) as (address, here):
        urls = [f"{address}/{name}" for name in here.content]
        words = ["embed", tmp_path / "model", *urls, "--out", tmp_path / "out", "--part", 4, *CALM]
        command = Command(*words, "--engine", "ray", "--workers", 1)
        code, out, errors = command.ended()
        assert code == 2
        assert f"{engines.TRIES} workers died on one part; one of its pictures (line 2 of plan.jsonl)" in errors
        assert "Traceback" not in errors and here.asked["05.png"] == engines.TRIES
        is_deadly = False
        code, out, errors = Command(*words).ended()
        assert code == 0, errors
        assert "12 rows, 0 without a result" in out


# ---- an object store


@contextmanager
def store(monkeypatch, before):
    """A server of S3's protocol, which everybody in this process and its children takes for S3; `before` is called
    with the path of every request. Gives the file system."""
    moto = pytest.importorskip("moto.moto_server.werkzeug_app", reason="moto[server] is not installed")
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    from werkzeug.serving import make_server

    answer = moto.DomainDispatcherApplication(moto.create_backend_app)

    def watched(request, respond):
        before(request["REQUEST_METHOD"], request["PATH_INFO"])
        return answer(request, respond)

    server = make_server("127.0.0.1", 0, watched, threaded=True)
    there = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in {**there, "AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "mine"}.items():
        monkeypatch.setenv(name, value)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        urlopen(Request(f"{there['AWS_ENDPOINT_URL']}/moto-api/reset", method="POST")).close()  # what a test left
        s3fs.S3FileSystem.clear_instance_cache()
        yield s3fs.S3FileSystem()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_pictures(folder):
    """Of each kind that a folder may hold, and of each kind one that is no picture; how many rows they are."""
    (folder / "deep").mkdir(parents=True)
    for number in range(12):
        (folder / f"{number:02}.png").write_bytes(picture(number) if number != 4 else b"no picture")
        (folder / "deep" / f"{number:02}.png").write_bytes(picture(100 + number))
    write_tar(folder / "b.tar", [(f"{number:02}.png", picture(200 + number) if number else b"") for number in range(9)])
    cells = [{"bytes": picture(300 + number), "path": None} for number in range(10)]
    cells[2], cells[5] = {"bytes": None, "path": None}, {"bytes": None, "path": "00.png"}
    pq.write_table(pa.table({"image": cells}), folder / "c.parquet", row_group_size=4)
    return 12 + 12 + 9 + 10


def rows(out):
    return pa.concat_tables(Output(str(out)).tables()).drop_columns("name")


@with_marks
@pytest.mark.parametrize("verb", ["embed", "predict"])
def test_killed_workers_leave_the_same_rows_in_a_bucket(tmp_path, verb, monkeypatch):
    """From a bucket, into a bucket. Each worker is killed once, in the midst of a part."""
    save_model(tmp_path / "model")
    num, killed, lock = write_pictures(tmp_path / "pictures"), [], threading.Lock()

    def kill(method, path):
        with lock:
            if not killed and method == "GET" and path == "/there/pictures/deep/09.png":
                killed.append(command.kill_workers())

    with store(monkeypatch, kill) as files:
        files.mkdir("there")
        files.put(f"{tmp_path}/pictures/", "there/pictures/", recursive=True)
        words = [verb, tmp_path / "model", "--part", 4, "--batch", 1, *CALM]
        there = [*words, "s3://there/pictures", "--out"]
        command = Command(*there, "s3://there/ray", "--engine", "ray", "--workers", 2)
        code, out, errors = command.ended()
        assert code == 0, errors
        assert killed and killed[0] >= 1
        assert f"{num} rows, 3 without a result" in out
        for alone in ([*there, "s3://there/local"], [*words, tmp_path / "pictures", "--out", tmp_path / "disk"]):
            code, _, errors = Command(*alone, "--engine", "local").ended()
            assert code == 0, (alone, errors)
        written = [
            {name.rpartition("/")[2]: files.cat(name) for name in files.ls(f"there/{engine}/rows")}
            for engine in ("ray", "local")
        ]
        assert written[0] == written[1]
        assert rows("s3://there/ray").equals(rows(tmp_path / "disk"))
        assert not files.exists("there/ray/begun")
