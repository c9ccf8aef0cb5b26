"""One small fit on pictures whose classes and files have hostile names, and its report."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from odd_names import write_hostile

from vitreous.commands import account_for
from vitreous.evaluation.baseline import Baseline
from vitreous.fitting.fit import FitResult, fit

TINY = {"model.width": "16", "model.depth": "2", "model.heads": "2", "training.epochs": "3", "training.device": "cpu"}


@dataclass(frozen=True)
class Reported:
    result: FitResult
    path: Path

    @property
    def markup(self) -> str:
        return self.path.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def reported(tmp_path_factory) -> Reported:
    out = tmp_path_factory.mktemp("report")
    result = fit(str(write_hostile(out / "pictures")), out / "run", changes=TINY)
    result = replace(result, baseline=Baseline(0.123, 1e-3, ((1e-3, 0.12),)))
    return Reported(result, account_for(result))
