"""Rows for every picture, wherever it lies: planned in parts, done once, gone on with after any end."""

import csv
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from bulk_inputs import picture, save_model, write_tar
from vitreous.bulk.columns import COLUMNS, arrays
from vitreous.bulk.job import Request, run
from vitreous.bulk.output import Output
from vitreous.bulk.work import Embed, Predict
from vitreous.cli import main
from vitreous.errors import UserError
from vitreous.prediction.records import RECORDS, Wanted
from vitreous.prediction.torch_predictor import TorchPredictor

LOOSE, DEEP, MEMBERS, ROWS = 10, 3, 11, 9


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, and a folder with pictures, a tar file and a parquet file; one of each kind is no picture."""
    folder = tmp_path_factory.mktemp("bulk")
    save_model(folder / "model")
    pictures = folder / "pictures"
    (pictures / "deep").mkdir(parents=True)
    for number in range(LOOSE):
        (pictures / f"{number:02}.png").write_bytes(picture(number) if number != 4 else b"no picture")
    for number in range(DEEP):
        (pictures / "deep" / f"{number}.png").write_bytes(picture(100 + number))
    members = [
        (f"m/{number:02}{ending}", content)
        for number in range(MEMBERS)
        for ending, content in ((".png", picture(200 + number) if number != 7 else b""), (".cls", b"1"))
    ]
    write_tar(pictures / "b.tar", members)
    cells = [{"bytes": picture(300 + number), "path": None} for number in range(ROWS)]
    cells[2], cells[5] = {"bytes": None, "path": None}, {"bytes": None, "path": "00.png"}
    pq.write_table(pa.table({"image": cells, "label": [0] * ROWS}), pictures / "c.parquet", row_group_size=4)
    return folder


def names(at):
    """In the order of the rows: a folder's files by name, then those of its sub-folders."""
    loose = [f"{at}/{number:02}.png" for number in range(LOOSE)]
    members = [f"{at}/b.tar:m/{number:02}.png" for number in range(MEMBERS)]
    rows = [f"{at}/c.parquet:row {number}" for number in range(ROWS)]
    return [*loose, *members, *rows, *(f"{at}/deep/{number}.png" for number in range(DEEP))]


BAD = {"04.png", "b.tar:m/07.png", "c.parquet:row 2"}


def embed(folder, out, *inputs, **changes):
    inputs = [str(one) for one in inputs] or [str(folder / "pictures")]
    work = Embed(model=str(folder / "model"), normalise=changes.pop("normalise", False))
    return run(Request(**{"work": work, "inputs": inputs, "out": str(out), "batch": 4, "per_part": 4, **changes}))


def table(out):
    return pa.concat_tables(Output(str(out)).tables())


def hashes(out):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in Path(out, "rows").iterdir()}


# ---- rows


def test_one_row_for_every_picture_in_order(folder, tmp_path):
    result = embed(folder, tmp_path / "out")
    found, at = table(tmp_path / "out"), folder / "pictures"
    assert found["name"].to_pylist() == names(at)
    assert (result.rows, result.failed, result.added) == (len(names(at)), len(BAD), len(names(at)))
    errors = dict(zip(found["name"].to_pylist(), found["error"].to_pylist(), strict=True))
    assert {name.removeprefix(f"{at}/") for name, error in errors.items() if error} == BAD
    assert errors[f"{at}/c.parquet:row 2"] == "no picture in this row"
    assert [row is None for row in found["embedding"].to_pylist()] == [bool(error) for error in errors.values()]


