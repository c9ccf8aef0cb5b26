import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from vitreous.errors import UserError
from vitreous.training import run as run_module
from vitreous.training.run import RunDirectory

TENSORS = {"objective": {"w": torch.ones(3)}}


def quiet(path, **options):
    return RunDirectory(path, tensorboard=False, **options)


def save(run, step):
    """As `training.saving` does on one rank."""
    run.keep_log()
    run.checkpoints.save(step, TENSORS, {"step": step}, run.elapsed_s)


def test_layout(tmp_path):
    with quiet(tmp_path / "deep" / "run") as run:
        run.write_environment()
        run.log({"step": 1, "loss": 0.5})
        save(run, 1)
    names = {str(path.relative_to(run.path)) for path in run.path.rglob("*")}
    assert {"environment.json", "metrics.jsonl", "checkpoints", "checkpoints/step-00000001/manifest.json"} <= names
    assert quiet(run.path).latest_checkpoint().state == {"step": 1}


def test_environment(tmp_path):
    for _ in range(2):
        with quiet(tmp_path) as run:
            run.write_environment()
    first, second = json.loads((tmp_path / "environment.json").read_text())
    assert first.keys() == second.keys()
    assert second["versions"]["torch"] == torch.__version__
    assert second["threads"] == torch.get_num_threads()
    assert second["command"] == sys.argv
    assert {
        "platform",
        "cpu",
        "cores",
        "gpus",
        "gpu_driver",
        "commit",
        "uncommitted_changes",
        "started",
    } <= second.keys()


def test_commit_of_a_checkout(tmp_path):
    from vitreous.training.environment import _commit

    assert _commit(tmp_path) == {"commit": None, "uncommitted_changes": None}
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    (tmp_path / "file").write_text("1")
    for words in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "m"]):
        subprocess.run([*git, *words], check=True)
    clean = _commit(tmp_path)
    assert len(clean["commit"]) == 40
    assert clean["uncommitted_changes"] is False
    (tmp_path / "file").write_text("2")
    assert _commit(tmp_path) == clean | {"uncommitted_changes": True}


def test_log_is_json_even_of_what_json_cannot_say(tmp_path):
    with quiet(tmp_path) as run:
        run.log({"step": 1, "loss": float("nan"), "norm": float("inf"), "rate": 0.1})
        lines = run.metrics.read_text().splitlines()  # there before the directory is closed
    strict = json.loads(lines[0], parse_constant=lambda name: pytest.fail(f"bare {name}"))
    assert strict == {"step": 1, "loss": "nan", "norm": "inf", "rate": 0.1}


def test_truncated_log_equals_that_of_an_uninterrupted_run(tmp_path):
    def log(run, steps):
        for step in steps:
            run.log({"step": step, "loss": 1 / step})
            if step % 2 == 0:
                run.log({"step": step, "val/accuracy": step / 10})

    with quiet(tmp_path / "straight") as straight:
        log(straight, range(1, 9))
    with quiet(tmp_path / "broken") as broken:
        log(broken, range(1, 7))
        with broken.metrics.open("a") as stream:
            stream.write('{"step": 7, "lo')
    with quiet(tmp_path / "broken") as broken:
        broken.truncate_log(4)
        log(broken, range(5, 7))
        broken.truncate_log(5)  # with the file open
        log(broken, range(6, 9))
    assert broken.metrics.read_bytes() == straight.metrics.read_bytes()
    assert broken.rows()[-1] == {"step": 8, "val/accuracy": 0.8}
    with quiet(tmp_path / "broken") as broken:
        broken.truncate_log(0)
        assert broken.rows() == []


def test_one_process_at_a_time(tmp_path):
    script = "import sys; from vitreous.training.run import RunDirectory\nwith RunDirectory(sys.argv[1]): print('in')"
    with quiet(tmp_path) as run:
        with pytest.raises(UserError, match="in use by this process"):
            quiet(tmp_path).__enter__()
        other = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert f"in use by process {os.getpid()} (" in other.stderr
        assert other.stdout == ""
        with quiet(tmp_path, owner=False) as second_rank:  # enters beside it and changes nothing
            run.log({"step": 1})
            second_rank.truncate_log(0)
            assert second_rank.rows() == [{"step": 1}]
        assert quiet(tmp_path).latest_checkpoint() is None  # reading needs no lock
    other = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert other.stdout == "in\n"


