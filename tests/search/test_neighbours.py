"""A graph of neighbours against the exact search that it spares."""

import json

import numpy as np
import pytest
from test_index import asked, folder  # noqa: F401  (a fixture)

from vitreous.cli import main
from vitreous.errors import UserError
from vitreous.search import index as indexes
from vitreous.search import neighbours as graphs
from vitreous.search.index import GRAPH, Index
from vitreous.search.nearest import nearest
from vitreous.search.neighbours import Neighbours, recall


def unit_vectors(num, width=16, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((num, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_nearly_all_of_the_nearest_are_found_with_their_exact_scores(tmp_path, monkeypatch):
    monkeypatch.setattr(graphs, "LINKED", 1000)  # several blocks
    vectors = unit_vectors(3500)
    made = Neighbours.of(vectors)
    made.save(tmp_path / GRAPH)
    opened = Neighbours.open(tmp_path / GRAPH)
    assert recall(opened, vectors) > 0.95
    query = unit_vectors(1, seed=1)[0]
    rows, scores = opened.nearest(vectors, query, 20)
    right, best = nearest(vectors, query, 20)
    assert len(np.intersect1d(rows, right)) >= 18
    assert scores == pytest.approx(vectors[rows] @ query, abs=1e-6)
    assert (np.diff(scores) <= 0).all() and scores[0] == pytest.approx(best[0])


def test_recall_counts_what_is_missing():
    vectors = unit_vectors(500)

    class Blind(Neighbours):
        def propose(self, query, num):
            return np.arange(250)  # sees the first half alone

    assert 0.4 < recall(Blind(Neighbours.of(vectors)._graph), vectors) < 0.6


def test_an_index_with_a_graph_finds_what_an_exact_search_does(folder, capsys, monkeypatch):  # noqa: F811
    where = folder / "index"
    command = ["index", f"{folder}/pictures", "--model", f"{folder}/towers", "--out", str(where), "--part", "4"]
    main([*command, "--approximate"])
    assert "finds 100.0 % of the nearest" in capsys.readouterr().err
    about = json.loads((where / "manifest.json").read_text())["searchable"]
    assert about["found"] == 1 and GRAPH in about["files"]
    query = folder / "pictures" / "05.png"
    found = asked(capsys, where, "--picture", query)
    assert len(found) == 11 and found == asked(capsys, where, "--picture", query, "--exact")
    main(command)  # nothing new, and the graph stays
    assert json.loads((where / "manifest.json").read_text())["searchable"] == about

    monkeypatch.setattr(indexes, "is_installed", lambda: False)
    assert Index.open(str(where)).neighbours is None
    assert "note: every picture is compared" in capsys.readouterr().err
    monkeypatch.undo()

    data = bytearray((where / "vectors.npy").read_bytes())
    data[-1] ^= 1  # of a vector that the graph proposes
    (where / "vectors.npy").write_bytes(data)
    with pytest.raises(SystemExit):
        asked(capsys, where, "--picture", query)
    assert "vectors.npy: damaged" in capsys.readouterr().err
    main([*command, "--approximate"])
    capsys.readouterr()
    assert len(asked(capsys, where, "--picture", query)) == 11

    (where / GRAPH).unlink()
    with pytest.raises(UserError, match=r"vectors\.usearch: missing; run the same `vitreous index` command again"):
        Index.open(str(where))
    main([*command, "--approximate"])
    assert Index.open(str(where)).neighbours is not None


def test_a_library_that_is_missing_is_one_line_before_any_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(graphs, "is_installed", lambda: False)
    with pytest.raises(SystemExit):
        main(["index", "pictures", "--model", "m", "--out", str(tmp_path / "index"), "--approximate"])
    line = "vitreous: --approximate needs the library usearch: pip install 'vitreous[neighbours]'\n"
    assert capsys.readouterr().err == line
    assert not (tmp_path / "index").exists()
