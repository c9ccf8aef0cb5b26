import contextlib
import json
import os
import pickle
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made import is_picture, png

from vitreous.data import parquet
from vitreous.data.images import BadPicture
from vitreous.data.names import Layout
from vitreous.data.parquet import open_parquet
from vitreous.data.targets import NoTargets
from vitreous.errors import UserError


def write(path, labels, first=0, names=None, group=3, **columns):
    metadata = {"huggingface": json.dumps({"info": {"features": {"label": {"names": names}}}})} if names else None
    images = [{"bytes": png(first + index), "path": None} for index in range(len(labels))]
    table = pa.table({"image": images, "label": labels, **columns})
    pq.write_table(table.replace_schema_metadata(metadata), path, row_group_size=group)
    return path


def test_rows_across_shards_and_row_groups(tmp_path):
    names = ["cat", "dog", "never seen"]
    write(tmp_path / "train-00000-of-00002.parquet", [0, 1] * 4, names=names)
    write(tmp_path / "train-00001-of-00002.parquet", [1, 1, 0, 0], first=8, names=names)
    write(tmp_path / "test-00000-of-00001.parquet", [1], first=20, names=names)
    sources = open_parquet(tmp_path, Layout())
    train = sources["train"]
    assert sorted(sources) == ["test", "train"] and train.classes == tuple(names)
    assert train.labels.tolist() == [0, 1] * 4 + [1, 1, 0, 0]
    assert all(is_picture(train.read(index), index) for index in (11, 0, 7, 8, 3, 5, 2, 10))
    assert train.where(7).endswith("00000-of-00002.parquet:row 7")
    assert train.where(11).endswith("00001-of-00002.parquet:row 3")
    assert is_picture(sources["test"].read(0), 20)


def test_rows_without_labels_where_none_are_needed(tmp_path):
    pq.write_table(pa.table({"image": [{"bytes": png(n), "path": None} for n in range(3)]}), tmp_path / "x.parquet")
    source = open_parquet(tmp_path / "x.parquet", Layout(need_labels=False))["all"]
    assert source.classes == ("unlabelled",) and isinstance(source.targets, NoTargets) and len(source) == 3
    assert is_picture(source.read(2), 2)


def test_file_names_give_splits(tmp_path):
    for name in ("trainval", "validation-0", "test"):
        write(tmp_path / f"{name}.parquet", [0, 1])
    assert sorted(open_parquet(tmp_path, Layout())) == ["test", "train", "val"]
    assert list(open_parquet(tmp_path / "test.parquet", Layout())) == ["all"], "a lone file is not split"
    write(tmp_path / "extra.parquet", [0, 1])
    with pytest.raises(UserError, match=r"extra.parquet: cannot tell which split"):
        open_parquet(tmp_path, Layout())


def test_class_names(tmp_path):
    path = write(tmp_path / "x.parquet", [2, 7, 2], species=["b", "a", "b"], weight=[0.1, 0.2, 0.3])
    source = open_parquet(path, Layout())["all"]
    assert source.classes == ("2", "7") and source.labels.tolist() == [0, 1, 0]
    assert open_parquet(path, Layout(label_column="species"))["all"].classes == ("a", "b")
    (tmp_path / "classes.json").write_text(json.dumps([f"class {number}" for number in range(8)]))
    source = open_parquet(path, Layout())["all"]
    assert source.labels.tolist() == [2, 7, 2] and source.classes[7] == "class 7"
    with pytest.raises(UserError, match=r"no column 'specie' among .* Did you mean species"):
        open_parquet(path, Layout(label_column="specie"))
    with pytest.raises(UserError, match="'weight' holds double"):
        open_parquet(path, Layout(label_column="weight"))


