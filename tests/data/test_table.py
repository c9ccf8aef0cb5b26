import pytest
from made import is_picture, png, write_folder

from vitreous.data.table import open_table
from vitreous.errors import UserError


def written(tmp_path, text, name="table.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8-sig")
    return path


def test_paths_are_relative_to_the_table(tmp_path):
    write_folder(tmp_path / "sub" / "pictures", {"x": 3})
    (tmp_path / "outside.png").write_bytes(png(50))
    rows = "image,label\npictures/x/0000.png,dog\npictures/x/0002.png,cat\n../outside.png,dog\n"
    source = open_table(written(tmp_path / "sub", rows + f"{tmp_path}/outside.png,cat\n"), None)["all"]
    assert source.classes == ("cat", "dog") and source.labels.tolist() == [1, 0, 1, 0]
    assert [is_picture(source.read(index), number) for index, number in enumerate((0, 2, 50, 50))] == [True] * 4


def test_splits_numbers_and_another_column(tmp_path):
    write_folder(tmp_path, {"x": 3})
    rows = ["file\tlabel\tkind\tsplit"] + [
        f"x/000{n}.png\t{n}\t{9 + n}\t{s}" for n, s in enumerate(("train", "Training", "valid"))
    ]
    table = written(tmp_path, "\n".join(rows), "t.tsv")
    sources = open_table(table, "kind")
    assert sources["train"].classes == ("9", "10"), "numbers are ordered as numbers"
    assert sources["val"].classes == ("11",) and len(sources) == 2


def test_a_column_of_paths_is_enough_where_no_labels_are_needed(tmp_path):
    write_folder(tmp_path, {"x": 2})
    source = open_table(written(tmp_path, "path\nx/0000.png\nx/0001.png\n"), None, need_labels=False)["all"]
    assert source.classes == ("unlabelled",) and len(source) == 2


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("path,lable\nx/0000.png,a\n", None, "no label column"),
        ("picture,label\nx/0000.png,a\n", None, "no path column"),
        ("path,species\nx/0000.png,a\n", "specis", "Did you mean species"),
        ("path,label\nx/0000.png,a\nx/0001.png,\n", None, "line 3: no label"),
        ("path,label\nx/0000.png,a\nx/0001.png\n", None, "line 3: no label"),
        ("path,label\nx/0000.png,a\ny/0001.png,b\n", None, "1 of its 2 files do not exist"),
        ("path,label,split\nx/0000.png,a,trian\n", None, "'trian' is none of"),
        ("path,label,split\nx/0000.png,a,train\nx/0001.png,a,\n", None, "some rows name a split"),
        ("path,label\n", None, "no rows"),
        ("", None, "no path column"),
    ],
)
def test_errors(tmp_path, text, column, message):
    write_folder(tmp_path, {"x": 3})
    with pytest.raises(UserError, match=message):
        open_table(written(tmp_path, text), column)
