"""Captions: how sources tell them, how they are kept, and what the drawn ones say."""

import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from captions import draw_captions
from vitreous.data.base import Retargeted, Subset
from vitreous.data.fingerprint import names_digest
from vitreous.data.loader import EvalLoader
from vitreous.data.names import Layout
from vitreous.data.rendered_captions import COLOUR_NAMES, SHAPE_NAMES, Pairs
from vitreous.data.sources import open_sources
from vitreous.data.targets import Captions
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError

CAPTIONS = Layout(targets="captions")


def png(level=0):
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), level, dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def lengths(texts):
    """A tokenizer that counts letters: the text's length, then its letters, then zeros."""
    rows = np.zeros((len(texts), 20), dtype=np.int32)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text) + 1] = [len(text), *map(ord, text)]
    return rows


# ---- targets


def test_captions_stay_with_their_pictures():
    captions = Captions.of([["one"], ["two", "zwei", "二"], ["three", "drei"]])
    assert len(captions) == 3 and captions.described(1, ()) == "two / zwei / 二"
    taken = captions.take(np.array([2, 0, 2]))
    assert [taken.of_picture(at) for at in range(3)] == [["three", "drei"], ["one"], ["three", "drei"]]
    small = taken.encoded(lengths, padding=0).take(np.array([1, 0])).small()
    assert small["num_captions"].tolist() == [1, 2]
    assert small["captions"].shape == (2, 2, 8)  # as long as the longest text, in eights
    assert small["captions"][:, :, 0].tolist() == [[3, 0], [5, 4]]
    assert captions.encoded(lengths).small()["captions"].shape == (3, 3, 20)
    assert captions.small() == {}


def test_other_captions_are_other_data(tmp_path):
    first, again = (open_sources(str(draw_captions(tmp_path / name, (("train", 3),))))["train"] for name in "ab")
    assert names_digest(first) == names_digest(again)
    again.targets = Captions.of([["something else"]] * 3)
    assert names_digest(first) != names_digest(again)


def test_batches_hold_them(tmp_path):
    source = open_sources(str(draw_captions(tmp_path, (("train", 5),))))["train"]
    part = Subset(source, [4, 1, 0])
    tokens = Retargeted(part, part.targets.encoded(lambda texts: np.array([[len(text)] for text in texts], np.int32)))
    (batch,) = EvalLoader(tokens, Preprocessing(size_px=(32, 32)), batch_size=8)
    expected = [[len(text) for text in source.targets.of_picture(at)] for at in (4, 1, 0)]
    assert batch.targets["captions"][:, :, 0].tolist() == expected


# ---- tables, parquet, tar, Flickr8k


def test_a_table_has_a_row_per_caption(tmp_path):
    found = open_sources(str(draw_captions(tmp_path)))
    assert {split: len(source) for split, source in found.items()} == {"train": 64, "val": 16}
    assert len(found["train"].targets.of_picture(3)) == 3 and found["train"].read(3).shape == (32, 32, 3)
    assert "64 pictures with 192 captions" in found["train"].notes[-1]


def test_labels_come_first_unless_captions_are_asked_for(tmp_path):
    (tmp_path / "a.png").write_bytes(png())
    (tmp_path / "b.png").write_bytes(png(9))
    (tmp_path / "t.csv").write_text('path,label,text\na.png,cat,"a cat, black"\nb.png,dog,\n')
    assert open_sources(str(tmp_path / "t.csv"))["all"].classes == ("cat", "dog")
    asked = open_sources(str(tmp_path / "t.csv"), CAPTIONS)["all"]
    assert asked.targets.of_picture(0) == ["a cat, black"] and len(asked) == 1  # the other has none
    assert "left out for lack of a caption: 1" in asked.notes[-1]
    (tmp_path / "v.tsv").write_text("filepath\ttitle\na.png\ta cat\n")  # as open_clip's own example has it
    assert open_sources(str(tmp_path / "v.tsv"), CAPTIONS)["all"].targets.of_picture(0) == ["a cat"]
    named = open_sources(str(tmp_path / "t.csv"), Layout(caption_column="label"))["all"]
    assert named.targets.of_picture(1) == ["dog"]
    with pytest.raises(UserError, match=r"no caption column .*--data\.layout\.caption_column"):
        (tmp_path / "u.csv").write_text("path,label\na.png,cat\n")
        open_sources(str(tmp_path / "u.csv"), CAPTIONS)


def test_parquet_has_texts_or_lists_of_them(tmp_path):
    images = [{"bytes": png(level), "path": None} for level in range(3)]
    lists = [["one", "eins"], None, [" "]]
    objects = [[{"raw": "one"}, {"raw": "uno"}], [], [{"raw": "three"}]]
    pq.write_table(pa.table({"image": images, "captions": lists, "sentences": objects}), tmp_path / "a.parquet")
    source = open_sources(str(tmp_path / "a.parquet"))["all"]
    assert len(source) == 1 and source.targets.of_picture(0) == ["one", "eins"]
    other = open_sources(str(tmp_path / "a.parquet"), Layout(caption_column="sentences"))["all"]
    assert [other.targets.of_picture(at) for at in range(2)] == [["one", "uno"], ["three"]]
    assert other.read(1).max() == 2


