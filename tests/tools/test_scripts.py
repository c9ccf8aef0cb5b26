"""Benchmarks and tools run rarely, some of them on lent GPUs alone: that what they import exists is checked here."""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted([*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "tools").glob("*.py")])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_what_it_imports_of_the_package_exists(script):
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vitreous")):
            continue
        if ".kernels." in node.module:  # may need Triton
            assert find_spec(node.module)
            continue
        module = import_module(node.module)
        for name in node.names:
            assert hasattr(module, name.name) or find_spec(f"{node.module}.{name.name}"), (node.lineno, name.name)
