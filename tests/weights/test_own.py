import hashlib
import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from vitreous import __version__
from vitreous.errors import UserError
from vitreous.storage import atomic
from vitreous.weights import own


def contents(seed=0):
    generator = torch.Generator().manual_seed(seed)
    weights = {"a": torch.randn(4, 3, generator=generator), "b.c": torch.arange(5), "half": torch.ones(2).bfloat16()}
    return {"model": weights, "other": {"step": torch.tensor(7.0), "none": torch.zeros(0, 3)}}


DOCUMENTS = {"model": {"width": 3, "names": ["x", "y"], "share": 0.1}, "state": [1, None]}


def assert_same(found, tensors):
    assert found.keys() == tensors.keys()
    for stem, named in tensors.items():
        assert found[stem].keys() == named.keys()
        for name, tensor in named.items():
            assert found[stem][name].dtype == tensor.dtype
            assert torch.equal(found[stem][name], tensor)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_round_trip_is_exact(tmp_path):
    own.write_folder(tmp_path / "x", contents(), DOCUMENTS, {"step": 3})
    found = own.read_folder(tmp_path / "x")
    assert_same(found.tensors, contents())
    assert found.documents == DOCUMENTS
    assert found.about == {"step": 3}
    assert names(tmp_path) == ["x"]
    files = ["manifest.json", "model.json", "model.safetensors", "other.safetensors", "state.json"]
    assert names(tmp_path / "x") == files
    assert own.verify_folder(tmp_path / "x") is None
    manifest = json.loads((tmp_path / "x" / "manifest.json").read_text())
    assert manifest["format"] == 1
    assert manifest["versions"]["vitreous"] == __version__
    assert manifest["versions"]["torch"] == torch.__version__
    assert sorted(manifest["files"]) == files[1:]


def test_replaced(tmp_path):
    for seed in range(2):
        own.write_folder(tmp_path / "x", contents(seed), {"state": seed})
    found = own.read_folder(tmp_path / "x")
    assert_same(found.tensors, contents(1))
    assert found.documents == {"state": 1}
    assert names(tmp_path) == ["x"]


def test_shared_strided_and_trained_tensors(tmp_path):
    weight = nn.Parameter(torch.arange(12.0).view(3, 4))
    tensors = {"a": weight, "tied": weight, "row": weight[1], "turned": weight.T}
    own.write_folder(tmp_path / "x", {"model": tensors}, {})
    found = own.read_folder(tmp_path / "x").tensors["model"]
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert not found["a"].requires_grad


def test_non_tensors_are_refused(tmp_path):
    with pytest.raises(TypeError, match="count is a int"):
        own.write_folder(tmp_path / "x", {"model": {"count": 3}}, {})
    with pytest.raises(ValueError, match="JSON"):
        own.write_folder(tmp_path / "x", {}, {"state": {"loss": float("nan")}})
    assert names(tmp_path) == []


def test_any_flipped_bit_is_noticed(tmp_path):
    own.write_folder(tmp_path / "x", contents(), DOCUMENTS)
    generator = torch.Generator().manual_seed(0)
    for file in sorted((tmp_path / "x").iterdir()):
        if file.name == own.MANIFEST:
            continue
        good = file.read_bytes()
        for _ in range(10):
            at = int(torch.randint(len(good) * 8, (), generator=generator))
            bad = bytearray(good)
            bad[at // 8] ^= 1 << (at % 8)
            file.write_bytes(bad)
            with pytest.raises(UserError, match=f"{file.name}: damaged"):
                own.read_folder(tmp_path / "x")
        file.write_bytes(good)
    assert own.verify_folder(tmp_path / "x") is None


def test_what_is_wrong_is_named(tmp_path):
    folder = tmp_path / "x"
    own.write_folder(folder, contents(), DOCUMENTS)
    good = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(good[:-1])
    assert "model.safetensors: damaged" in own.verify_folder(folder)
    (folder / "model.safetensors").unlink()
    assert "model.safetensors: missing" in own.verify_folder(folder)
    (folder / "model.safetensors").write_bytes(good)
    (folder / "README.md").write_text("mine")
    assert own.verify_folder(folder) is None
    (folder / "extra.safetensors").write_bytes(good)
    assert "extra.safetensors: unknown" in own.verify_folder(folder)
    (folder / "extra.safetensors").unlink()
    manifest = json.loads((folder / own.MANIFEST).read_text())
    for wrong, word in [
        ({**manifest, "format": 2}, "format 2"),
        ({**manifest, "files": {"../model.json": {"size": 1, "sha256": ""}}}, "not one of our files"),
        ({**manifest, "files": 3}, "damaged"),
        ([], "damaged"),
    ]:
        (folder / own.MANIFEST).write_text(json.dumps(wrong))
        assert word in own.verify_folder(folder)
    (folder / own.MANIFEST).write_bytes(b"\x80")
    assert "damaged" in own.verify_folder(folder)
    (folder / own.MANIFEST).unlink()
    assert "unfinished" in own.verify_folder(folder)
    assert "no such folder" in own.verify_folder(tmp_path / "y")
    assert "\n" not in own.verify_folder(tmp_path / "y")


def test_what_is_not_ours_is_never_replaced(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "cat.jpg").write_text("mine")
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "mine.json").write_text("mine")  # such files are in ours too, but a manifest as well
    for name in ("file", "pictures", "settings"):
        with pytest.raises(UserError, match="not ours"):
            own.write_folder(tmp_path / name, contents(), {})
    assert (tmp_path / "file").read_text() == (tmp_path / "pictures" / "cat.jpg").read_text() == "mine"
    assert (tmp_path / "settings" / "mine.json").read_text() == "mine"
    assert names(tmp_path) == ["file", "pictures", "settings"]
    with pytest.raises(UserError, match="cannot be written"):
        own.write_folder(tmp_path / "file" / "below", contents(), {})


