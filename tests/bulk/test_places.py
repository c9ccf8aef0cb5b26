"""Pictures behind URLs: what is gone is a row, what is down ends the work."""

import fsspec
import pytest

from bulk_inputs import picture, save_model, served
from vitreous.bulk import places
from vitreous.bulk.job import Request, run
from vitreous.bulk.output import Output
from vitreous.bulk.work import Embed
from vitreous.data.skipped import Skipped
from vitreous.errors import UserError

pytest.importorskip("aiohttp", reason="fsspec reads http:// with aiohttp")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(places, "PAUSES_S", (0.0, 0.0))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    save_model(folder / "model")
    return str(folder / "model")


def errors(model, out, urls):
    run(Request(work=Embed(model=model), inputs=urls, out=str(out)))
    return [error for table in Output(str(out)).tables() for error in table["error"].to_pylist()]


def test_what_a_server_says_of_one_picture_is_a_row(model, tmp_path):
    def before(name, time):
        return {"01.png": 403, "02.png": 503 if time < 3 else None, "03.png": 503}.get(name)

    with served(4, before) as (address, here):
        urls = [f"{address}/{name}" for name in (*here.content, "nothing.png")]
        found = errors(model, tmp_path / "out", urls)
    assert found[0] is None and here.asked["00.png"] == 1
    assert found[1].startswith("the server says 403") and here.asked["01.png"] == 1
    assert found[2] is None and here.asked["02.png"] == 3
    assert found[3].startswith("no answer (503") and here.asked["03.png"] == 3
    assert found[4] == "No such file or directory" and here.asked["nothing.png"] == 1


def test_where_no_server_answers_the_work_ends_and_goes_on_later(model, tmp_path):
    is_down = True
    with served(3, lambda name, time: 503 if is_down else None) as (address, here):
        urls = [f"{address}/{name}" for name in here.content]
        with pytest.raises(UserError, match=r"none of 3 pictures could be reached: no answer \(503"):
            errors(model, tmp_path / "out", urls)
        assert not (tmp_path / "out" / "rows").exists()
        is_down = False
        assert errors(model, tmp_path / "out", urls) == [None] * 3


def test_a_store_that_is_down_ends_the_work(model, tmp_path, monkeypatch):
    files = fsspec.filesystem("memory")
    files.pipe_file("/down/a.png", picture(0))
    asked = []

    def lost(path, *words, **options):
        asked.append(path)
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(type(files), "cat_file", lost)
    with pytest.raises(UserError, match=r"memory://down/a.png: cannot be read now .*reset by peer.*continues"):
        errors(model, tmp_path / "out", ["memory://down/a.png"])
    assert len(asked) == 3
    files.rm("/down", recursive=True)


def test_what_never_ends_is_cut(monkeypatch):
    monkeypatch.setattr(places, "MAX_BYTES", 100)
    with (
        served(1) as (address, _),
        pytest.raises(places.BadPicture, match="more than the 100 bytes allowed"),
    ):
        places.picture_at(f"{address}/00.png", places.Path())


def test_a_disk_and_a_store_list_the_same(tmp_path):
    for name in ("b.png", "a/c.JPG", "a/deeper/d.tar", "x.parquet", ".hidden/e.png", "notes.md", "c.tar"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"123")
    (tmp_path / "circle").symlink_to(tmp_path)
    files = fsspec.filesystem("memory")
    files.put(str(tmp_path / ""), "/listed", recursive=True)
    near, far = Skipped("near"), Skipped("far")
    there = list(places.files_under(str(tmp_path), tmp_path, near))
    assert [found.name.removeprefix(f"{tmp_path}/") for found in there] == [
        *("b.png", "c.tar", "x.parquet", "a/c.JPG", "a/deeper/d.tar"),
    ]
    assert [found.size for found in there] == [3] * 5
    assert near.linked == [f"{tmp_path}/circle"] and near.suffixes == {".md": 1}
    remote = [
        found.name for found in places.files_under("memory://listed", tmp_path, far) if "circle" not in found.name
    ]
    assert remote == [
        f"memory://listed/{name}" for name in ("b.png", "c.tar", "x.parquet", "a/c.JPG", "a/deeper/d.tar")
    ]
    files.rm("/listed", recursive=True)