HOLDER = """
import os, sys, time
from vitreous.training.run import RunDirectory
run = RunDirectory(sys.argv[1]).__enter__()
child = os.fork()
if child == 0:
    time.sleep(60)  # a loader's worker that outlives the killed process
    os._exit(0)
os.write(1, f"{child}\\n".encode())
time.sleep(60)
"""


def test_a_killed_process_lets_go_even_while_its_workers_live(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        child = int(holder.stdout.readline())
        try:
            with pytest.raises(UserError, match=rf"in use by process {holder.pid} \(.*python -c import os, sys"):
                quiet(tmp_path).__enter__()
            holder.kill()
            holder.wait()
            os.kill(child, 0)
            with quiet(tmp_path):
                pass
        finally:
            os.kill(child, signal.SIGKILL)
            holder.kill()


def test_leftovers_of_interrupted_writes_go(tmp_path):
    with quiet(tmp_path) as run:
        save(run, 1)
    for name in (".step-00000002.vitreous-tmp-123", ".step-00000001.vitreous-old"):
        (tmp_path / "checkpoints" / name).mkdir()
        (tmp_path / "checkpoints" / name / "objective.safetensors").write_text("half")
    with quiet(tmp_path) as run:
        assert [path.name for path in run.checkpoints.folder.iterdir()] == ["step-00000001"]
        assert run.latest_checkpoint().step == 1


def test_a_folder_that_is_not_ours_is_refused_and_left_as_it_is(tmp_path):
    for name in (".bashrc.old", ".notes.new-7", "thesis.tex"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match=r"not a run, but a folder with '\.bashrc\.old' in it; choose another --out"):
        quiet(tmp_path).__enter__()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".bashrc.old", ".notes.new-7", "thesis.tex"]


def test_what_is_in_a_run_of_ours_stays_whatever_it_is_called(tmp_path):
    with quiet(tmp_path):
        (tmp_path / ".bashrc.old").write_text("mine")
        (tmp_path / ".notes.new-7").mkdir()
    with quiet(tmp_path):
        assert (tmp_path / ".bashrc.old").read_text() == "mine" and (tmp_path / ".notes.new-7").is_dir()


@pytest.mark.parametrize("begun", [["lock"], ["cell.lock"], [".run.json.vitreous-tmp-1"], []])
def test_a_folder_that_was_only_just_begun_is_free(tmp_path, begun):
    for name in begun:
        (tmp_path / name).write_text("")
    with quiet(tmp_path):
        pass


def test_a_training_that_is_refused_leaves_no_folder_but_an_earlier_run_stays(tmp_path):
    def refused():
        with pytest.raises(UserError, match="no classes"), RunDirectory(tmp_path / "run") as directory:
            directory.write_environment()
            raise UserError("no classes")

    refused()
    assert not list(tmp_path.iterdir())
    with RunDirectory(tmp_path / "run"):
        pass
    refused()
    assert (tmp_path / "run" / "run.json").is_file()


def test_a_run_of_before_there_were_formats(tmp_path):
    with quiet(tmp_path) as run:
        run.write_environment()
        save(run, 1)
    (tmp_path / "recipe.json").write_text("{}")
    (tmp_path / "run.json").unlink()
    with quiet(tmp_path) as run:
        assert run.latest_checkpoint().step == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [('{"format": "vitreous run 9"}', "install a later one"), ('{"name": "jog"}', "not written by vitreous"), ("", "")],
)
def test_another_run_json(tmp_path, content, message):
    (tmp_path / "run.json").write_text(content)
    for _ in range(2):  # the lock is not kept
        with pytest.raises(UserError, match=rf"run\.json: .*{message}"):
            quiet(tmp_path).__enter__()


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", '{"recipe": "x"}', '{"recipe": "x", "steps": 3}'])
def test_results_that_are_not_all_there_do_not_count(tmp_path, content):
    assert quiet(tmp_path).results() is None
    (tmp_path / "results.json").write_text(content)
    assert quiet(tmp_path).results() is None