def test_bytes_alone_paths_and_gaps(tmp_path):
    (tmp_path / "beside.png").write_bytes(png(5))
    cells = [{"bytes": png(4), "path": "x"}, {"bytes": None, "path": "beside.png"}, {"bytes": None, "path": None}, None]
    pq.write_table(pa.table({"image": cells, "label": [0, 1, 0, 1]}), tmp_path / "x.parquet")
    source = open_parquet(tmp_path / "x.parquet", Layout())["all"]
    assert is_picture(source.read(0), 4) and is_picture(source.read(1), 5)
    for index in (2, 3):
        with pytest.raises(BadPicture, match="no picture in this row"):
            source.read(index)
    pq.write_table(pa.table({"img": [png(6)], "label": ["a"]}), tmp_path / "y.parquet")
    assert is_picture(open_parquet(tmp_path / "y.parquet", Layout())["all"].read(0), 6)


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [
        ([0, None], None, "1 rows have no label"),
        ([0, -1], None, "1 rows are unlabelled"),
        ([0, 2], ["a", "b"], "only 2 class names"),
    ],
)
def test_label_errors(tmp_path, labels, names, message):
    with pytest.raises(UserError, match=message):
        open_parquet(write(tmp_path / "x.parquet", labels, names=names), Layout())


def test_several_labels_and_missing_ones(tmp_path):
    path = tmp_path / "x.parquet"
    for labels, message in (
        ([[["pizza"]], [["yellow"]]], r"holds list<.*>: labels must be names or numbers, or lists of them"),
        ([["pizza", None], ["pizza"]], "has lists with an empty label"),
        (["nan", "a"], "1 pictures have the label 'nan'"),
        (["", "a"], "1 pictures have the label ''"),
    ):
        pq.write_table(pa.table({"image": [png(0), png(1)], "label": labels}), path)
        with pytest.raises(UserError, match=message):
            open_parquet(path, Layout())


def test_special_files_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    cells = [{"bytes": None, "path": "/dev/zero"}, {"bytes": None, "path": "pipe.png"}]
    pq.write_table(pa.table({"image": cells, "label": [0, 1]}), tmp_path / "x.parquet")
    source = open_parquet(tmp_path / "x.parquet", Layout())["all"]
    for index in (0, 1):
        with pytest.raises(BadPicture, match="not a regular file"):
            source.read(index)
    os.mkfifo(tmp_path / "y.parquet")
    with pytest.raises(UserError, match=r"y.parquet: cannot be read as parquet \(a pipe, not a regular file\)"):
        open_parquet(tmp_path, Layout())


def test_no_parquet(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(UserError, match="cannot be read as parquet"):
        open_parquet(tmp_path / "x.parquet", Layout())


def test_damaged_files_never_raise_anything_else(tmp_path):
    path = write(tmp_path / "x.parquet", [0, 1] * 5)
    whole, random = np.frombuffer(path.read_bytes(), np.uint8), np.random.default_rng(0)
    num_refused = 0
    for _ in range(80):
        damaged = whole.copy()
        damaged[random.integers(0, len(whole), 4)] = random.integers(0, 256, 4)
        path.write_bytes(damaged.tobytes())
        try:
            source = open_parquet(path, Layout())["all"]
            for index in range(len(source)):
                with contextlib.suppress(BadPicture):
                    source.read(index)
        except UserError:
            num_refused += 1
    assert 10 < num_refused < 80


def test_cache_is_small_and_belongs_to_its_process(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "CACHE_BYTES", 1)
    source = open_parquet(write(tmp_path / "x.parquet", [0, 1] * 30, group=10), Layout())["all"]
    for index in range(60):
        source.read(index)
    assert len(source.rows._cache.groups) == 1
    source.rows._cache.lock.acquire()  # as a thread of the parent may hold it when a worker is forked
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a deadlock ends as a failure
        os._exit(0 if is_picture(source.read(37), 37) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_picture(pickle.loads(pickle.dumps(source)).read(59), 59)


def test_an_empty_split_is_no_split(tmp_path):
    from vitreous.data.sources import DataSettings

    write(tmp_path / "train.parquet", [0, 1] * 10)
    pq.write_table(pq.read_table(tmp_path / "train.parquet").slice(0, 0), tmp_path / "test.parquet")
    splits = DataSettings(where=str(tmp_path)).build()
    assert len(splits.test) == 2, "carved from train"
    pq.write_table(pq.read_table(tmp_path / "train.parquet").slice(0, 0), tmp_path / "train.parquet")
    with pytest.raises(UserError, match="no training pictures"):
        DataSettings(where=str(tmp_path)).build()
