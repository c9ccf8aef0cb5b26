"""Opening files of weights: the good ones whole, the hostile ones not at all."""

import argparse
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

import hostile_trial
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import hostile
from vitreous.errors import UserError
from vitreous.weights import files, unpickle
from vitreous.weights.containers import outlines
from vitreous.weights.files import open_weights


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    canary, temporary = folder / "canary", folder / "temporary"
    (folder / "files").mkdir()
    temporary.mkdir()
    corpus = hostile.corpus(folder / "files", canary)
    torch.save({"weight": torch.ones(4)}, folder / "good.pth")
    (folder / "list.json").write_text(json.dumps({name: str(path) for name, path in corpus.items()}))
    ended = subprocess.run(
        [sys.executable, hostile_trial.__file__, str(folder / "good.pth"), str(folder / "list.json"), str(folder)],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    children = [float(line) for line in (folder / "peaks").read_text().split()]
    found = {"canary": canary, "temporary": temporary, "corpus": corpus, "children": children}
    return json.loads(ended.stdout) | found


def test_every_hostile_file_is_refused_in_one_line(trial):
    answers = trial["answers"]
    assert len(answers) >= 60 and sum(name.startswith("cut-") for name in answers) == 20
    accepted = [name for name, answer in answers.items() if answer is None]
    assert not accepted
    for name, answer in answers.items():
        assert answer.isprintable(), f"{name}: {answer}"  # one line, and no error but UserError
        assert 10 < len(answer) - len(str(trial["corpus"][name])) < 400, answer


def test_nothing_was_run(trial):
    assert not trial["canary"].exists()
    assert not list(trial["temporary"].iterdir())


def test_the_canary_can_be_written(tmp_path):
    import pickle

    pickle.loads(pickle.dumps(hostile.Runs(tmp_path / "canary")))
    assert (tmp_path / "canary").exists()


def test_memory_of_refusals(trial):
    """In MB above the process's own, of all files together: so each took less."""
    assert trial["peak"] < 64
    assert len(trial["children"]) >= 10
    assert max(trial["children"]) < 64
    assert max(trial["children"]) > 10  # hungry.pth: the measure measures


@pytest.mark.parametrize("what", hostile.shapes_of_trouble())
def test_pytorch_files_of_other_things_are_refused(what):
    with pytest.raises(unpickle.RefusalError):
        unpickle.flattened(hostile.shapes_of_trouble()[what])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pickle-as.safetensors", "a plain pickle"),
        ("torch-zip-runs.npz", "holds more than tensors (posix.system), which could run code"),
        ("torchscript.pt", "holds more than tensors (posix.system), which could run code"),
        ("exported-old.pt2", r"\.pt2"),
        ("distributed", "a distributed checkpoint"),
        ("joblib.joblib", "joblib"),
        ("keras.h5", "Keras"),
        ("objects.npz", "Python objects"),
        ("sparse.pth", "sparse"),
        ("nan.safetensors", "weight holds values that are not finite"),
        ("nan.pth", "weight holds values that are not finite"),
        ("header-of-100-MB.safetensors", "header of 100,000,002 bytes"),
        ("bomb.npz", "claim to unpack to"),
        ("hungry.pth", "more memory than twice the file"),
        ("expanded.pth", "larger than the file"),
    ],
)
def test_refusals_say_why(trial, name, words):
    import re

    assert re.search(re.escape(words) if "\\" not in words else words, trial["answers"][name])


def test_what_pytorch_itself_writes_and_would_run(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), tmp_path / "script.pth")
        torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), tmp_path / "program.pt2")
    (tmp_path / "program.pt2").rename(tmp_path / "program.safetensors")
    with pytest.raises(UserError, match="would run code"):
        open_weights(tmp_path / "program.safetensors")


