"""Several labels per picture, wherever they stand: the same pictures, the same rows of labels."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from made import png

from vitreous.data.augmentation import Augmentation
from vitreous.data.check import check
from vitreous.data.fingerprint import difference, fingerprint
from vitreous.data.loader import EvalLoader, TrainLoader
from vitreous.data.names import Layout, LayoutSettings
from vitreous.data.order import OrderSettings
from vitreous.data.sources import DataSettings, open_sources
from vitreous.data.targets import ClassLabels, ManyLabels
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError

LABELS = [["cat", "dog"], [], ["dog"], ["bird", "cat", "dog"]]
CLASSES = ("bird", "cat", "dog")
ROWS = [[0, 1, 1], [0, 0, 0], [0, 0, 1], [1, 1, 1]]


def write_pictures(folder, num=4):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(num):
        (folder / f"{number}.png").write_bytes(png(number))


def table(folder, text):
    write_pictures(folder)
    (folder / "labels.csv").write_text(text)
    return folder / "labels.csv", {}


def separated(folder):
    lines = [f"{number}.png,{';'.join(labels)}" for number, labels in enumerate(LABELS)]
    path, _ = table(folder, "\n".join(["path,labels", *lines]))
    return path, {"label_separator": ";"}


def flagged(folder):
    lines = [f"{number}.png,{','.join(map(str, row))}" for number, row in enumerate(ROWS)]
    return table(folder, "\n".join(["path,bird,cat,dog", *lines]))


def flagged_by_name(folder):
    lines = [f"{number}.png,{number}.5,{','.join(map(str, row))}" for number, row in enumerate(ROWS)]
    path, _ = table(folder, "\n".join(["path,weight,bird,cat,dog", *lines]))
    return path, {"label_column": "bird, cat,dog"}


def listed_in_parquet(folder, labels=LABELS, **more):
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [{"bytes": png(number), "path": None} for number in range(len(labels))]
    pq.write_table(pa.table({"image": pictures, "labels": labels, **more}), folder / "x.parquet")
    return folder / "x.parquet", {}


def flagged_in_parquet(folder):
    columns = {name: [row[place] for row in ROWS] for place, name in enumerate(CLASSES)}
    return listed_in_parquet(folder, **columns)[0], {"label_column": "bird,cat,dog"}


def numbered_in_parquet(folder):
    path, _ = listed_in_parquet(folder, [[CLASSES.index(label) for label in labels] for labels in LABELS])
    about = {"info": {"features": {"labels": {"feature": {"names": list(CLASSES)}, "_type": "Sequence"}}}}
    found = pq.read_table(path)
    pq.write_table(found.replace_schema_metadata({"huggingface": json.dumps(about)}), path)
    return path, {}


def beside(folder):
    write_pictures(folder)
    (folder / "labels.json").write_text(json.dumps({f"{n}.png": labels for n, labels in enumerate(LABELS)}))
    return folder, {}


def opened(where, **layout):
    return open_sources(str(where), Layout(**layout))["all"]


@pytest.mark.parametrize(
    "made",
    [separated, flagged, flagged_by_name, listed_in_parquet, flagged_in_parquet, numbered_in_parquet, beside],
    ids=lambda made: made.__name__,
)
def test_all_ways_tell_the_same(made, tmp_path):
    path, layout = made(tmp_path / "set")
    source = opened(path, **layout)
    assert isinstance(source.targets, ManyLabels) and source.classes == CLASSES
    assert source.targets.labels.astype(int).tolist() == ROWS
    assert any("1 of 4 pictures have no label at all" in note for note in source.notes)
    assert [source.described(place) for place in range(4)] == ["cat, dog", "", "dog", "bird, cat, dog"]


def test_classes_json_names_and_orders_them(tmp_path):
    path, layout = separated(tmp_path)
    (tmp_path / "classes.json").write_text(json.dumps({"dog": "a dog", "cat": "a cat", "bird": "a bird"}))
    source = opened(path, **layout)
    assert source.classes == ("a dog", "a cat", "a bird")
    assert source.targets.labels.astype(int).tolist() == [row[::-1] for row in ROWS]
    (tmp_path / "classes.json").write_text(json.dumps(["cat", "dog"]))
    with pytest.raises(UserError, match=r"classes.json: has no class 'bird'"):
        opened(path, **layout)


def test_numbers_are_ordered_as_numbers_and_empty_labels_skipped(tmp_path):
    path, _ = table(tmp_path, "path,labels\n0.png,10|9\n1.png,9||2\n2.png,\n3.png,2|")
    source = opened(path, label_separator="|")
    assert source.classes == ("2", "9", "10")
    assert source.targets.labels.astype(int).tolist() == [[0, 1, 1], [1, 1, 0], [0, 0, 0], [1, 0, 0]]
    assert any("2 pictures have an empty label, which is skipped, such as '9||2'" in note for note in source.notes)


def test_without_a_separator_a_list_is_one_class_and_a_note_says_so(tmp_path):
    write_pictures(tmp_path)
    (tmp_path / "x.csv").write_text("path,label\n0.png,a|b\n1.png,a\n2.png,a|b\n3.png,b")
    source = opened(tmp_path / "x.csv")
    assert isinstance(source.targets, ClassLabels) and source.classes == ("a", "a|b", "b")
    assert "2 pictures have labels such as 'a|b', each read as one class" in source.notes[0]
    assert "--data.layout.label_separator '|'" in source.notes[0]
    (tmp_path / "y.csv").write_text("path,label\n0.png,a;b\n1.png,\n2.png,b")
    with pytest.raises(UserError, match=r"line 3: no label. .* several or none: --data.layout.label_separator ';'"):
        opened(tmp_path / "y.csv")


def test_one_label_for_each_file_in_a_json(tmp_path):
    write_pictures(tmp_path, 2)
    (tmp_path / "labels.json").write_text(json.dumps({"0.png": "cat", "1.png": "dog"}))
    assert opened(tmp_path).labels.tolist() == [0, 1]


def test_splits_of_a_folder_share_a_json(tmp_path):
    for split in ("train", "val"):
        write_pictures(tmp_path / split)
    named = {f"{split}/{n}.png": labels for split in ("train", "val") for n, labels in enumerate(LABELS)}
    (tmp_path / "labels.json").write_text(json.dumps(named | {"train/9.png": []}))
    found = open_sources(str(tmp_path))
    assert [part.targets.labels.astype(int).tolist() for part in (found["train"], found["val"])] == [ROWS, ROWS]
    assert any(note.endswith("names files that do not exist: train/9.png") for note in found["train"].notes)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"0.png": ["cat"]}, r"does not mention 3 of 4 pictures \(1.png, 2.png, 3.png\). Add them, with \[\]"),
        (["cat"], "expected labels by file, such as"),
        ({"0.png": [""], "1.png": [], "2.png": [], "3.png": []}, "expected labels by file, such as"),
        ({f"{n}.png": [] for n in range(4)}, "none of the pictures has a label"),
        (
            {f"{n}.png": ["a"] for n in range(9)},
            r"5 of the files that it names do not exist \(4.png, 5.png, 6.png and 2",
        ),
        ("no JSON", "cannot be read as JSON"),
    ],
)
def test_a_json_that_does_not_fit_is_refused(document, message, tmp_path):
    write_pictures(tmp_path)
    text = document if isinstance(document, str) else json.dumps(document)
    (tmp_path / "labels.json").write_text(text)
    with pytest.raises(UserError, match=f"labels.json: {message}"):
        opened(tmp_path)


def test_columns_of_anything_but_0_and_1_are_refused(tmp_path):
    path, _ = table(tmp_path, "path,cat,dog\n0.png,1,0\n1.png,-1,1\n2.png,0,1\n3.png,0,0")
    with pytest.raises(UserError, match=r"column 'cat' holds '-1'. If each label has a column of its own"):
        opened(path, label_column="cat,dog")
    with pytest.raises(UserError, match="no column 'cow' among path, cat, dog"):
        opened(path, label_column="cat,cow")
    with pytest.raises(UserError, match="no label column"):
        opened(path)


def test_where_there_are_no_cells_a_separator_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"has no columns; --data.layout.label_separator is for tables and parquet"):
        opened(beside(tmp_path)[0], label_separator=";")


def test_numbers_beyond_the_names_are_refused(tmp_path):
    path, _ = numbered_in_parquet(tmp_path)
    found = pq.read_table(path)
    pq.write_table(found.set_column(1, "labels", pa.array([[0], [3], [], [1]])), path)
    with pytest.raises(UserError, match="a label 3, but there are only 3 class names, numbered from 0"):
        opened(path)


# ---- the rest of the way


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """120 pictures; a third has no label, one label is rare."""
    folder = tmp_path_factory.mktemp("many")
    write_pictures(folder, 120)
    labels = {
        f"{n}.png": [name for name, every in (("odd", 2), ("third", 3), ("rare", 20)) if n % every == 1]
        for n in range(120)
    }
    (folder / "labels.json").write_text(json.dumps(labels))
    return DataSettings(where=str(folder))


def test_parts_hold_all_labels_in_proportion(many):
    splits = many.build()
    for part in (splits.val, splits.test):
        counts = part.targets.counts(3)
        assert len(part) in (11, 12) and counts[splits.train.classes.index("rare")] >= 1
        assert (~part.targets.labels.any(axis=1)).sum() >= 3  # a third of all have none


def test_checked_and_told_apart(many, tmp_path):
    splits = many.build()
    report = check(splits)
    assert report.classes == ("odd", "rare", "third") and sum(report.train_counts) == splits.train.targets.labels.sum()
    assert "smallest rare" in " ".join(report.summary())
    before = fingerprint(splits)
    splits.train.targets.labels[0, 0] ^= True
    assert "labels" in difference(before, fingerprint(splits))


def test_batches_hold_rows_and_balance_is_refused(many):
    train = many.build().train
    size = Preprocessing(size_px=(8, 8))
    loader = TrainLoader(train, [Augmentation().build(size)], batch_size=16, seed=0)
    for batch in (next(loader.batches(0, 1)), next(iter(EvalLoader(train, size, 16)))):
        assert batch.targets.keys() == {"labels"} and batch.targets["labels"].dtype == torch.float32
        assert np.array_equal(batch.targets["labels"].numpy(), train.targets.labels[batch.ids.numpy()])
    with pytest.raises(UserError, match="only one label per picture can be balanced"):
        TrainLoader(train, [Augmentation().build(size)], batch_size=16, seed=0, order=OrderSettings(balance=True))


def test_by_settings(tmp_path):
    path, layout = separated(tmp_path)
    found = DataSettings(where=str(path), layout=LayoutSettings(**layout), val_fraction=0, test_fraction=0).build()
    assert found.train.targets.labels.astype(int).tolist() == ROWS
