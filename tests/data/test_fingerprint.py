import shutil

import numpy as np
import pytest

from scenes import write_scenes
from vitreous.data.base import Subset
from vitreous.data.fingerprint import difference, fingerprint, names_digest
from vitreous.data.memory import InMemory
from vitreous.data.sources import DataSettings


@pytest.fixture
def folder(tmp_path):
    write_scenes(tmp_path / "set" / "train", {"cat": 6, "dog": 6}, size=(8, 8))
    write_scenes(tmp_path / "set" / "test", {"cat": 2, "dog": 2}, first=100, size=(8, 8))
    return tmp_path / "set"


def taken(folder, **settings):
    return fingerprint(DataSettings(where=str(folder), val_fraction=0.0, **settings).build())


def add(folder):
    shutil.copy(folder / "train/cat/0000.png", folder / "train/cat/9.png")


def move(folder):
    (folder / "train/cat/0005.png").rename(folder / "train/dog/a.png")
    (folder / "train/dog/0005.png").rename(folder / "train/cat/0005.png")


def exchange(folder):
    with (folder / "test/dog/0001.png").open("ab") as file:
        file.write(b"\0")


def rename_a_class(folder):
    for part in ("train", "test"):
        (folder / part / "cat").rename(folder / part / "lion")


def add_a_class(folder):
    for part in ("train", "test"):
        shutil.copytree(folder / part / "cat", folder / part / "ant")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (add, "12 to train on there, 13 here"),
        (move, "some to train on have different names, labels or sizes"),
        (exchange, "some to test on have different names, labels or sizes"),
        (rename_a_class, "the class 'cat' is only there"),
        (add_a_class, "the class 'ant' is only here"),
    ],
)
def test_every_change_is_noticed_and_named(folder, change, words):
    there = taken(folder)
    assert difference(there, taken(folder)) is None
    change(folder)
    assert difference(there, taken(folder)) == words


def test_the_same_wherever_and_however_it_is_kept(folder, tmp_path):
    there = taken(folder)
    assert taken(folder, keep_gb=0.0) == there
    folder.rename(tmp_path / "elsewhere")
    assert taken(tmp_path / "elsewhere") == there


def test_parts_of_parts(folder):
    train = DataSettings(where=str(folder), val_fraction=0.0, keep_gb=0.0).build().train
    some = np.array([1, 2, 7])
    assert names_digest(Subset(train, some)) == names_digest(InMemory(Subset(train, some))) != names_digest(train)
    assert names_digest(Subset(train, [3])) != names_digest(Subset(train, [4]))
    assert names_digest(Subset(train, [])) != names_digest(train)


@pytest.mark.parametrize("there", [None, {}, {"train": {}, "test": {}}, {"train": 3, "test": 3}])
def test_what_cannot_be_read_is_another(folder, there):
    assert difference(there, taken(folder)) is not None