def packed(path, members):
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_webdataset_has_txt_or_json_beside(tmp_path):
    document = json.dumps({"caption": "of json", "width": 8}).encode()
    packed(
        tmp_path / "train-0.tar",
        {"0.jpg": png(), "0.txt": "of txt é".encode(), "0.json": document, "1.jpg": png(5), "1.json": document},
    )
    packed(tmp_path / "val-0.tar", {"2.jpg": png(7), "2.txt": b"of val"})
    found = open_sources(str(tmp_path))
    assert [found["train"].targets.of_picture(at) for at in range(2)] == [["of txt é"], ["of json"]]
    assert found["val"].read(0).max() == 7 and not found["val"].notes
    packed(tmp_path / "val-0.tar", {"2.jpg": png(7), "2.txt": b"\xff\xfe"})
    with pytest.raises(UserError, match=r"2\.txt: cannot be read as captions"):
        open_sources(str(tmp_path))


def test_a_tar_of_classes_stays_one(tmp_path):
    packed(tmp_path / "a.tar", {"0.jpg": png(), "0.cls": b"cat", "0.txt": b"a cat"})
    assert open_sources(str(tmp_path / "a.tar"))["all"].classes == ("cat",)
    asked = open_sources(str(tmp_path / "a.tar"), CAPTIONS)["all"]
    assert asked.targets.of_picture(0) == ["a cat"]


def test_flickr8k_as_it_is_published(tmp_path):
    (tmp_path / "Images").mkdir()
    for number in range(4):
        (tmp_path / "Images" / f"{number}.jpg").write_bytes(png(number))
    lines = [f"{number}.jpg#{place}\tcaption {place} of {number} ." for number in range(3) for place in range(2)]
    (tmp_path / "Flickr8k.token.txt").write_text("\n".join([*lines, "2258277193_586949ec62.jpg.1#0\todd"]))
    for split, names in (("train", "0.jpg\n1.jpg\n"), ("dev", "2.jpg\n"), ("test", "3.jpg\n2.jpg\nlost.jpg\n")):
        (tmp_path / f"Flickr_8k.{split}Images.txt").write_text(names)
    found = open_sources(str(tmp_path), CAPTIONS)
    assert {split: len(source) for split, source in found.items()} == {"train": 2, "val": 1, "test": 1}
    assert found["test"].targets.of_picture(0) == ["caption 0 of 2 .", "caption 1 of 2 ."]
    assert any("lost.jpg" in note for note in found["test"].notes)
    for text, why in (
        ("lost.jpg\n", "of its val part exists, such as 'lost.jpg'"),
        ("\n", "no pictures of its val part"),
    ):
        (tmp_path / "Flickr_8k.devImages.txt").write_text(text)
        with pytest.raises(UserError, match=why):
            open_sources(str(tmp_path), CAPTIONS)
    (tmp_path / "Flickr8k.token.txt").write_text("no captions")
    with pytest.raises(UserError, match="line 1: expected a name"):
        open_sources(str(tmp_path))


def test_a_folder_without_captions_says_so(tmp_path):
    (tmp_path / "cat").mkdir()
    with pytest.raises(UserError, match="no captions in it"):
        open_sources(str(tmp_path), CAPTIONS)


# ---- drawn ones


def test_what_never_met_in_training_is_in_every_unseen_picture():
    def are_seen(pairs):
        return (pairs.shape != pairs.colour % len(SHAPE_NAMES)).all(axis=1)

    val, unseen = Pairs("val"), Pairs("unseen")
    assert are_seen(val).all() and not are_seen(unseen).any()
    assert set(unseen.colour[:, 0]) == set(range(len(COLOUR_NAMES)))


def test_no_two_test_pictures_show_the_same():
    pairs = Pairs("test")
    texts = [text for index in range(pairs.num) for text in pairs.captions(index)]
    assert len(set(texts)) == len(texts) == 4000


def test_a_caption_says_what_is_drawn():
    pairs = Pairs("val")
    index = next(i for i in range(pairs.num) if pairs.relation[i] == 0 and set(pairs.colour[i]) == {0, 2})
    left, right = ("red", "blue") if pairs.colour[index, 0] == 0 else ("blue", "red")
    assert f" {left} " in pairs.captions(index)[0].split("left of")[0]
    picture = pairs.picture(index).astype(int)
    more_red = picture[..., 0] - picture[..., 2]
    assert (more_red[:, :32].max() > 100) == (left == "red") and (more_red[:, 32:].max() > 100) == (right == "red")
