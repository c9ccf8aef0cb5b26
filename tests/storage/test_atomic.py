import os
import signal
import subprocess
import sys

import pytest

from vitreous.errors import UserError
from vitreous.storage import atomic


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def dead_process():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_a_file_is_replaced_whole(tmp_path):
    atomic.write_json({"a": "ü"}, tmp_path / "deep" / "x.json")
    atomic.write_json([1], tmp_path / "deep" / "x.json")
    assert atomic.read_json(tmp_path / "deep" / "x.json") == [1]
    assert names(tmp_path / "deep") == ["x.json"]


def test_the_content_is_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    """A name that leads to an empty file is what a power cut leaves otherwise."""
    done = []
    fsync, replace = os.fsync, atomic.Path.replace
    monkeypatch.setattr(
        os, "fsync", lambda handle: done.append(str(atomic.Path(f"/proc/self/fd/{handle}").readlink())) or fsync(handle)
    )
    monkeypatch.setattr(atomic.Path, "replace", lambda *paths: done.append("named") or replace(*paths))
    atomic.write_json({}, tmp_path / "x.json")
    assert done == [str(atomic.temporary(tmp_path / "x.json")), "named", str(tmp_path)]


def test_a_full_disk_is_one_line_and_leaves_the_old(tmp_path):
    script = (
        "import resource, sys; from pathlib import Path; from vitreous import cli; "
        "from vitreous.storage import atomic\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "with cli.one_line_errors(): atomic.write_json(['long'] * 1000, Path(sys.argv[1]))"
    )
    (tmp_path / "x.json").write_text("[1]")
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x.json")], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1
    assert "x.json: cannot be written (File too large: 10,003 bytes needed, " in ended.stderr
    assert names(tmp_path) == ["x.json"] and (tmp_path / "x.json").read_text() == "[1]"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_cannot_be_read_is_one_line(tmp_path, content):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.json: damaged, or not JSON"):
        atomic.read_json(tmp_path / "x.json")
    with pytest.raises(UserError, match=r"y\.json: cannot be read"):
        atomic.read_json(tmp_path / "y.json")


# Names that a user may well have; one of them was renamed to `bashrc` by an earlier sweep.
STRANGERS = [
    ".bashrc.old",
    ".notes.new-7",
    ".x.new-123",
    ".model.vitreous-old.txt",
    ".vitreous-tmp-3",
    "x.vitreous-old",
]


def test_only_names_of_ours_are_swept(tmp_path):
    for name in STRANGERS:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".model.vitreous-old").mkdir()
    (tmp_path / ".model.vitreous-old" / "manifest.json").write_text("whole")
    (tmp_path / ".model.vitreous-tmp-123").mkdir()
    (tmp_path / ".best.vitreous-old").mkdir()
    (tmp_path / "best").mkdir()
    atomic.sweep(tmp_path)
    assert names(tmp_path) == sorted([*STRANGERS, "best", "model"])
    assert all((tmp_path / name).read_text() == "mine" for name in STRANGERS)
    assert names(tmp_path / "model") == ["manifest.json"]


def test_a_writer_clears_what_a_killed_one_left_of_the_same_name(tmp_path):
    kept = {f".other.vitreous-tmp-{dead_process()}", ".x.new-123", f".x.vitreous-tmp-{os.getppid()}"}
    for name in (*kept, f".x.vitreous-tmp-{dead_process()}"):
        (tmp_path / name).mkdir()
    with atomic.placed(tmp_path / "x") as new:
        new.mkdir()
    assert names(tmp_path) == sorted([*kept, "x"])


def test_a_folder_is_removed_at_once(tmp_path):
    """Killed in the midst of it, what is left does not go by its name."""
    (tmp_path / "x").mkdir()
    for number in range(3):
        (tmp_path / "x" / f"{number}.json").write_text("")
    script = (
        "import os, shutil, signal, sys; from pathlib import Path; from vitreous.storage import atomic\n"
        "shutil.rmtree = lambda path: os.kill(os.getpid(), signal.SIGKILL)\n"
        "atomic.remove(Path(sys.argv[1]))"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path / "x")], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 1 and not (tmp_path / "x").exists()
    atomic.sweep(tmp_path)
    assert names(tmp_path) == []


def test_strangers(tmp_path):
    for name in ("lock", "cell.lock", ".x.vitreous-tmp-1"):
        (tmp_path / name).write_text("")
    assert atomic.strangers(tmp_path) == []
    (tmp_path / "poetry.lock").write_text("[[package]]")
    (tmp_path / ".bashrc").write_text("")
    assert atomic.strangers(tmp_path) == [".bashrc", "poetry.lock"]
