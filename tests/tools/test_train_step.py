"""benchmarks/train_step.py fails where nothing of ours could be measured, or on_gpu.py would take it for done."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def train_step():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        spec = importlib.util.spec_from_file_location("train_step", BENCHMARKS / "train_step.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


@pytest.mark.parametrize(("words", "kind"), [(["--levers"], "levers"), (["--batch-size", "1"], "rows")])
def test_a_call_in_which_every_step_fails_fails(train_step, words, kind, tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(train_step, "step_with", broken)
    monkeypatch.setattr(train_step, "change", lambda *_: 0.0)
    monkeypatch.setattr(train_step, "there", lambda *_: False)
    shared = ["--tiny", "--eager", "--models", "vit_s16", "--out", str(tmp_path / "out.json")]
    monkeypatch.setattr(sys, "argv", ["train_step.py", *shared, *words])
    with pytest.raises(SystemExit) as ended:
        train_step.main()
    assert ended.value.code == 1
    rows = json.loads((tmp_path / "out.json").read_text())[kind]
    assert rows and all("no such kernel" in json.dumps(row) for row in rows)
