"""From a folder to an index that grows with it, and from questions to pictures."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from bulk_inputs import picture, save_model, write_tar
from vitreous.bulk.output import Output
from vitreous.bulk.store import LocalStore
from vitreous.cli import main
from vitreous.data.images import BadPicture, read_picture
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.models.text import TextSettings
from vitreous.search.index import Index
from vitreous.search.originals import original
from vitreous.serve.served import open_served
from vitreous.tasks.image_text import ImageTextSettings
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained
from vitreous.words.pairs import train_tokenizer

NUM = 11
WORDS = "red shoe on grass"


def save_towers(folder, seed=0):
    torch.manual_seed(seed)
    tokenizer = train_tokenizer(["red shoe on grass", "a blue hat"] * 3, 560, 12)
    text = TextSettings(
        vocabulary=len(tokenizer), end=tokenizer.end, context=tokenizer.context, width=8, depth=1, heads=2
    )
    model, task = (
        ViTSettings(picture_px=(8, 8), patch=4, width=16, depth=1, heads=2),
        ImageTextSettings(width=6, text=text),
    )
    card = Card(model=model, task=task, preprocessing=Preprocessing(size_px=(8, 8)))
    weights = task.build(model.build(), ()).state_dict()
    Trained(card, weights, "here", words=lambda: tokenizer).save(folder)


def index(folder, model="towers", out="index"):
    main(["index", f"{folder}/pictures", "--model", f"{folder}/{model}", "--out", f"{folder}/{out}", "--part", "4"])


@pytest.fixture
def folder(tmp_path, capsys):
    """Two models, and an index of a folder, whose third picture is none and whose last is the first again."""
    save_towers(tmp_path / "towers")
    save_model(tmp_path / "encoder")
    pictures = tmp_path / "pictures"
    (pictures / "deep").mkdir(parents=True)
    for number in range(NUM):
        (pictures / f"{number:02}.png").write_bytes(picture(number))
    (pictures / "02.png").write_bytes(b"no picture")
    (pictures / "deep" / "again.png").write_bytes(picture(0))
    index(tmp_path)
    said = capsys.readouterr()
    assert said.out == f"Saved to {tmp_path}/index: 12 rows, 1 without a result, 12 new\n"
    assert f"note: the first without a result is {pictures}/02.png: not a picture" in said.err
    return tmp_path


def asked(capsys, *words):
    """What a command prints, as JSON."""
    main(["search", *map(str, words), "--json"])
    return json.loads(capsys.readouterr().out)


def expected(folder, query, model="towers"):
    """Names by likeness to (D,), computed by the model itself and one sort."""
    trained = Trained.load(folder / model)
    names = [path for path in sorted((folder / "pictures").rglob("*.png")) if path.name != "02.png"]
    names.sort(key=lambda path: (len(path.parts), path))
    resize = trained.card.preprocessing
    images = resize.normalised(torch.stack([resize.resized(read_picture(path)) for path in names]))
    with torch.no_grad():
        vectors = trained.task().embed_pictures(images).numpy()
    scores = vectors @ query
    return [
        (str(names[row]), pytest.approx(float(scores[row]), abs=1e-5)) for row in np.argsort(-scores, kind="stable")
    ]


def pairs(found):
    return [(one["picture"], one["score"]) for one in found]


# ---- questions


def test_words_find_what_both_towers_say(folder, capsys):
    trained = Trained.load(folder / "towers")
    with torch.no_grad():
        query = trained.task().embed_texts(torch.from_numpy(trained.tokenizer()([WORDS])))[0].numpy()
    assert pairs(asked(capsys, folder / "index", WORDS, "--top", 5)) == expected(folder, query)[:5]
    assert len(asked(capsys, folder / "index", *WORDS.split(), "--top", 99)) == 11  # quotes are not needed


def test_a_picture_finds_itself_and_its_copy_first(folder, capsys):
    found = asked(capsys, folder / "index", "--picture", folder / "pictures" / "deep" / "again.png", "--top", 3)
    # Which of two equal pictures comes first is a matter of the last bit: they were embedded in different batches.
    assert {Path(one["picture"]).name for one in found[:2]} == {"00.png", "again.png"}
    assert [one["score"] for one in found[:2]] == pytest.approx([1, 1]) and found[2]["score"] < 1


def test_duplicates_and_outliers(folder, capsys):
    (group,) = asked(capsys, folder / "index", "--duplicates", "--alike", 1)
    assert [Path(one["picture"]).name for one in group] == ["00.png", "again.png"]
    for group in asked(capsys, folder / "index", "--duplicates", "--alike", 0.01):
        scores = [one["score"] for one in group]
        assert scores[1:] == sorted(scores[1:], reverse=True) and scores[0] == pytest.approx(1) and max(scores) <= 1
    (folder / "pictures" / "deep" / "again.png").unlink()
    index(folder)
    capsys.readouterr()
    main(["search", f"{folder}/index", "--duplicates", "--alike", "1", "--html", f"{folder}/none.html"])
    assert capsys.readouterr().out.startswith("no duplicates\n")
    assert "<h1>No duplicates</h1>" in (folder / "none.html").read_text()
    found = asked(capsys, folder / "index", "--outliers", "--top", 4)
    assert [one["score"] for one in found] == sorted(one["score"] for one in found)
    vectors = Index.open(str(folder / "index")).vectors[:]
    cosines = vectors @ vectors.T - 2 * np.eye(len(vectors))
    assert found[0]["score"] == pytest.approx(np.sort(cosines, axis=1)[:, 1:].mean(axis=1).min(), abs=1e-5)


def test_a_model_without_words_is_asked_with_pictures(folder, capsys):
    index(folder, "encoder", "plain")
    capsys.readouterr()
    found = asked(capsys, folder / "plain", "--picture", folder / "pictures" / "03.png")
    assert found[0]["picture"].endswith("03.png") and found[0]["score"] == pytest.approx(1)
    np.testing.assert_allclose(np.linalg.norm(Index.open(str(folder / "plain")).vectors[:], axis=1), 1, atol=1e-6)
    with pytest.raises(SystemExit):
        main(["search", str(folder / "plain"), WORDS])
    assert capsys.readouterr().err == (
        f"vitreous: {folder}/encoder: has no text tower, so it cannot read words: give it a picture\n"
    )
    photo = folder / "pictures" / "03.png"
    with pytest.raises(SystemExit):
        main(["search", str(folder / "plain"), str(photo)])
    assert capsys.readouterr().err == (
        f"vitreous: {photo} is a file, not words: --picture {photo} finds pictures that look like it\n"
    )


def test_a_table_and_a_contact_sheet(folder, capsys):
    (folder / "pictures" / "<b>&\n.png").write_bytes(picture(50))
    index(folder)
    capsys.readouterr()
    main(["search", str(folder / "index"), "<i>", "--html", str(folder / "sheet.html")])
    lines, page = capsys.readouterr().out.splitlines(), (folder / "sheet.html").read_text()
    assert len(lines) == 12 + 1 and lines[-1] == f"Saved to {folder}/sheet.html"
    assert any(line.endswith("/<b>&?.png") for line in lines)
    assert page.count('<img src="data:image/png;base64,') == 12 and "no preview" not in page
    assert f"The most similar first, with their cosine. 12 pictures in {folder}/index." in page
    assert "&lt;i&gt;" in page and "<i>" not in page and "<b>&" not in page
    (folder / "pictures" / "03.png").unlink()
    main(["search", str(folder / "index"), "x", "--html", str(folder / "sheet.html")])
    assert (folder / "sheet.html").read_text().count("no preview") == 1


# ---- going on


def state(folder):
    rows = (folder / "index" / "rows").iterdir()
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in rows}


def test_a_rerun_takes_in_what_changed_and_nothing_else(folder, capsys):
    before, pictures = state(folder), folder / "pictures"
    index(folder)
    assert capsys.readouterr().out.endswith(": 12 rows, 1 without a result, 0 new\n") and state(folder) == before
    (pictures / "00a.png").write_bytes(picture(20))  # in the middle of what is there
    index(folder)
    assert capsys.readouterr().out.endswith(": 13 rows, 1 without a result, 1 new\n")
    assert before.items() <= state(folder).items()
    (pictures / "05.png").unlink()  # of the second part, which had four
    (pictures / "06.png").write_bytes(picture(21) + b"longer")
    write_tar(pictures / "x.tar", [("m.png", picture(22))])
    index(folder)
    assert capsys.readouterr().out.endswith(": 13 rows, 1 without a result, 4 new\n")
    names = {Path(name).name for name in Index.open(str(folder / "index")).names.to_pylist()}
    there = {path.name for path in pictures.rglob("*.png")} - {"02.png"}
    assert names == there | {"x.tar:m.png"}
    found = asked(capsys, folder / "index", "--picture", pictures / "06.png", "--top", 1)
    assert found[0]["picture"].endswith("06.png") and found[0]["score"] == pytest.approx(1)


@pytest.mark.parametrize("stop", range(4))
def test_a_stop_while_it_grows_costs_nothing(folder, monkeypatch, stop):
    """At each of the writes and removals by which the plan changes; what comes after is as if it had never happened."""
    (folder / "pictures" / "05.png").unlink()
    (folder / "pictures" / "20.png").write_bytes(picture(20))
    steps = iter(range(99))

    def stopping(owner, name):
        done = getattr(owner, name)

        def step(*values):
            if next(steps) == stop:
                raise InterruptedError
            return done(*values)

        monkeypatch.setattr(owner, name, step)

    with monkeypatch.context() as monkeypatch:
        for owner, name in ((Output, "write_manifest"), (LocalStore, "remove"), (Output, "write_plan")):
            stopping(owner, name)
        with pytest.raises(InterruptedError):
            index(folder)
    index(folder)
    found = Index.open(str(folder / "index"))
    names = [Path(name).name for name in found.names.to_pylist()]
    assert sorted(names) == sorted({path.name for path in (folder / "pictures").rglob("*.png")} - {"02.png"})
    embedder = found.embedder()
    for name in found.names.to_pylist():
        assert found.by_picture(name, embedder, 2)[0].score == pytest.approx(1, abs=1e-5)


def test_what_is_not_complete_is_not_searched(folder):
    output = Output(str(folder / "index"))
    for change in ({"done": None}, {"searchable": "other"}):
        output.write_manifest({**output.manifest(), **change})
        with pytest.raises(UserError, match="incomplete; run the same `vitreous index` command"):
            Index.open(output.where)
        index(folder)
        assert len(Index.open(output.where).names) == 11


# ---- refusals


def test_another_model_is_refused_and_one_that_was_moved_is_found_again(folder):
    save_towers(folder / "other", seed=1)
    before = state(folder)
    opened = Index.open(str(folder / "index"))
    with pytest.raises(UserError, match=r"other: not the model that .*index was made with"):
        opened.embedder(str(folder / "other"))
    (folder / "towers").rename(folder / "moved")
    with pytest.raises(UserError, match=r"towers: the model of .*index is no longer there; run the same .* new path"):
        open_served(str(folder / "index"), "cpu", None)
    with pytest.raises(UserError, match=r"towers: the model of .*index is no longer there; --model says"):
        opened.embedder()
    assert opened.embedder(str(folder / "moved")).width == 6
    index(folder, "moved")
    assert Index.open(str(folder / "index")).embedder().width == 6
    assert state(folder) == before


REFUSED = [
    (["{}/index"], "give one of these"),
    (["{}/index", "a", "--duplicates"], "give one of these"),
    (["{}/index", " "], "there are no words"),
    (["{}/index", "a", "--top", "0"], "--top 0: at least 1"),
    (["{}/index", "--duplicates", "--alike", "2"], "--alike 2.0"),
    (["{}/pictures", "a"], "not an index; `vitreous index"),
    (["{}/index", "--picture", "{}/pictures/02.png"], "02.png: not a picture"),
    (["s3://far/index", "a"], "copy it here first"),
    (["{}/torn", "a"], "manifest.json: damaged; run the command that wrote it again, with another --out"),
]


def test_one_line_says_what_is_wrong(folder, capsys):
    (folder / "torn").mkdir()
    (folder / "torn" / "manifest.json").write_text('{"format": ')
    for words, said in REFUSED:
        with pytest.raises(SystemExit):
            main(["search", *(word.replace("{}", str(folder)) for word in words)])
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line


def test_other_inputs_are_refused(folder, capsys):
    with pytest.raises(SystemExit):
        main(
            [
                "index",
                f"{folder}/pictures/deep",
                "--model",
                f"{folder}/towers",
                "--out",
                f"{folder}/index",
                "--part",
                "4",
            ]
        )
    assert f"began with {folder}/pictures; choose another --out" in capsys.readouterr().err


def test_the_sheet_shows_pictures_of_shards(tmp_path):
    save_model(tmp_path / "encoder")
    (tmp_path / "pictures").mkdir()
    write_tar(tmp_path / "pictures" / "a.tar", [("x/1.png", picture(1)), ("x/2.png", picture(2))])
    rows = pa.table({"image": [{"bytes": picture(number), "path": None} for number in (3, 4)]})
    pq.write_table(rows, tmp_path / "pictures" / "b.parquet")
    index(tmp_path, "encoder", "plain")
    for name, seed in (("a.tar:x/2.png", 2), ("b.parquet:row 1", 4)):
        np.testing.assert_array_equal(original(f"{tmp_path}/pictures/{name}"), read_picture(picture(seed)))
    for gone in ("a.tar:x/3.png", "b.parquet:row 9", "c.parquet:row 1", "d.png"):
        assert isinstance(original(f"{tmp_path}/pictures/{gone}"), BadPicture)