def test_the_values_are_those_of_the_model(folder, tmp_path):
    embed(folder, tmp_path / "raw"), embed(folder, tmp_path / "unit", normalise=True)
    predictor = TorchPredictor.load(folder / "model")
    raw, unit = ([row for row in table(tmp_path / out)["embedding"].to_pylist() if row] for out in ("raw", "unit"))
    with torch.no_grad():
        expected = predictor.task.encoder(predictor.inputs(picture(0), picture(1))).pooled.numpy()
    np.testing.assert_allclose(raw[:2], expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    about = json.loads((tmp_path / "unit" / "manifest.json").read_text())
    assert (about["width"], about["normalisation"], about["done"]) == (16, "l2", {"rows": 33, "failed": 3})


def test_predictions_are_those_of_the_command(folder, tmp_path):
    work = Predict(model=str(folder / "model"), wanted=Wanted(top=2))
    run(Request(work=work, inputs=[str(folder / "pictures")], out=str(tmp_path / "out"), batch=4, per_part=4))
    predictor = TorchPredictor.load(folder / "model")
    rows = table(tmp_path / "out").to_pylist()
    assert len(rows) == len(names(""))
    for row in rows[:4]:
        outcome = predictor(row["name"])
        assert row["label"] == outcome.best and row["probability"] == pytest.approx(outcome.confidence, abs=1e-5)
        assert [one["label"] for one in row["top"]] == [name for name, _ in outcome.top(2)]
        assert row["set"] is None and row["error"] is None
    assert rows[4]["label"] is rows[4]["top"] is None and rows[4]["error"].startswith("not a picture")


OBJECT = {"label": "cat", "score": 0.5, "box": [0.0, 1.0, 2.0, 2.5]}
RECORDED = {
    "classify": {"label": None, "probability": 0.5, "top": [["cat", 0.5], ["dog", 0.25]], "set": ["cat"]},
    "label": {"labels": [], "top": [["cat", 0.125]]},
    "segment": {"width": 3, "height": 2, "confidence": 0.5, "shares": [["sky", 0.75]]},
    "detect": {"width": 3, "height": 2, "objects": [OBJECT]},
    "instances": {
        "width": 3,
        "height": 2,
        "objects": [{**OBJECT, "area": 4, "mask": {"size": [2, 3], "counts": "14"}}],
    },
}


def test_every_kind_of_task_has_columns():
    assert COLUMNS.keys() == RECORDS.keys() == RECORDED.keys()
    for kind, record in RECORDED.items():
        (found,) = pa.Table.from_arrays(arrays([record], COLUMNS[kind]), list(COLUMNS[kind])).to_pylist()
        assert found.keys() == record.keys()
        for name, value in record.items():
            pairs = value and isinstance(value, list) and isinstance(value[0], list)
            assert ([list(one.values()) for one in found[name]] if pairs else found[name]) == value


def test_one_array_of_all(folder, tmp_path, capsys):
    words = ["embed", folder / "model", folder / "pictures", "--out", tmp_path / "out", "--part", 4, "--npy"]
    main([str(word) for word in words])
    assert capsys.readouterr().out == f"Saved to {tmp_path}/out: 33 rows, 3 without a result, 33 new\n"
    values, rows = np.load(tmp_path / "out" / "embeddings.npy"), table(tmp_path / "out").to_pylist()
    assert values.shape == (33, 16) and values.dtype == np.float32
    for value, row in zip(values, rows, strict=True):
        np.testing.assert_array_equal(value, np.full(16, np.nan) if row["error"] else row["embedding"])
    lines = list(csv.DictReader((tmp_path / "out" / "names.csv").read_text().splitlines()))
    assert [(line["name"], line["error"] or None) for line in lines] == [(row["name"], row["error"]) for row in rows]


# ---- where pictures lie


def test_a_list_names_pictures_and_shards(folder, tmp_path):
    at = folder / "pictures"
    lines = f"{at}/01.png\n\n{at}/b.tar\n/nowhere/x.png\n{at}/02.png\n"
    (tmp_path / "list.txt").write_text(lines)
    embed(folder, tmp_path / "file", tmp_path / "list.txt")
    embed(folder, tmp_path / "stdin", "-", lines=io.BytesIO(lines.encode()))
    found = table(tmp_path / "file")
    assert found.equals(table(tmp_path / "stdin"))
    members = names(at)[LOOSE : LOOSE + MEMBERS]
    assert found["name"].to_pylist() == [f"{at}/01.png", *members, "/nowhere/x.png", f"{at}/02.png"]
    assert found["error"].to_pylist()[-2] == "No such file or directory"
    with pytest.raises(UserError, match="nowhere: no such file or folder"):
        embed(folder, tmp_path / "refused" / "mistyped", tmp_path / "nowhere")
    (tmp_path / "list.csv").write_text("path\na.png\n")
    with pytest.raises(UserError, match=r"list\.csv: a table; .*\.txt"):
        embed(folder, tmp_path / "refused" / "table", tmp_path / "list.csv")
    (tmp_path / "list.txt").write_text("")
    with pytest.raises(UserError, match="no pictures to embed"):
        embed(folder, tmp_path / "refused" / "empty", tmp_path / "list.txt")
    assert not list((tmp_path / "refused").iterdir())


@pytest.fixture
def memory(folder):
    files = fsspec.filesystem("memory")
    files.put(f"{folder}/pictures/", "/far/", recursive=True)
    yield files
    files.rm("/", recursive=True)


def test_urls_give_the_same_rows(folder, tmp_path, memory):
    """Batches may be cut elsewhere, since a far tar file is one part."""
    embed(folder, tmp_path / "near", batch=1)
    embed(folder, "memory://out", "memory://far", batch=1)
    near, far = table(tmp_path / "near"), table("memory://out")
    assert far["name"].to_pylist() == names("memory://far")
    assert far.drop_columns("name").equals(near.drop_columns("name"))
    embed(folder, tmp_path / "some", "memory://far/*.tar", "memory://far/nothing.png", "memory://far/nothing.parquet")
    assert table(tmp_path / "some")["error"].to_pylist()[-2:] == ["No such file or directory"] * 2


def test_a_protocol_that_is_not_known(folder, tmp_path):
    with pytest.raises(UserError, match="nonsense://a"):
        embed(folder, tmp_path / "out", "nonsense://a")


# ---- going on


def test_a_rerun_does_what_is_missing_and_nothing_else(folder, tmp_path):
    first = embed(folder, tmp_path / "out")
    before = hashes(tmp_path / "out")
    for number, name in enumerate(sorted(before)):
        if number in (1, 5):
            (tmp_path / "out" / "rows" / name).unlink()
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "rows").iterdir()}
    again = embed(folder, tmp_path / "out")
    assert (again.rows, again.failed, again.added) == (first.rows, first.failed, 4 + 3)
    assert hashes(tmp_path / "out") == before
    assert all(path.stat().st_mtime_ns == time_ns for path, time_ns in kept.items())


