import os

import pytest
from made import is_picture, png, write_folder

from vitreous.data.images import BadPicture
from vitreous.data.names import Layout
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
    source = open_table(written(tmp_path / "sub", rows + f"{tmp_path}/outside.png,cat\n"), Layout())["all"]
    assert source.classes == ("cat", "dog") and source.labels.tolist() == [1, 0, 1, 0]
    assert [is_picture(source.read(index), number) for index, number in enumerate((0, 2, 50, 50))] == [True] * 4


def test_splits_numbers_and_another_column(tmp_path):
    write_folder(tmp_path, {"x": 3})
    rows = ["file\tlabel\tkind\tsplit"] + [
        f"x/000{n}.png\t{n}\t{9 + n}\t{s}" for n, s in enumerate(("train", "Training", "valid"))
    ]
    table = written(tmp_path, "\n".join(rows), "t.tsv")
    sources = open_table(table, Layout(label_column="kind"))
    assert sources["train"].classes == ("9", "10"), "numbers are ordered as numbers"
    assert sources["val"].classes == ("11",) and len(sources) == 2


def test_labels_may_be_missing_where_none_are_needed(tmp_path):
    write_folder(tmp_path, {"x": 2})
    for text in ("path\nx/0000.png\nx/0001.png\n", "path,label\nx/0000.png,a\nx/0001.png,\n"):
        source = open_table(written(tmp_path, text), Layout(need_labels=False))["all"]
        assert source.classes == ("unlabelled",) and len(source) == 2


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
def test_delimiters_are_found(tmp_path, delimiter, name):
    write_folder(tmp_path, {"x,y;z": 2})
    lines = [("path", "label"), ('"x,y;z/0000.png"', "dog"), ('"x,y;z/0001.png"', "cat")]
    table = written(tmp_path, "".join(delimiter.join(line) + "\n" for line in lines), name)
    source = open_table(table, Layout())["all"]
    assert source.classes == ("cat", "dog") and is_picture(source.read(1), 1)


@pytest.mark.parametrize(
    "text",
    [
        "x/0000.png;a,1\nx/0001.png;b,1\n",
        "photo;kind\nx/0000.png;a,1\nx/0001.png;b,1\n",
        "path;label\nx/0000.png;a,1\n",
    ],
)
def test_a_comma_in_a_label_is_no_delimiter(tmp_path, text):
    write_folder(tmp_path, {"x": 2})
    layout = Layout(path_column="photo", label_column="kind") if "photo" in text else Layout()
    assert open_table(written(tmp_path, text), layout)["all"].classes[0] == "a,1"


def test_a_named_column_of_paths(tmp_path):
    write_folder(tmp_path, {"x": 2})
    table = written(tmp_path, "photo;label\nx/0000.png;b\nx/0001.png;a\n")
    with pytest.raises(
        UserError, match=r"no path column .* among photo, label. Name it with --data.layout.path_column"
    ):
        open_table(table, Layout())
    assert open_table(table, Layout(path_column="photo"))["all"].labels.tolist() == [1, 0]
    with pytest.raises(UserError, match=r"no column 'foto' among photo, label. Did you mean photo"):
        open_table(table, Layout(path_column="foto"))


def test_without_a_header(tmp_path):
    write_folder(tmp_path, {"x": 3})
    rows = [("dog", "x/0000.png"), ("cat", "x/0001.png"), ("dog", "x/0002.png")]
    table = written(tmp_path, "".join(f"{label},{file}\n" for label, file in rows))
    source = open_table(table, Layout())["all"]
    assert source.labels.tolist() == [1, 0, 1] and is_picture(source.read(0), 0), "the first row counts"
    assert open_table(table, Layout(label_column="1", path_column="2"))["all"].classes == ("cat", "dog")
    with pytest.raises(UserError, match="no column '3' among 1, 2"):
        open_table(table, Layout(label_column="3"))
    text = "".join(
        f"{file}\t{label}\t{n}\t{part}\n" for n, (label, file) in enumerate(rows) for part in ("train", "test")
    )
    table = written(tmp_path, text)
    with pytest.raises(
        UserError, match=r"no header, and 2 columns that may hold the labels.*--data.layout.label_column"
    ):
        open_table(table, Layout())
    sources = open_table(table, Layout(label_column="2"))
    assert {name: len(source) for name, source in sources.items()} == {"train": 3, "test": 3}
    assert open_table(table, Layout(need_labels=False))["train"].classes == ("unlabelled",)


