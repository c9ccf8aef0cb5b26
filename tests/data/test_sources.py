import dataclasses
import hashlib
import os

import numpy as np
import pytest
from made import is_picture, png, write_folder

from vitreous import settings
from vitreous.data.check import check
from vitreous.data.fingerprint import fingerprint
from vitreous.data.memory import InMemory
from vitreous.data.names import LayoutSettings
from vitreous.data.opening import FASHION
from vitreous.data.sources import DataSettings, open_sources
from vitreous.errors import UserError


def numbers(source):
    """Which pictures these are, by their red value."""
    return [int(source.read(index)[0, 0, 0]) for index in range(len(source))]


def test_an_unsplit_folder_is_split_in_three(tmp_path):
    write_folder(tmp_path, {"a": 100, "b": 60, "c": 40})
    splits = DataSettings(where=str(tmp_path), val_fraction=0.25, test_fraction=0.1).build()
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [135, 45, 20]
    assert np.bincount(splits.test.labels).tolist() == [10, 6, 4]
    assert sorted(numbers(splits.train) + numbers(splits.val) + numbers(splits.test)) == list(range(200))
    again = DataSettings(where=str(tmp_path), val_fraction=0.25, test_fraction=0.1).build()
    assert numbers(again.val) == numbers(splits.val)
    other = DataSettings(where=str(tmp_path), val_fraction=0.25, test_fraction=0.1, split_seed=1).build()
    assert numbers(other.test) != numbers(splits.test)
    # The test pictures do not move when another share is chosen for validation.
    assert numbers(DataSettings(where=str(tmp_path), val_fraction=0.0).build().test) == numbers(splits.test)


def test_fractions_of_nothing(tmp_path):
    write_folder(tmp_path, {"a": 5, "b": 5})
    splits = DataSettings(where=str(tmp_path), val_fraction=0.0, test_fraction=0.0).build()
    assert splits.val is None and splits.test is None and len(splits.train) == 10
    with pytest.raises(UserError, match=r"val_fraction is 1\.5"):
        DataSettings(where=str(tmp_path), val_fraction=1.5).build()


def test_own_splits_are_kept(tmp_path):
    write_folder(tmp_path / "train", {"a": 10, "b": 10, "c": 10})
    write_folder(tmp_path / "val", {"a": 2, "c": 2}, first=30)
    write_folder(tmp_path / "test", {"b": 1, "c": 1}, first=40)
    splits = DataSettings(where=str(tmp_path)).build()
    assert len(splits.train) == 30 and splits.train.classes == ("a", "b", "c")
    assert splits.val.labels.tolist() == [0, 0, 2, 2], "numbered as in train, though b is not there"
    assert splits.test.labels.tolist() == [1, 2] and numbers(splits.test) == [40, 41]


def test_the_val_split_can_be_the_one_to_report_on(tmp_path):
    write_folder(tmp_path / "train", {"a": 10, "b": 10})
    write_folder(tmp_path / "val", {"a": 2, "b": 2}, first=30)
    splits = DataSettings(where=str(tmp_path), test_split="val").build()
    assert numbers(splits.test) == [30, 31, 32, 33] and len(splits.val) == 2 and len(splits.train) == 18
    splits = DataSettings(where=str(tmp_path)).build()
    assert numbers(splits.val) == [30, 31, 32, 33] and len(splits.test) == 2
    (tmp_path / "val").rename(tmp_path / "test")
    with pytest.raises(UserError, match="no split 'val' among test, train"):
        DataSettings(where=str(tmp_path), test_split="val").build()


def test_train_limit(tmp_path):
    write_folder(tmp_path, {"a": 50, "b": 50})
    few = DataSettings(where=str(tmp_path), train_limit=10).build()
    assert np.bincount(few.train.labels).tolist() == [5, 5]
    more = DataSettings(where=str(tmp_path), train_limit=20).build()
    assert set(numbers(few.train)) < set(numbers(more.train)) and numbers(few.val) == numbers(more.val)
    with pytest.raises(UserError, match=r"train_limit is 1; .* has 2 classes"):
        DataSettings(where=str(tmp_path), train_limit=1).build()