def test_what_differs_is_refused(folder, tmp_path):
    at = tmp_path / "pictures"
    at.mkdir()
    (at / "a.png").write_bytes(picture(1))
    embed(folder, tmp_path / "out", at)
    before = hashes(tmp_path / "out")
    with pytest.raises(UserError, match="began with normalise False, now it is True"):
        embed(folder, tmp_path / "out", at, normalise=True)
    with pytest.raises(UserError, match="began as `vitreous embed`"):
        work = Predict(model=str(folder / "model"), wanted=Wanted())
        run(Request(work=work, inputs=[str(at)], out=str(tmp_path / "out"), batch=4, per_part=4))
    save_model(tmp_path / "other" / "model", seed=1)
    with pytest.raises(UserError, match="began with another model"):
        embed(tmp_path / "other", tmp_path / "out", at)
    (at / "b.png").write_bytes(picture(2))
    with pytest.raises(UserError, match="began with other pictures"):
        embed(folder, tmp_path / "out", at)
    with pytest.raises(UserError, match=r": inside .*, one of the inputs"):
        embed(folder, at / "out", at)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(UserError, match=r"contains 'thesis.tex'"):
        embed(folder, tmp_path / "mine", at)
    assert {path.name for path in (*at.iterdir(), *(tmp_path / "mine").iterdir())} == {"a.png", "b.png", "thesis.tex"}
    assert hashes(tmp_path / "out") == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_costs_no_more_than_a_part(folder, tmp_path, number):
    """While a part is being written: it is not there, and the rerun ends byte for byte as if never killed."""
    code = """
import os, sys
from vitreous.cli import main
import pyarrow.parquet as pq

write, num = pq.write_table, iter(range(9))

def kill_in_the_middle(table, file, **options):
    write(table, file, **options)
    if next(num) == 3:
        file.flush()
        os.kill(os.getpid(), int(sys.argv[1]))

pq.write_table = kill_in_the_middle
main(sys.argv[2:])
"""
    words = ["embed", folder / "model", folder / "pictures", "--out", tmp_path / "out", "--part", "4", "--batch", "4"]
    command = [sys.executable, "-c", code, str(int(number)), *map(str, words)]
    ended = subprocess.run(command, check=False, timeout=100, capture_output=True, text=True)
    if number == signal.SIGTERM:
        assert ended.returncode == 143 and ended.stderr.startswith("vitreous: SIGTERM: stopped; 3 of 10 parts are writ")
    else:
        assert ended.returncode == -signal.SIGKILL
    assert len(list((tmp_path / "out" / "rows").glob("part-*"))) == 3
    result = embed(folder, tmp_path / "out")
    assert result.added == result.rows - (4 + 4 + 2)
    embed(folder, tmp_path / "whole")
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")
    assert not list((tmp_path / "out" / "rows").glob(".*"))