def test_labels_in_the_names_of_listed_files(tmp_path):
    write_folder(tmp_path, {"x": 2})
    table = written(tmp_path, "x/0000.png\nx/0001.png\n")
    assert open_table(table, Layout(label_pattern=r"(\d)\.png"))["all"].classes == ("0", "1")


def test_special_files_are_not_read(tmp_path):
    write_folder(tmp_path, {"x": 8})
    os.mkfifo(tmp_path / "pipe.png")
    rows = [f"x/000{n}.png,{'ab'[n % 2]}" for n in range(8)]
    source = open_table(written(tmp_path, "\n".join(["path,label", *rows, "/dev/zero,a", "pipe.png,b"])), Layout())[
        "all"
    ]
    for index in (8, 9):
        with pytest.raises(BadPicture, match="not a regular file"):
            source.read(index)
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(UserError, match=r"cannot be read as a table \(a pipe, not a regular file\)"):
        open_table(tmp_path / "pipe.csv", Layout())


def test_a_file_without_line_ends_is_not_read_in_one_piece(tmp_path):
    with (tmp_path / "t.csv").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match="a line of 1,048,576 characters or more"):
        open_table(tmp_path / "t.csv", Layout())


def test_some_files_may_be_missing(tmp_path):
    write_folder(tmp_path, {"x": 3})
    rows = [f"{file},a" for file in ("x/0000.png", "gone1.png", "gone2.png", "gone3.png")]
    table = written(tmp_path, "\n".join(["path,label", *rows]))
    assert len(open_table(table, Layout())["all"]) == 4
    with pytest.raises(UserError, match="3 of its 4 files do not exist"):
        open_table(table, Layout(max_unreadable=2))


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("path,lable\nx/0000.png,a\n", None, r"no label column .*--data\.layout\.label_column"),
        ("picture,label\nx/0000.png,a\n", None, "no path column"),
        ("path,species\nx/0000.png,a\n", "specis", "Did you mean species"),
        ("path,label\nx/0000.png,a\nx/0001.png,\n", None, "line 3: no label"),
        ("path,label\nx/0000.png,a\nx/0001.png\n", None, "line 3: no label"),
        ("path,label\n" + "y/0001.png,b\n" * 4, None, "4 of its 4 files do not exist"),
        ("path,label\nx/0000.png,NaN\nx/0001.png,a\n", None, r"table\.csv: 1 pictures have the label 'NaN'"),
        ("path,label\nx/0000.png,pizza,yellow\n", None, "line 2: 3 cells, .* Put a text that contains .* quotes"),
        ("path,label,split\nx/0000.png,a,trian\n", None, "'trian' is not train, val or test"),
        ("path,label,split\nx/0000.png,a,train\nx/0001.png,a,\n", None, "some rows name a split"),
        ('path,label\nx/0000.png,"a\nx/0001.png,b\n', None, "cannot be read as a table .unexpected end of data"),
        ("path,label\n", None, "no rows"),
        ("", None, r"table\.csv: empty"),
        ("path,words\nx/0000.png,a cat\n", None, r"captions with --data\.layout\.caption_column"),
    ],
)
def test_errors(tmp_path, text, column, message):
    write_folder(tmp_path, {"x": 3})
    with pytest.raises(UserError, match=message):
        open_table(written(tmp_path, text), Layout(label_column=column))
