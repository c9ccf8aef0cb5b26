"""The arithmetic behind docs/SCALING.md."""

import importlib.util
import json
import math
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "tools" / "scaling.py"
MILLION = 1e6


@pytest.fixture
def scaling(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("scaling", PATH)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "scaling", module)
    spec.loader.exec_module(module)
    module.RESULTS = tmp_path
    rows = [{"model": "vit_l16", "compiled": True, "ours_tflops": 400.0}]
    (tmp_path / "train_step.json").write_text(json.dumps({"results": rows}))
    return module


def test_speed_is_measured_where_it_was_and_else_an_estimate_that_says_so(scaling, tmp_path):
    found = scaling.model("ViT-H/14", "vit_h14", 632e6, 1e12)
    assert (found.pictures_s, found.is_measured) == (400.0, False)
    assert "**estimate**" in scaling.markdown(scaling.models_table((found,)))
    large = {"vit_h14": {"images_s": 500.0, "parameters": 632_045_800}, "vit_g14": "not begun: the time was up"}
    (tmp_path / "large.json").write_text(json.dumps(large))
    found = scaling.model("ViT-H/14", "vit_h14", 632e6, 1e12)
    assert (found.pictures_s, found.parameters, found.is_measured) == (500.0, 632_045_800, True)
    assert "500, measured" in scaling.markdown(scaling.models_table((found,)))
    assert not scaling.model("ViT-G/14", "vit_g14", 1845e6, 3e12).is_measured


def test_bytes_of_both_engines(scaling):
    one = scaling.Model("", MILLION, 1e12, 100.0, True)
    pair = scaling.Cluster(2, 64)
    assert scaling.ddp_bytes(one, pair) == 4 * MILLION, "of two, each sends half a sum and half a result"
    assert scaling.fsdp_bytes(one, pair) == 4 * MILLION
    assert scaling.ddp_bytes(one, scaling.Cluster(1, 64)) == 0
    assert scaling.ddp_bytes(one, scaling.Cluster(1000, 64_000)) == pytest.approx(8 * MILLION, rel=2e-3)


def test_ranks_send_what_the_formulae_say(scaling):
    """As benchmarks/exchange.py has counted."""
    scaling.RESULTS = PATH.parents[1] / "docs" / "results"
    for _, _, counted, expected, *_ in scaling.exchanged_table()[1:]:
        assert float(counted.split()[0]) == pytest.approx(float(expected.split()[0]), rel=0.02)


def test_an_exchange_shows_only_where_it_is_longer_than_what_it_hides_behind(scaling):
    one, cluster = scaling.Model("", 632e6, 1e12, 400.0, True), scaling.Cluster(64, 64 * 64)
    compute = scaling.compute_s(one, cluster)
    assert compute == 64 / 400
    for sharded in (False, True):
        assert scaling.step_s(one, cluster, 1e15, sharded) == pytest.approx(compute)
        assert scaling.step_s(one, cluster, 1e9, sharded) > 3 * compute
    slow = 1e9
    expected = compute / 3 + 2 * 4 * 632e6 * 7 / 8 / slow / scaling.REACHED
    assert scaling.step_s(one, cluster, slow) == pytest.approx(expected)


@pytest.mark.parametrize(("cost", "between"), [(0.4, 1.8e5), (8.0, 1.8e5), (8.0, 2e7), (60.0, 3600.0)])
def test_the_best_interval_is_where_least_is_lost(scaling, cost, between):
    best = scaling.best_interval_s(cost, between)
    assert best == pytest.approx(math.sqrt(2 * cost * between), rel=0.15)
    least = scaling.lost_share(best, cost, between)
    for other in (best / 2, best * 2):
        assert scaling.lost_share(other, cost, between) > least
    assert scaling.lost_share(3 * best, cost, between, 0) < 2 * scaling.lost_share(best, cost, between, 0)


def test_tables_go_between_their_comments(scaling):
    page = "a\n<!-- time -->\nold\n<!-- end -->\nb\n<!-- network -->\n<!-- end -->\n"
    table = scaling.markdown([["x", "y"], ["1", "2"]])
    found = scaling.with_tables(page, {"time": table, "network": "n"})
    assert found == f"a\n<!-- time -->\n{table}\n<!-- end -->\nb\n<!-- network -->\nn\n<!-- end -->\n"
    assert scaling.with_tables(found, {"time": table}) == found
    with pytest.raises(SystemExit, match="no <!-- storage -->"):
        scaling.with_tables(page, {"storage": table})