def test_two_commands_do_not_write_into_one_folder(folder, tmp_path):
    (tmp_path / "out").mkdir()
    code = "import sys; from pathlib import Path; from vitreous.storage import locks\n"
    code += "lock = locks.take(Path(sys.argv[1])); print('taken', flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", code, str(tmp_path / "out" / "lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"taken\n"
        with pytest.raises(UserError, match=f"in use by process {other.pid}"):
            embed(folder, tmp_path / "out")
        other.communicate()
    assert embed(folder, tmp_path / "out").added == 33


def test_names_need_not_be_text(folder, tmp_path):
    at = tmp_path / "pictures"
    at.mkdir()
    try:
        (at / os.fsdecode(b"\xff\xfe.png")).write_bytes(picture(1))
    except OSError:
        pytest.skip("this disk has names of text alone")
    embed(folder, tmp_path / "out", at)
    (row,) = table(tmp_path / "out").to_pylist()
    assert row["name"] == f"{at}/\ufffd\ufffd.png" and row["error"] is None


def test_a_flipped_bit_is_noticed(folder, tmp_path):
    embed(folder, tmp_path / "out")
    path = sorted((tmp_path / "out" / "rows").iterdir())[2]
    content = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(0).column(1).data_page_offset
    content[start + 60] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"part-00000002.*damaged"):
        table(tmp_path / "out")
    path.unlink()
    with pytest.raises(UserError, match="1 of its files are missing"):
        table(tmp_path / "out")
    assert embed(folder, tmp_path / "out").added == 2
    assert table(tmp_path / "out").num_rows == 33


def test_no_other_thread_reads_a_file_of_pythons(folder, tmp_path, monkeypatch):
    """A program that ended right after it was aborted, every other time: a thread of pyarrow's still had the file."""
    embed(folder, tmp_path / "out")
    output, readers = Output(str(tmp_path / "out")), set()

    class Watched(io.FileIO):
        def read(self, *args):
            readers.add(threading.get_ident())
            return super().read(*args)

    monkeypatch.setattr(output.store, "reading", lambda name: Watched(tmp_path / "out" / name))
    assert pa.concat_tables(output.tables()).num_rows == 33
    assert readers == {threading.get_ident()}


def test_a_command_that_prints_says_where_shards_go(folder):
    with pytest.raises(SystemExit, match="2"):
        main(["predict", str(folder / "model"), str(folder / "pictures" / "b.tar")])
