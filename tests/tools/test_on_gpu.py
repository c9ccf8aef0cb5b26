"""What benchmarks/on_gpu.py takes from machine to machine, and how it ends what runs."""

import importlib.util
import random
import subprocess
import sys
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
