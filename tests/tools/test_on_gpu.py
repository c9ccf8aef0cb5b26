"""What benchmarks/on_gpu.py takes from machine to machine, and how it ends what runs."""

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from pathlib import Path

import pytest

from vitreous.errors import UserError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def on_gpu():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        spec = importlib.util.spec_from_file_location("on_gpu", BENCHMARKS / "on_gpu.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


def test_an_archive_has_all_that_is_small_and_folders_whole_or_not_at_all(on_gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(on_gpu, "PART", 1000)
    monkeypatch.setattr(on_gpu, "LEAVES", 20_000)
    out, home, again = tmp_path / "out", tmp_path / "home", tmp_path / "again"
    files = {"summary.json": 3000, "runs/a/cell.json": 10, "runs/b/weights": 9000, "runs/b/more": 6000}
    files |= {"runs/c/weights": 15_000, "runs/c/small": 10}
    for name, size in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(random.Random(size).randbytes(size))
    on_gpu.send(out, home)
    on_gpu.bring(home, again)
    found = {str(path.relative_to(again)): path.read_bytes() for path in again.rglob("*") if path.is_file()}
    assert found == {name: (out / name).read_bytes() for name in files if not name.startswith("runs/c")}
    assert len(list(home.iterdir())) > 1 and all(part.stat().st_size <= 1000 for part in home.iterdir())
    (again / "summary.json").write_text("{}")
    on_gpu.bring(home, again)  # it is there already
    assert (again / "summary.json").read_text() == "{}"
    (out / "summary.json").unlink()
    for name in ("b", "c"):
        for path in (out / "runs" / name).iterdir():
            path.unlink()
    on_gpu.send(out, home)  # fewer parts than before
    on_gpu.bring(home, tmp_path / "third")
    assert [path.name for path in (tmp_path / "third").rglob("*") if path.is_file()] == ["cell.json"]


def test_an_archive_counts_until_the_next_one_is_complete(on_gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(on_gpu, "PART", 1000)
    out, home = tmp_path / "out", tmp_path / "home"
    out.mkdir()
    (out / "first").write_bytes(random.Random(0).randbytes(5000))
    on_gpu.send(out, home)
    write, left = on_gpu.atomic.write_bytes, iter(range(2))

    def killed(content, path):
        next(left)
        write(content, path)

    monkeypatch.setattr(on_gpu.atomic, "write_bytes", killed)
    (out / "second").write_bytes(random.Random(1).randbytes(5000))
    with pytest.raises(StopIteration):
        on_gpu.send(out, home)
    on_gpu.bring(home, tmp_path / "again")
    assert [path.name for path in (tmp_path / "again").iterdir()] == ["first"]
    for part in home.iterdir():
        part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(UserError, match="missing or damaged"):
        on_gpu.bring(home, tmp_path / "third")


SAVES_LATE = """
import pathlib, signal, sys, time
def save(*_):
    time.sleep(0.5)
    pathlib.Path(sys.argv[1]).write_text("saved")
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
pathlib.Path(sys.argv[1] + ".ready").touch()
time.sleep(60)
"""


def test_what_an_entry_has_begun_may_save_when_it_is_stopped(on_gpu, tmp_path):
    """Though the entry itself ends at once."""
    begins = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SAVES_LATE!r}, sys.argv[1]])"
    saved = tmp_path / "saved"
    process = subprocess.Popen([sys.executable, "-c", begins, str(saved)], start_new_session=True)
    is_ready = tmp_path / "saved.ready"
    assert on_gpu.ended(process, lambda: 0.0 if is_ready.exists() else 1.0) == "stopped"
    assert saved.read_text() == "saved"


def test_what_failed_in_its_place_is_told(on_gpu, tmp_path, call, capsys):
    row = {"ms": {"ours": 1.0}, "errors": {}, "ways": {"fp8": {"failed": "RuntimeError: no"}}}
    results = {"environment": {}, "rows": [row, {"errors": {"theirs": "ImportError: SciPy"}}, {"unequal": ""}]}
    made, entries = call({"one": f"open({str(tmp_path / 'out' / 'one.json')!r}, 'w').write({json.dumps(results)!r})"})
    made.run(entries)
    expected = ["failed: RuntimeError: no", "errors: {'theirs': 'ImportError: SciPy'}"]
    assert made.summary["one"]["state"] == "done" and made.summary["one"]["noted"] == expected
    assert "2 failed, the first: failed: RuntimeError: no" in capsys.readouterr().out
    (tmp_path / "half.json").write_text('{"rows": [')
    assert on_gpu.noted_in(tmp_path / "half.json") == on_gpu.noted_in(tmp_path / "none.json") == []


