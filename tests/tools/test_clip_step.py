"""benchmarks/clip_step.py measures the same model with open_clip and without."""

import importlib.util
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_without_open_clip_ours_has_the_same_weights(monkeypatch):
    pytest.importorskip("open_clip")
    monkeypatch.syspath_prepend(BENCHMARKS)
    spec = importlib.util.spec_from_file_location("clip_step", BENCHMARKS / "clip_step.py")
    clip_step = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(clip_step)
    alone = clip_step.our_model(None, clip_step.TINY)
    read = clip_step.our_model(clip_step.their_model(clip_step.TINY), clip_step.TINY)
    shapes = [{name: tensor.shape for name, tensor in one.state_dict().items()} for one in (alone, read)]
    assert shapes[0] == shapes[1]
