"""Set-up shared by all tests."""

import os
from importlib.util import find_spec
from pathlib import Path

# The models here are so small that threads would wait for each other longer than they work; torch reads this once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What is compared is the same on every machine; what is about bfloat16 asks for it.
os.environ["VITREOUS_CPU_BFLOAT16"] = "0"

import pytest
import torch

pytest_plugins = ("browser", "hub_server")  # chromium_page, play
os.environ["HF_HUB_OFFLINE"] = "1"  # tests that play the hub start processes with an environment of their own

# torchvision from PyPI does not import beside a CPU build of torch, because its compiled operators cannot be loaded. It
# serves here as an oracle only; declaring the two operators its Python code names at import is enough for that.
_OPERATORS = None
try:
    torch.ops.load_library(next(Path(find_spec("torchvision").origin).parent.glob("_C*")))
except (AttributeError, StopIteration, OSError):
    _OPERATORS = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the larger image sets, which are not part of the project."""
    folder = os.environ.get("VITREOUS_DATA")
    if not folder:
        pytest.skip("VITREOUS_DATA is not set: it names the folder with cifar10/, imagenette224/ and oxford_pets/")
    if not Path(folder).is_dir():
        pytest.skip(f"VITREOUS_DATA names {folder}, which is no folder")
    return Path(folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Compilers and debugging modes of a GPU give warnings of their own."""
    for item in items:
        if item.get_closest_marker("gpu"):
            for kind in ("DeprecationWarning", "UserWarning", "FutureWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))