# ---- MPS

CONTROL = """#!/bin/sh
test -d "$CUDA_MPS_LOG_DIRECTORY" || exit 1
if [ "$1" = -d ]; then echo started >> {told}; exit {starts}; fi
read command
echo "$command" >> {told}
if [ "$command" = get_server_list ]; then echo {server}; fi
"""
SHOWS = "import os, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(os.environ.get('CUDA_MPS_PIPE_DIRECTORY', ''))"


@pytest.fixture
def call(on_gpu, tmp_path, monkeypatch):
    """Entries that each run some Python; what the daemon was told is in `told`."""

    def make(programs, *, starts=0, server="4711", probe="pass", group="side by side"):
        control, told = tmp_path / "bin" / "nvidia-cuda-mps-control", tmp_path / "told"
        control.parent.mkdir(exist_ok=True)
        control.write_text(CONTROL.format(told=told, starts=starts, server=server))
        control.chmod(0o755)
        monkeypatch.setenv("PATH", f"{control.parent}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr("mps.PROBE", probe)
        monkeypatch.setattr(on_gpu, "command_of", lambda entry, options: [sys.executable, "-c", programs[entry.name]])
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        made = on_gpu.Call(Namespace(out=out, runs=out, seconds=600.0, tiny=False, only=None, to=None))
        made.told = told
        entries = [on_gpu.Entry(name, "", 1.0, "", "a_script.py", group=group) for name in programs]
        return made, entries

    return make


def shows(path):
    return f"import sys; sys.argv = ['', {str(path)!r}]; {SHOWS}"


def test_a_group_is_served_by_a_daemon_of_its_own(call, tmp_path):
    made, entries = call({name: shows(tmp_path / name) for name in ("one", "other")})
    made.run(entries)
    one, other = ((tmp_path / name).read_text() for name in ("one", "other"))
    assert one == other != "" and not Path(one).exists()
    assert [made.summary[name]["mps"] for name in ("one", "other")] == ["used", "used"]
    made.summary.clear()
    made.run(entries)  # as another group; what worked once is not probed again
    assert (tmp_path / "one").read_text() != one
    assert made.told.read_text().split("\n")[:-1] == ["started", "get_server_list", "quit -t 5", "started", "quit -t 5"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"starts": 1}, "nvidia-cuda-mps-control -d failed"),
        ({"probe": "raise SystemExit(1)"}, "a product of two matrices failed under it"),
        ({"server": "''"}, "it served nobody"),
    ],
)
def test_where_it_does_not_work_entries_take_turns(call, tmp_path, how, said):
    made, entries = call({"one": shows(tmp_path / "one")}, **how)
    made.run(entries)
    made.summary.clear()
    made.run(entries)
    assert (tmp_path / "one").read_text() == "" and made.summary["one"]["mps"] == f"not used: {said}"
    assert made.told.read_text().count("started") == made.told.read_text().count("quit") == 1


@pytest.mark.parametrize("group", ["", "tests"])
def test_an_entry_alone_and_tests_are_not_served(call, on_gpu, tmp_path, group):
    made, _ = call({"one": shows(tmp_path / "one")})
    made.run([on_gpu.Entry("one", "", 1.0, "", "tests nn" if group else "a_script.py", group=group)])
    assert "mps" not in made.summary["one"] and not made.told.exists()


def test_the_daemon_ends_after_a_sigterm(call, on_gpu, tmp_path):
    made, entries = call({"one": f"open({str(tmp_path / 'ready')!r}, 'w'); import time; time.sleep(60)"})

    def stop():
        while not (tmp_path / "ready").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    with on_gpu.signals_stop(made):
        threading.Thread(target=stop).start()
        made.run([*entries, on_gpu.Entry("later", "", 1.0, "", "a_script.py", group="another")])
    assert made.summary["one"]["state"] == "stopped" and "later" not in made.summary
    assert made.told.read_text().split() == ["started", "get_server_list", "quit", "-t", "5"]