class Scripted(torch.nn.Module):
    """With what archives hold: modules in modules, a buffer, weights that two share, half precision, lists."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2).half())
        self.scale = torch.nn.Parameter(torch.tensor(0.5))
        self.register_buffer("places", torch.arange(6).view(2, 3).T)
        self.tied = self.inner[0].weight
        self.sizes = [1, 2, 3]

    def forward(self, x):
        return self.inner[0](x) * self.scale + self.places.sum()


def test_torchscript_is_read_and_its_code_is_not(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = Scripted().eval()
        torch.jit.save(torch.jit.script(module), tmp_path / "script.pt")
    with zipfile.ZipFile(tmp_path / "script.pt") as archive, zipfile.ZipFile(tmp_path / "poisoned.pt", "w") as other:
        for name in archive.namelist():
            other.writestr(name, b"import os; os._exit(1)" if name.endswith(".py") else archive.read(name))
    for name in ("script.pt", "poisoned.pt"):
        found, expected = open_weights(tmp_path / name).tensors, module.state_dict()
        assert set(found) == set(expected)
        assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("name", hostile.slow())
def test_what_would_take_long_to_unpickle_is_refused_by_its_shape(name):
    with pytest.raises(unpickle.RefusalError) as error:
        unpickle.check_pickles(io.BytesIO(hostile.slow()[name]))
    assert ("keys" in name) == ("keys" in str(error.value) or "entries" in str(error.value))


@pytest.mark.parametrize("is_new", [True, False], ids=["zip", "legacy"])
def test_training_checkpoints_keep_within_the_limits(is_new):
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [30, 60])
    whole = {
        "model": layer.state_dict(),
        "optimizer": optimizer.state_dict(),
        "lr_scheduler": schedule.state_dict(),
        "args": argparse.Namespace(betas=(0.9, 0.95), tags={"a"}),
        "random": random.getstate(),
        "losses": [float(number) for number in range(10_000)],
    }
    unpickle.check_pickles(io.BytesIO(hostile.torch_bytes(whole, legacy=not is_new)))


def test_a_file_that_takes_long_all_the_same_is_stopped_and_says_so(tmp_path):
    """A set whose members collide: no memory, only time."""
    numbers = [(hostile.COLLIDING * i).to_bytes(16, "little") for i in range(20_000)]
    members = b"".join(b"\x8a\x10" + number + b"\x85" for number in numbers)  # tuples of one each
    contents = b"\x80\2cbuiltins\nset\n](" + members + b"e\x85R."
    data = hostile.with_member(hostile.torch_bytes({}), "data.pkl", contents)
    path = tmp_path / "slow.pth"
    path.write_bytes(data)
    with path.open("rb") as file:
        words = [str(len(data)), str(tmp_path / "out"), "1"]
        ended = subprocess.run([sys.executable, "-P", unpickle.__file__, *words], check=False, stdin=file)
    assert files._ending(ended.returncode, 1).startswith("reading it took more than 1 s of CPU time")


def test_other_endings_of_the_process_are_named():
    assert "memory ran out" in files._ending(-9, 1)
    assert files._ending(-11, 1) == "the process that read it failed (SIGSEGV)"
    assert files._ending(1, 1) == "the process that read it failed (exit status 1)"


# ---- Good files


def same(given, expected):
    assert given.keys() == expected.keys()
    outline = outlines(given)
    for name, tensor in expected.items():
        assert given[name].dtype == tensor.dtype == outline[name].dtype, name
        assert outline[name].is_meta and outline[name].shape == tensor.shape, name
        assert given[name].shape == tensor.shape, name
        assert torch.equal(given[name], tensor), name


def example():
    torch.manual_seed(0)
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool)
    tensors = {f"a/{kind}": (torch.randn(3, 5) * 3).to(kind) for kind in kinds}
    return tensors | {"number": torch.tensor(3.0), "nothing": torch.empty(0, 4), "long.name": torch.randn(70000)}


@pytest.mark.parametrize("name", ["model.safetensors", "model.npz", "noending"])
def test_safetensors(tmp_path, name):
    save_file(example(), tmp_path / name, metadata={"format": "pt"})
    given = open_weights(tmp_path / name)
    same(given.tensors, example())
    assert given.tensors.shapes["nothing"] == (0, 4)
    assert given.where == str(tmp_path / name)
    with pytest.raises(KeyError):
        given.tensors["absent"]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, save):
    tensors = {name: tensor for name, tensor in example().items() if tensor.dtype != torch.bfloat16}
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    matrix = torch.randn(4, 6, 2)
    arrays["fortran"] = np.asfortranarray(matrix.numpy())
    arrays["swapped"] = matrix.numpy().astype(">f4")
    halves = torch.randn(5).to(torch.bfloat16)
    arrays["bfloat16"] = halves.view(torch.int16).numpy().view("V2")
    save(tmp_path / "weights", **arrays)
    path = (tmp_path / "weights.npz").rename(tmp_path / "weights.pth")
    same(open_weights(path).tensors, tensors | {"fortran": matrix, "swapped": matrix, "bfloat16": halves})


@pytest.mark.parametrize("is_new", [True, False], ids=["zip", "legacy"])
def test_pytorch_files_are_flattened(tmp_path, monkeypatch, is_new):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    shared = torch.randn(4, 4)
    state = example() | {"turned": shared.T, "row": shared[1], "parameter": torch.nn.Parameter(shared)}
    arguments = argparse.Namespace(lr=0.1, where=None)
    whole = {"model": state, "epoch": 3, "args": arguments, "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}}}
    torch.save(whole, tmp_path / "model.safetensors", _use_new_zipfile_serialization=is_new)
    given = open_weights(tmp_path / "model.safetensors")
    assert not list(temporary.iterdir())
    expected = {f"model.{name}": tensor for name, tensor in state.items()}
    same(given.tensors, expected | {"optimizer.state.0.step": torch.tensor(1.0)})


def test_switches_of_the_environment_do_not_loosen_the_unpickler(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save({"weight": hostile.Runs(tmp_path / "canary")}, tmp_path / "model.pth")
    with pytest.raises(UserError, match="could run code"):
        open_weights(tmp_path / "model.pth")
    assert not (tmp_path / "canary").exists()


def test_folder_with_documents(tmp_path):
    save_file({"weight": torch.ones(4)}, tmp_path / "model.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"never opened")
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    for where in (tmp_path, tmp_path / "model.safetensors", str(tmp_path)):
        given = open_weights(where)
        same(given.tensors, {"weight": torch.ones(4)})
        assert given.documents == {"config.json": {"model_type": "vit"}}


def test_shards(tmp_path):
    parts = [{"a": torch.ones(4), "b": torch.zeros(2)}, {"c": torch.full((3,), 2.0)}]
    table = {}
    for i, part in enumerate(parts):
        save_file(part, tmp_path / f"model-{i}.safetensors")
        table |= dict.fromkeys(part, f"model-{i}.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 36}, "weight_map": table}))
    given = open_weights(tmp_path)
    same(given.tensors, parts[0] | parts[1])
    save_file(parts[0], tmp_path / "model-1.safetensors")
    with pytest.raises(UserError, match="stands in two of its files"):
        open_weights(tmp_path)


def test_values_that_are_not_finite_can_be_asked_for(tmp_path):
    save_file({"weight": torch.tensor([float("nan")])}, tmp_path / "model.safetensors")
    assert open_weights(tmp_path, any_value=True).tensors["weight"].isnan().all()
    # The sum of these overflows, and they are finite all the same.
    large = {"weight": torch.full((8,), 3e38), "half": torch.full((8,), 6e4, dtype=torch.float16)}
    save_file(large, tmp_path / "model.safetensors")
    same(open_weights(tmp_path).tensors, large)


def test_opening_reads_the_header_alone(tmp_path):
    length = 1 << 40
    path = tmp_path / "model.safetensors"
    header = hostile.safetensors_bytes({"weight": hostile.entry((length,), 0, length, "U8")})
    path.write_bytes(header)
    os.truncate(path, len(header) + length)  # a hole: a terabyte that takes no place
    assert open_weights(path).tensors.shapes == {"weight": (length,)}


def test_a_file_that_shrinks_later(tmp_path):
    save_file({"weight": torch.ones(5000)}, tmp_path / "model.safetensors")
    given = open_weights(tmp_path / "model.safetensors")
    os.truncate(tmp_path / "model.safetensors", 1000)
    with pytest.raises(UserError, match="ends within weight; it was changed while it was read"):
        given.tensors["weight"]


def test_the_two_processes_agree():
    assert files.REFUSED == unpickle.REFUSED
    assert Path(unpickle.__file__) == files.UNPICKLE
