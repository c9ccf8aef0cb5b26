"""One small fit on pictures whose classes and files have hostile names, and its report."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from odd_names import write_hostile

from vitreous.commands import account_for, fit
from vitreous.evaluation.pixels import Baseline
from vitreous.report.class_judgement import ClassFitted

TINY = {"model.width": 16, "model.depth": 2, "model.heads": 2, "training.epochs": 3, "training.device": "cpu"}


@dataclass(frozen=True)
class Reported:
    result: ClassFitted
    path: Path

    @property
    def markup(self) -> str:
        return self.path.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def reported(tmp_path_factory) -> Reported:
    out = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "vitreous.fitting.candidates.AHEAD", -1000
        )  # so easy that pixels would be kept, which show no attention
        result = fit(write_hostile(out / "pictures"), out / "run", changes=TINY)
    assert (out / "run" / "report.html").is_file(), "as the command leaves it"
    result = replace(result, account=replace(result.account, baseline=Baseline(0.123, 1e-3, 0.12)))
    return Reported(result, account_for(result))