def test_what_does_not_fit_is_read_when_asked_for(tmp_path):
    write_folder(tmp_path, {"a": 10, "b": 10})
    kept = DataSettings(where=str(tmp_path)).build()
    assert isinstance(kept.train, InMemory) and kept.train.pictures is not None
    streamed = DataSettings(where=str(tmp_path), keep_gb=0.0).build()
    assert not isinstance(streamed.train, InMemory) and streamed.train.pictures is None
    assert numbers(streamed.train) == numbers(kept.train)
    assert np.array_equal(streamed.train.labels, kept.train.labels)
    assert [kept.train.where(i) for i in range(16)] == [streamed.train.where(i) for i in range(16)]


def test_one_class_and_foreign_classes(tmp_path):
    write_folder(tmp_path / "one", {"a": 5})
    with pytest.raises(UserError, match=r"only one class \(a\)"):
        DataSettings(where=str(tmp_path / "one")).build()
    (tmp_path / "one" / "labels.csv").touch()
    with pytest.raises(UserError, match=r"If labels.csv holds the labels, give .*one/labels.csv\."):
        DataSettings(where=str(tmp_path / "one")).build()
    assert DataSettings(where=str(tmp_path / "one"), need_labels=False).build().train.classes == ("a",)
    write_folder(tmp_path / "two" / "train", {"a": 5, "b": 5})
    write_folder(tmp_path / "two" / "test", {"a": 5, "z": 5})
    with pytest.raises(UserError, match="'z', which is not among"):
        DataSettings(where=str(tmp_path / "two")).build()
    write_folder(tmp_path / "three" / "test", {"a": 5, "z": 5})
    with pytest.raises(UserError, match="no training pictures, only test"):
        DataSettings(where=str(tmp_path / "three")).build()
    assert len(open_sources(str(tmp_path / "three"))["test"]) == 10


def test_a_class_without_training_pictures(tmp_path):
    write_folder(tmp_path / "train", {"a": 5, "b": 5})
    write_folder(tmp_path / "test", {"a": 5, "c": 5})
    (tmp_path / "classes.json").write_text('["a", "b", "c"]')
    with pytest.raises(UserError, match=r"'c', but .* has no picture of it"):
        DataSettings(where=str(tmp_path)).build()


def test_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VITREOUS_DATA", raising=False)
    with pytest.raises(UserError, match=r"cifar10 .*VITREOUS_DATA names; this variable is not set"):
        DataSettings(where="cifar10").build()
    with pytest.raises(UserError, match="Did you mean fashion"):
        DataSettings(where="fashoin").build()
    write_folder(tmp_path / "birds", {"a": 10, "b": 10})
    with pytest.raises(UserError, match=r"no such file or folder.* Did you mean birds"):
        DataSettings(where="brids").build()
    monkeypatch.setenv("VITREOUS_DATA", str(tmp_path / "there"))
    write_folder(tmp_path / "there" / "cifar10", {"x": 10, "y": 10})
    assert DataSettings(where="cifar10").build().train.classes == ("x", "y")
    write_folder(tmp_path / "cifar10", {"p": 10, "q": 10})
    assert DataSettings(where="cifar10").build().train.classes == ("p", "q"), "a local folder comes first"
    with pytest.raises(UserError, match=r"names; it is not in .*there"):
        DataSettings(where="oxford_pets").build()


def test_files_that_are_no_data_set(tmp_path):
    for name, message in (
        ("x.tar.gz", "compressed archives"),
        ("x.zip", "compressed archives"),
        ("x.txt", "not a folder"),
    ):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(UserError, match=message):
            open_sources(str(tmp_path / name))


@pytest.mark.parametrize("suffix", ["csv", "tar", "parquet"])
def test_what_is_no_file(tmp_path, suffix):
    os.mkfifo(tmp_path / f"x.{suffix}")
    with pytest.raises(UserError, match="a pipe, not a regular file"):
        open_sources(str(tmp_path / f"x.{suffix}"))