def test_a_log_whose_disk_is_full(tmp_path):
    """The kernel's own full disk, and its own refusal to bring a file to the disk."""
    with quiet(tmp_path) as run:
        run.metrics.symlink_to("/dev/full")
        with pytest.raises(
            UserError,
            match=r"metrics\.jsonl: cannot be written \(No space left on device: 12 bytes needed, [\d,]+ free\)",
        ):
            run.log({"step": 1})
    run.metrics.unlink()
    with quiet(tmp_path) as run:
        run.metrics.symlink_to("/dev/null")
        run.log({"step": 1})
        with pytest.raises(UserError, match=r"metrics\.jsonl: cannot be written \(Invalid argument\)"):
            save(run, 1)


def test_training_goes_on_without_tensorboard(tmp_path, monkeypatch, capsys):
    class Full:
        def __init__(self, folder, purge_step):
            pass

        def add_scalar(self, *words):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_module, "_summary_writer", Full)
    with RunDirectory(tmp_path) as run:
        for step in (1, 2):
            run.log({"step": step, "loss": 0.5})
    assert len(run.rows()) == 2
    assert capsys.readouterr().err.count("nothing more is written for TensorBoard (No space left on device)") == 1


@pytest.mark.parametrize("happens", ["moved", "another in its place"])
def test_a_folder_that_vanishes_is_not_made_anew(tmp_path, happens):
    with quiet(tmp_path / "run") as run:
        save(run, 1)
        run.path.rename(tmp_path / "away")
        if happens == "another in its place":
            (run.path / "checkpoints").mkdir(parents=True)
            (run.path / "lock").touch()
        before = sorted(path.name for path in tmp_path.rglob("*"))
        with pytest.raises(UserError, match="moved, removed or unmounted during the run"):
            save(run, 2)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert quiet(tmp_path / "away").latest_checkpoint().step == 1


def test_time_goes_on_over_a_resume(tmp_path):
    with quiet(tmp_path) as run:
        run._opened -= 100  # as if entered a while ago
        save(run, 1)
    with quiet(tmp_path) as run:
        assert run.timing()["wall_s"] < 50
        run.latest_checkpoint()
        assert 100 <= run.timing()["wall_s"] < 150


def test_a_file_in_its_place(tmp_path):
    (tmp_path / "run").write_text("mine")
    for path in (tmp_path / "run", tmp_path / "run" / "below"):
        with pytest.raises(UserError, match="cannot be a run directory"):
            quiet(path).__enter__()
    with quiet(tmp_path / "ok") as run:
        run.metrics.mkdir()
        with pytest.raises(UserError, match=r"metrics.jsonl: cannot be written"):
            run.log({"step": 1})


def test_tensorboard_gets_numbers(tmp_path, monkeypatch):
    shown, made = [], []

    class Writer:
        def __init__(self, folder, purge_step):
            made.append((folder, purge_step))

        def add_scalar(self, *words):
            shown.append(words)

        def close(self):
            shown.append("closed")

    class Fake:
        SummaryWriter = Writer

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", Fake)
    with RunDirectory(tmp_path) as run:
        run.truncate_log(4)
        run.log({"step": 5, "loss": 0.5, "note": "text"})
    assert made == [(str(tmp_path / "tensorboard"), 5)]
    assert shown == [("loss", 0.5, 5), "closed"]


def test_without_tensorboard_nothing_is_said(tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with RunDirectory(tmp_path) as run:
        run.log({"step": 1, "loss": 0.5})
        run.log({"step": 2, "loss": 0.4})
    assert len(run.rows()) == 2
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "tensorboard").exists()


@pytest.mark.filterwarnings("ignore")  # those of tensorboard's own imports
def test_real_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    writer = run_module._summary_writer(tmp_path, None)
    writer.add_scalar("loss", 0.5, 1)
    writer.close()
    assert list(tmp_path.glob("events*"))
