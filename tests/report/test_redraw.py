"""A report drawn again from what its run holds."""

import json
import shutil

import pytest
from parsed_page import read

from vitreous.cli import main
from vitreous.errors import UserError
from vitreous.evaluation.full import evaluation_of
from vitreous.fitting.stored import stored


def test_it_is_the_same_page(reported, tmp_path, capsys):
    main(["report", str(reported.result.out), "--out", str(tmp_path / "again.html")])
    assert f"Saved to {tmp_path / 'again.html'}" in capsys.readouterr().out
    assert (tmp_path / "again.html").read_text() == reported.markup


def test_what_was_measured_is_read_back(reported):
    path = reported.result.out / "evaluation.json"
    assert evaluation_of(json.loads(path.read_text()), "here") == reported.result.evaluation


def test_only_finished_fits_have_one(reported, tmp_path):
    with pytest.raises(UserError, match="not a run of `vitreous fit`"):
        stored(tmp_path)
    shutil.copytree(reported.result.out, tmp_path / "run", ignore=shutil.ignore_patterns("fit.json"))
    with pytest.raises(UserError, match="has not finished"):
        stored(tmp_path / "run")


def test_other_pictures_than_it_was_made_of_are_refused(reported, tmp_path):
    """Pictures go by their numbers: those of a changed set would be others."""
    shutil.copytree(reported.result.out, tmp_path / "run")
    plan = json.loads((tmp_path / "run/plan.json").read_text())
    plan["pictures"][-1] = "0" * 64
    (tmp_path / "run/plan.json").write_text(json.dumps(plan))
    with pytest.raises(UserError, match="have changed since"):
        stored(tmp_path / "run")


def test_a_notebook_shows_it_in_a_frame(reported):
    (frame,) = read(reported.result._repr_html_()).all("iframe")
    assert frame.attributes["srcdoc"] == reported.markup