def test_impossible_names(tmp_path):
    with pytest.raises(UserError, match="File name too long"):
        open_sources("x" * 5000)
    with pytest.raises(UserError, match="no such file"):
        open_sources("a\0b")
    write_folder(tmp_path, {"x": 8})
    rows = [f"x/000{n}.png,{'ab'[n % 2]}" for n in range(8)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *rows, f"{'y' * 5000},a", "z\0z,b"]))
    splits = DataSettings(where=str(tmp_path / "t.csv")).build()
    assert len(splits.train.bad) == 2 and fingerprint(splits)


def test_a_csv_can_be_named(tmp_path):
    write_folder(tmp_path, {"x": 4})
    rows = [f"x/000{n}.png,{'ab'[n % 2]}" for n in range(4)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *rows]))
    splits = DataSettings(where=str(tmp_path / "t.csv"), val_fraction=0.0, test_fraction=0.0).build()
    assert splits.train.labels.tolist() == [0, 1, 0, 1] and is_picture(splits.train.read(3), 3)


def test_settings_survive_json_and_the_command_line():
    data = DataSettings(where="x", train_limit=5)
    assert settings.from_json(DataSettings, settings.to_json(data)) == data
    assert settings.changed(data, {"train_limit": "none"}) == dataclasses.replace(data, train_limit=None)
    assert all(field.help for field in settings.fields(data))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"val_fraction": 1.0}, "--data.val_fraction is 1.0"),
        ({"train_fraction": 0.0}, "--data.train_fraction is 0.0"),
        ({"train_limit": 0}, "--data.train_limit is 0; it must be at least 1"),
        ({"keep_gb": float("nan")}, "--data.keep_gb is nan"),
        ({"max_unreadable": -1}, "--data.max_unreadable is -1"),
        ({"test_split": "vla"}, "'vla', which is not one of train, val, test. Did you mean val"),
        ({"leave_out": "1,x"}, "'x' is neither a number nor a range"),
        ({"layout": LayoutSettings(label_pattern="(")}, "not a regular expression"),
        ({"layout": LayoutSettings(label_pattern=".+_")}, "into parentheses"),
        ({"layout": LayoutSettings(label_pattern="(a)", label_column="x")}, "leave out label_column or label_pattern"),
    ],
)
def test_wrong_settings_are_reported_before_data_is_looked_for(changes, message, monkeypatch):
    monkeypatch.setattr("vitreous.data.sources.open_sources", lambda *_: pytest.fail("looked for"))
    with pytest.raises(UserError, match=message):
        DataSettings(where="somewhere", **changes).build()


@pytest.mark.parametrize(
    ("where", "setting"),
    [("fashion", "label_pattern"), ("folder", "label_column"), ("folder", "mask_column"), ("folder", "path_column")],
)
def test_settings_that_do_not_suit_the_data(tmp_path, where, setting, monkeypatch):
    write_folder(tmp_path / "folder", {"a": 1, "b": 1})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"{where}: has no .*--data\.layout\.{setting} is for"):
        DataSettings(where=where, layout=LayoutSettings(**{setting: "(x)"})).build()


def test_labels_in_file_names(tmp_path):
    for number in range(20):
        (tmp_path / f"{'ab'[number % 2]}_{number}.png").write_bytes(png(number))
    splits = DataSettings(where=str(tmp_path), layout=LayoutSettings(label_pattern=r"(.)_\d+")).build()
    assert splits.train.classes == ("a", "b") and len(splits.train) == 16


def test_data_is_found_from_any_folder(tmp_path, monkeypatch):
    write_folder(tmp_path / "here" / "birds", {"a": 10, "b": 10})
    monkeypatch.chdir(tmp_path / "here")
    located = DataSettings(where="birds").located()
    monkeypatch.chdir(tmp_path)
    assert len(located.build().train) == 16 and located.located() == located
    for named in ("fashion", "cifar10", "hf:x/y", "rendered:count"):
        assert DataSettings(where=named).located().where == named


