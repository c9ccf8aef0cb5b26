"""What a kind of task brings to a fit stands in tables, and the tables agree."""

import pytest

from boxes import write_boxes
from vitreous.errors import UserError
from vitreous.fitting import kinds
from vitreous.fitting.after import ATTENDED
from vitreous.fitting.base import ByPictureFit
from vitreous.fitting.fit import fit
from vitreous.fitting.pixel_drafts import PixelDrafts
from vitreous.jobs.by_picture import BY_PICTURE
from vitreous.report.kinds import KINDS as REPORTED


def test_what_can_be_fitted_can_be_reported_and_measured():
    assert set(kinds.KINDS) <= set(REPORTED)
    assert {name for name, kind in kinds.KINDS.items() if issubclass(kind, ByPictureFit)} <= set(BY_PICTURE)
    assert {name for name, kind in REPORTED.items() if kind.told} == set(ATTENDED), (
        "attention that is shown is computed"
    )


def test_a_task_that_is_not_in_the_table_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.delitem(kinds.KINDS, "segment")
    with pytest.raises(UserError, match=r"boxes: `fit` has no task 'segment', only .*; train a recipe on these"):
        fit(str(write_boxes(tmp_path / "boxes", 8)), tmp_path / "run")
    with pytest.raises(UserError, match=r"captions.*`vitreous train flickr8k_clip --data photos\.csv` does"):
        kinds.fit_of("match", "photos.csv")


def test_drafts_are_all_that_a_task_must_bring(tmp_path, monkeypatch):
    """No first model, no variants, no account: the stages do without."""

    class Least(ByPictureFit):
        drafts = PixelDrafts

    monkeypatch.setitem(kinds.KINDS, "segment", Least)
    changes = {"model.picture_px": "32,40", "model.width": "8", "model.depth": "1", "model.heads": "1"}
    changes |= {"objective.heads": "1", "training.steps": "2", "training.device": "cpu"}
    found = fit(str(write_boxes(tmp_path / "boxes", 24)), tmp_path / "run", start="none", changes=changes)
    assert found.first is None and [one.is_kept for one in found.candidates] == [True]
    assert found.evaluation.headline_name == "mIoU" and (tmp_path / "run" / "model").is_dir()
