import json
from collections import Counter

import pytest

from vitreous.errors import UserError
from vitreous.studies.vtab import VTAB, find_suite, offline_suite, vtab_means


def test_the_nineteen_tasks():
    assert Counter(task.group for task in VTAB.values()) == {"natural": 7, "specialised": 4, "structured": 8}
    assert min(task.train for task in VTAB.values()) >= 1000


def test_means_are_over_tasks_and_not_over_groups():
    groups = {"a": "natural", "b": "natural", "c": "structured"}
    means = vtab_means({"a": 0.2, "b": 0.4, "c": 0.9}, groups)
    assert means == pytest.approx({"natural": 0.3, "structured": 0.9, "all": 0.5})
    assert "specialised" not in means


def test_the_offline_suite_runs_for_everybody(monkeypatch):
    monkeypatch.delenv("VITREOUS_DATA", raising=False)
    suite = offline_suite()
    assert [task.name for task in suite][:2] == ["fashion", "rendered-location"]
    assert Counter(task.group for task in suite) == {"natural": 1, "structured": 5}


def test_suites_from_folders_json_and_the_command_line(tmp_path):
    (tmp_path / "eurosat").mkdir()
    (tmp_path / "suite.json").write_text(
        json.dumps({"svhn": "/data/svhn", "mine": {"where": "/data/mine", "group": "specialised"}})
    )
    (tmp_path / "folder/eurosat").mkdir(parents=True)
    (tmp_path / "folder/dtd.parquet").touch()
    found = find_suite(str(tmp_path / "folder"))
    assert [(task.name, task.group) for task in found] == [("dtd", "natural"), ("eurosat", "specialised")]
    found = find_suite(str(tmp_path / "suite.json"), ("dmlab=/data/dmlab", "other:natural=/data/other"))
    assert [(task.name, task.group, task.where) for task in found] == [
        ("svhn", "natural", "/data/svhn"),
        ("mine", "specialised", "/data/mine"),
        ("dmlab", "structured", "/data/dmlab"),
        ("other", "natural", "/data/other"),
    ]


@pytest.mark.parametrize(
    ("where", "further", "message"),
    [
        ("none", ("eurosatt=/x",), "Did you mean eurosat"),
        ("none", ("mine:odd=/x",), "no group 'odd'"),
        ("none", ("eurosat",), "NAME=PATH"),
        ("none", (), "without tasks"),
        ("none", ("eurosat=/x", "eurosat=/y"), "two tasks are called eurosat"),
        ("elsewhere", (), "not a suite of tasks"),
        ("missing.json", (), "cannot be read as JSON"),
    ],
)
def test_wrong_suites(where, further, message):
    with pytest.raises(UserError, match=message):
        find_suite(where, further)