def test_bad_files_are_counted_over_all_parts(tmp_path):
    write_folder(tmp_path, {"a": 8, "b": 8})
    for index in range(3):
        (tmp_path / "a" / f"{index:04}.png").write_bytes(png(0)[:40])
    for keep_gb in (0.0, 4.0):
        splits = DataSettings(where=str(tmp_path), keep_gb=keep_gb).build()
        report = check(splits)
        assert sorted(one.partition(" (")[0] for part in report.parts for one in part.unreadable) == [
            str(tmp_path / "a" / f"{index:04}.png") for index in range(3)
        ]
    (tmp_path / "b" / "0000.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"4 of 16 pictures cannot be read .*--data\.max_unreadable"):
        DataSettings(where=str(tmp_path)).build()
    with pytest.raises(UserError, match="4 of 16"):
        check(DataSettings(where=str(tmp_path), keep_gb=0).build())
    assert len(DataSettings(where=str(tmp_path), max_unreadable=4).build().train.bad) == 4


def test_notes_reach_the_report(tmp_path):
    write_folder(tmp_path, {"a": 10, "b": 10, "c": 0})
    (tmp_path / "a" / "x.raw").write_bytes(b"")
    report = check(DataSettings(where=str(tmp_path)).build())
    assert report.notes == (
        f"{tmp_path}: files that are not read: 1 .raw",
        f"{tmp_path}: class folders without pictures skipped: c",
    )
    assert set(report.notes) <= set(report.summary())


# ---- The embedded set


def test_fashion():
    splits = DataSettings(where="fashion").build()
    assert np.bincount(splits.train.labels).tolist() == [1080] * 10
    assert np.bincount(splits.val.labels).tolist() == [120] * 10
    assert np.bincount(splits.test.labels).tolist() == [200] * 10
    assert splits.train.classes[0] == "T-shirt/top" and splits.train.classes[9] == "Ankle boot"
    assert splits.train.pictures.shape == (10800, 28, 28, 3)
    assert (splits.train.pictures == splits.train.pictures[:, :, :, :1]).all()
    assert abs(splits.train.pictures.mean() / 255 - 0.286) < 0.005  # the whole set's mean
    assert hashlib.sha256(splits.test.pictures[:, :, :, 0].tobytes()).hexdigest()[:16] == FASHION_TEST
    assert sum(file.stat().st_size for file in FASHION.iterdir()) < 7e6
    assert "MIT" in (FASHION / "LICENSE").read_text()


FASHION_TEST = "3d18e043688ae946"


# ---- The larger sets


def test_cifar10(shared_data):
    sources = open_sources(str(shared_data / "cifar10"))
    train, test = sources["train"], sources["test"]
    assert np.bincount(train.labels).tolist() == [5000] * 10 and np.bincount(test.labels).tolist() == [1000] * 10
    assert train.labels[0] == 6 and test.labels[0] == 3 and test.classes[3] == "cat"
    pictures = np.stack([train.read(index) for index in range(0, 50_000, 10)]) / 255
    assert np.abs(pictures.mean((0, 1, 2)) - (0.4914, 0.4822, 0.4465)).max() < 0.005
    assert np.abs(pictures.std((0, 1, 2)) - (0.2470, 0.2435, 0.2616)).max() < 0.005


def test_imagenette(shared_data, monkeypatch):
    monkeypatch.setenv("VITREOUS_DATA", str(shared_data))
    splits = DataSettings(where="imagenette224", test_split="val", keep_gb=0).build()
    assert np.bincount(splits.test.labels).tolist() == [100] * 10
    assert len(splits.train) == 3600 and len(splits.val) == 400
    assert splits.train.classes[:3] == ("tench", "English springer", "cassette player")
    assert splits.test.where(0).endswith("val.tar:val/n03028079/n03028079_122592.JPEG") and splits.test.labels[0] == 4
    assert splits.train.read(1234).shape == (224, 224, 3)


def test_oxford_pets(shared_data, monkeypatch):
    monkeypatch.setenv("VITREOUS_DATA", str(shared_data))
    splits = DataSettings(where="oxford_pets").build()
    assert len(splits.train) + len(splits.val) == 1184 and len(splits.test) == 592
    assert splits.test.classes[splits.test.labels[0]] == "Bengal" and len(splits.train.classes) == 37
    assert splits.train.pictures.shape[1:] == (192, 192, 3)
    species = DataSettings(where="oxford_pets", layout=LayoutSettings(label_column="species"), keep_gb=0).build()
    assert species.train.classes == ("cat", "dog")
