"""Set-up shared by the tests of the service."""

import json
from pathlib import Path

import pytest
from running import CLASSES, Running, png, save_model


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Path:
    """A finished run whose data are still there."""
    top = tmp_path_factory.mktemp("runs") / "coloured"
    for number, name in enumerate(CLASSES[:3]):
        (top / "data" / name).mkdir(parents=True)
        for index in range(8):
            (top / "data" / name / f"{index}.png").write_bytes(png(100 * number + index))
    save_model(top / "model", seed=1)
    (top / "recipe.json").write_text(json.dumps({"data": {"where": str(top / "data"), "test_fraction": 0.25}}))
    return top


@pytest.fixture(scope="session")
def server(run, model):
    """Two models, with training pictures of the first."""
    running = Running(run, model, "--queue", "128", "--max-body-mb", "2", "--host-name", "vit.example")
    yield running
    assert running.stop() == 0
    assert running.errors == ""
