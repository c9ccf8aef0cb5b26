"""The short form of every campaign; `make stress` is the full one (docs/RELIABILITY.md)."""

import json

import pytest

from stress.__main__ import Result, commit_of, main, read, summary
from stress.campaign import Campaign, Unable
from stress.campaigns import CAMPAIGNS

SHORT = [(name, number) for name, campaign in CAMPAIGNS.items() for number in campaign.short]


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")


@pytest.mark.parametrize(("name", "number"), SHORT)
def test_holds(name, number, tmp_path, shared):
    try:
        CAMPAIGNS[name].trial(number, tmp_path, shared)
    except Unable as error:
        pytest.skip(str(error))


def test_the_runner_goes_on_and_repeats_what_did_not_hold(tmp_path, monkeypatch):
    """Every result is a line; a trial that held is not tried again, one that did not is."""
    tries = []

    def trial(number, folder, shared):
        tries.append(number)
        assert number != 1 or tries.count(1) > 1, "not yet"
        if number == 2:
            raise Unable("no such disk")
        return {"kind": "odd" if number % 2 else "even", "took": number}

    made = Campaign("made", "all is well", full=40, trial=trial, short=(0,), per_trial=10)
    monkeypatch.setitem(CAMPAIGNS, "made", made)
    words = ["stress", "made", "--log", str(tmp_path / "log"), "--out", str(tmp_path / "out.json")]
    for code in (1, 0):
        monkeypatch.setattr("sys.argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == code
    assert tries == [0, 1, 2, 3, 1, 2]
    found = json.loads((tmp_path / "out.json").read_text())["campaigns"]["made"]
    assert {name: found[name] for name in ("full", "held", "broken", "unable")} == {
        "full": 40,
        "held": 30,
        "broken": 0,
        "unable": 10,
    }
    assert found["facts"] == {"kind": {"even": 1, "odd": 2}, "took": {"sum": 4, "largest": 3}}
    assert read(tmp_path / "log")["made", 2].why == "no such disk"
    assert commit_of({"commit": "0f", "uncommitted_changes": True}) == "0f and uncommitted changes"
    assert commit_of({"commit": "0f", "uncommitted_changes": False}) == "0f"
    left = Result("made", 4, "broken", 0.0, None, why="fell")
    machine = {"platform": "", "cpu": "", "cores": 2, "versions": {}}
    both = summary({("made", 4): left}, machine, {"kills": {"held": 200}})["campaigns"]
    assert both["made"]["why"] == ["4: fell"] and both["kills"] == {"held": 200}
