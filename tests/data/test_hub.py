import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from made import is_picture, png
from segmented_made import SIZE, mask_of, mask_png

from vitreous.data.hub import open_hub
from vitreous.data.images import BadPicture
from vitreous.data.names import Layout
from vitreous.errors import UserError


class Rows:
    """As much of datasets.Dataset as is used."""

    def __init__(self, columns, features, decoded=True):
        self.columns, self.features, self.decoded = columns, features, decoded
        self.column_names = list(columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.columns[key]
        assert not self.decoded, "pictures must not be decoded by the library"
        return {name: values[key] for name, values in self.columns.items()}

    def select_columns(self, names):
        return Rows({name: self.columns[name] for name in names}, self.features, self.decoded)

    def cast_column(self, name, feature):
        return Rows(self.columns, self.features, feature.decode)


class Image:
    """As much of datasets.Image as is used."""

    def __init__(self, decode=True):
        self.decode = decode


@pytest.fixture
def library(monkeypatch):
    def scenes(first):
        cells = [{"bytes": png(first + n, SIZE), "path": None} for n in range(4)]
        masks = [{"bytes": mask_png(mask_of(first + n)), "path": None} for n in range(4)]
        masks[3] = {"bytes": None, "path": None} if first else masks[3]
        columns = {"image": cells, "annotation": masks, "kind": ["x", "y", "x", "x"]}
        return Rows(columns, {"image": Image(), "annotation": Image(), "kind": None})

    def boxed():
        import pyarrow as pa

        cells = [{"bytes": png(n, SIZE), "path": None} for n in range(3)]
        objects = [{"bbox": [[1.0, 1.0, 2.0, 3.0]], "category": [1]}, None, {"bbox": [], "category": []}]
        names = {"info": {"features": {"objects": {"category": {"feature": {"names": ["cat", "dog"]}}}}}}
        schema = pa.table({"image": cells, "objects": objects}).schema
        schema = schema.with_metadata({"huggingface": json.dumps(names)})
        return Rows({"image": cells, "objects": objects}, SimpleNamespace(arrow_schema=schema))

    def rows(first):
        cells = [{"bytes": png(first + n), "path": None} for n in range(4)]
        columns = {"img": cells, "label": [0, 1, 1, 0], "kind": ["x", "y", "x", "x"]}
        columns |= {"gap": ["x", float("nan"), "y", "x"], "many": [["x", "y"], ["x"], [], ["y"]]}
        columns |= {"joined": ["x+y", "x", "", "y"]}
        return Rows(
            columns,
            {"label": SimpleNamespace(names=["cat", "dog"]), "kind": None, "gap": None, "many": None, "joined": None},
        )

    def load_dataset(name, configuration=None):
        if name == "missing":
            raise FileNotFoundError("no such data set\nsecond line")
        if name == "someone/things":
            return {"train": boxed()}
        if name == "someone/scenes":
            return {"train": scenes(0), "validation": scenes(4)}
        return (
            {"train": rows(0), "validation": rows(4), "unsupervised": rows(8)}
            if configuration is None
            else {"odd": rows(0)}
        )

    module = SimpleNamespace(load_dataset=load_dataset, Image=Image)
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_splits_labels_and_pictures(library):
    sources = open_hub("someone/pets", Layout())
    assert sorted(sources) == ["train", "val"]
    assert sources["val"].classes == ("cat", "dog") and np.array_equal(sources["val"].labels, [0, 1, 1, 0])
    assert is_picture(sources["val"].read(2), 6)
    assert sources["val"].where(2) == "someone/pets val:row 2"
    assert open_hub("someone/pets", Layout(label_column="kind"))["train"].classes == ("x", "y")
    assert list(open_hub("someone/pets:other", Layout())) == ["all"]


def test_missing_and_several_labels(library):
    with pytest.raises(UserError, match="someone/pets train: 1 pictures have the label 'nan'"):
        open_hub("someone/pets", Layout(label_column="gap"))
    many = open_hub("someone/pets", Layout(label_column="many"))["train"]
    assert many.classes == ("x", "y")
    joined = open_hub("someone/pets", Layout(label_column="joined", label_separator="+"))["train"]
    assert joined.classes == ("x", "y") and np.array_equal(joined.targets.labels, many.targets.labels)
    assert many.targets.labels.astype(int).tolist() == [[1, 1], [1, 0], [0, 0], [0, 1]]


def test_a_column_of_masks(library):
    sources = open_hub("someone/scenes", Layout())
    val = sources["val"]
    assert val.targets.task == "segment" and val.classes == sources["train"].classes == ("0", "1", "2")
    assert np.array_equal(val.targets.read(1)["mask"], mask_of(5)) and is_picture(val.read(1), 5)
    assert "the column annotation" in val.notes[0]
    with pytest.raises(BadPicture, match="its mask: no picture in this row"):
        val.targets.read(3)
    assert open_hub("someone/scenes", Layout(label_column="kind"))["train"].classes == ("x", "y")
    with pytest.raises(UserError, match="hf:someone/scenes: column 'kind' holds no pictures, so it cannot hold masks"):
        open_hub("someone/scenes", Layout(mask_column="kind"))


def test_a_column_of_objects(library):
    """As the hub documents them: x, y, width and height; what is null was never labelled."""
    source = open_hub("someone/things", Layout())["train"]
    assert source.targets.task == "detect" and source.classes == ("cat", "dog") and len(source) == 2
    assert source.targets.of(0).boxes.tolist() == [[1, 1, 3, 4]] and source.described(1) == "no objects"
    assert source.targets.sizes.tolist() == [list(source.read(0).shape[:2])] * 2
    assert is_picture(source.read(1), 2) and source.where(1).endswith("row 2")


def test_errors(library, monkeypatch):
    with pytest.raises(UserError, match=r"hf:missing: cannot be loaded \(no such data set\)\.$"):
        open_hub("missing", Layout())
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="not installed; run pip install"):
        open_hub("cifar10", Layout())