@pytest.mark.parametrize("killed_after", range(1, 12))
def test_a_crash_between_any_two_operations_leaves_the_old_or_the_new(tmp_path, monkeypatch, killed_after):
    """The operations that change names are counted, and the power goes after one of them."""
    own.write_folder(tmp_path / "x", contents(0), {"state": 0})
    calls = 0

    class PowerCut(BaseException):
        pass

    def counted(operation):
        def run(*args, **kwargs):
            nonlocal calls
            if calls >= killed_after:  # nothing reaches the disk any more, cleaning up neither
                raise PowerCut
            calls += 1
            return operation(*args, **kwargs)

        return run

    for owner, name in [
        (own.Path, "rename"),
        (own.Path, "mkdir"),
        (own.Path, "unlink"),
        (own.Path, "write_text"),
        (atomic.shutil, "rmtree"),
        (own, "save_file"),
    ]:
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    try:
        own.write_folder(tmp_path / "x", contents(1), {"state": 1})
    except PowerCut:
        pass
    else:
        assert killed_after == 11, "the last case is the one in which nothing happens"
    monkeypatch.undo()
    seen = own.read_folder(tmp_path / "x")
    assert_same(seen.tensors, contents(seen.documents["state"]))
    atomic.sweep(tmp_path)
    assert names(tmp_path) == ["x"]
    assert own.read_folder(tmp_path / "x").documents == seen.documents


FULL_DISK = """
import resource, sys, torch
from vitreous.errors import UserError
from vitreous.weights import own
own.write_folder(sys.argv[1], {"model": {"a": torch.zeros(10)}}, {"state": "old"})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    own.write_folder(sys.argv[1], {"model": {"a": torch.zeros(100_000)}}, {"state": "new"})
except UserError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_old(tmp_path):
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "x")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "x: cannot be written" in said
    assert said.count("\n") == 1
    assert own.read_folder(tmp_path / "x").documents == {"state": "old"}
    assert names(tmp_path) == ["x"]


def test_model(tmp_path):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    card = {"classes": ["cat", "dog"], "temperature": 1.5}
    own.save_model(tmp_path / "deep" / "model", model.state_dict(), card)
    weights, found = own.load_model(tmp_path / "deep" / "model")
    assert found == card
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    model.load_state_dict(weights)
    own.write_folder(tmp_path / "x", {}, {"state": 1})
    with pytest.raises(UserError, match="not a model"):
        own.load_model(tmp_path / "x")


@pytest.mark.parametrize("name", ["model.json", "manifest.json"])
def test_documents_that_are_too_deep_are_refused(tmp_path, name):
    own.save_model(tmp_path / "model", {"weight": torch.ones(1)}, {"a": 1})
    deep = b"[" * 100_000
    (tmp_path / "model" / name).write_bytes(deep)
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text()) if name == "model.json" else None
    if manifest is not None:  # whoever means harm makes the checksums fit
        manifest["files"][name] = {"size": len(deep), "sha256": hashlib.sha256(deep).hexdigest()}
        (tmp_path / "model" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"cannot be read|not a manifest") as error:
        own.load_model(tmp_path / "model")
    assert len(str(error.value)) < 300
