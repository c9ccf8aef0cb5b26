"""The table in docs/ARCHITECTURE.md, held against the code; and the rules that no single module can keep."""

import ast
import dataclasses
import subprocess
import sys
import typing
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from vitreous.recipes.recipe import Recipe
from vitreous.serve.settings import ServeSettings

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "vitreous"
FILES = sorted(SOURCES.rglob("*.py"))
BY_ALL = "all"  # the row of what everybody may import


def table() -> dict[str, dict[str, str | None]]:
    """Folder -> what it may import -> the only module of it, or None for all of it."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    rows = text.partition("| folder | may import |")[2].partition("\n\n")[0].splitlines()[2:]
    found: dict[str, dict[str, str | None]] = {}
    for row in rows:
        names, allowed = (cell.strip() for cell in row.strip().strip("|").split("|"))
        folders = [name.strip(" `") for name in names.split(",")]
        earlier: dict[str, str | None] = dict.fromkeys((*found, *folders))
        for folder in folders:
            found[folder] = {}
            for word in allowed.split(","):
                name, _, only = word.strip(" `").partition(" (")
                if name == "nothing of ours":
                    continue
                if name in ("all of the above", "everything"):
                    found[folder] |= earlier
                else:
                    found[folder][name] = only.removesuffix(" only)") or None
    return found


def folder_of(path: Path) -> str:
    parts = path.relative_to(SOURCES).with_suffix("").parts
    return parts[0]


def imports(path: Path) -> set[str]:
    """Every module that a file names, in functions too; `from vitreous.weights import own` counts as weights.own."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            folder = SOURCES.parent.joinpath(*node.module.split("."))
            for alias in node.names:
                is_module = (folder / f"{alias.name}.py").exists() or (folder / alias.name).is_dir()
                found.add(f"{node.module}.{alias.name}" if is_module else node.module)
    return found


def test_the_table_knows_every_folder():
    rows = table()
    everywhere = set(rows) | set(rows[BY_ALL])
    missing = {folder_of(path) for path in FILES} - everywhere - {"__init__", "__main__"}
    assert not missing, f"docs/ARCHITECTURE.md has no row for {missing}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCES)))
def test_who_may_import_whom(path):
    rows = table()
    folder = folder_of(path)
    if folder in ("__init__", "__main__"):
        pytest.skip("the front doors")
    allowed = {**rows.get(folder, {}), **rows[BY_ALL], folder: None}
    for name in imports(path):
        if not name.startswith("vitreous."):
            continue
        other, _, module = name.removeprefix("vitreous.").partition(".")
        if other.startswith("_"):
            continue
        assert other in allowed, f"{path} imports {name}; docs/ARCHITECTURE.md allows {folder}: {', '.join(allowed)}"
        only = allowed[other]
        assert only is None or module.split(".")[0] == only, (
            f"{path} imports {name}, but may import {other}.{only} only"
        )


def test_the_test_can_fail(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "SOURCES", tmp_path)
    for folder, line in (
        ("models", "def f():\n    from vitreous.data import sources"),
        ("train", "import vitreous.nn"),
    ):
        (tmp_path / folder).mkdir()
        wrong = tmp_path / folder / "wrong.py"
        wrong.write_text(line)
        with pytest.raises(AssertionError, match=r"imports vitreous\."):
            test_who_may_import_whom(wrong)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCES)))
def test_no_rival_is_imported(path):
    rivals = {"torchvision", "timm", "transformers", "tensorflow", "lightning"}
    assert not {name.split(".")[0] for name in imports(path)} & rivals


def test_no_file_without_a_subject():
    assert not [path for path in FILES if path.stem in ("utils", "util", "misc", "common", "helpers", "helper")]


def test_no_two_test_files_have_the_same_name():
    """pytest imports them by their names, wherever they lie."""
    counts = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert not [name for name, number in counts.items() if number > 1]


def kinds_asked(source: str) -> list[str]:
    """The encoder and model-settings types that `isinstance` asks for."""
    kinds = {
        "Encoder",
        "PatchEncoder",
        "TokenEncoder",
        "ViT",
        "ResNet",
        "Tokeniser",
        "IGPT",
        "Swin",
        "ConvNeXt",
        "PVT",
        "EncoderSettings",
    }
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    calls = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "isinstance"]
    names = [{part.id for part in ast.walk(call.args[1]) if isinstance(part, ast.Name)} for call in calls]
    return [
        name
        for each in names
        for name in each
        if name in kinds or name == "EncoderSettings" or name.removesuffix("Settings") in kinds
    ]


def test_encoders_are_asked_rather_than_told_apart():
    """What suits a family, its settings say; formats and graphs alone are about one family each."""
    rooms = [path for path in FILES if folder_of(path) not in ("weights", "export")]
    asked = {str(path.relative_to(SOURCES)): kinds_asked(path.read_text()) for path in rooms}
    assert sum(map(len, asked.values())) <= 9, {path: names for path, names in asked.items() if names}
    assert kinds_asked("isinstance(a, ViT | nn.Module) and isinstance(b, SwinSettings)") == ["ViT", "SwinSettings"]


# ---- budgets: where one is exceeded, a seam is in the wrong place

MOST_AT_THE_ROOT, MOST_LINES, MOST_LINES_OF_A_FUNCTION, MOST_FIELDS = 11, 420, 60, 15


def test_the_root_stays_small():
    assert len(list(SOURCES.glob("*.py"))) <= MOST_AT_THE_ROOT


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCES)))
def test_files_and_functions_can_be_read_at_one_sitting(path):
    text = path.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{path.relative_to(SOURCES)} {node.name}"
            assert node.end_lineno - node.lineno < MOST_LINES_OF_A_FUNCTION, name


def settings_below(hint: Any) -> set[type]:
    """Every settings class that a recipe is made of."""
    is_one = dataclasses.is_dataclass(hint)
    parts = typing.get_type_hints(hint).values() if is_one else typing.get_args(hint)
    return ({hint} if is_one else set()).union(*map(settings_below, parts))


def test_settings_come_in_parts_that_can_be_grasped():
    found = settings_below(Recipe) | settings_below(ServeSettings)
    assert {"DataSettings", "ViTSettings", "DistillSettings"} <= {one.__name__ for one in found}
    wide = {one.__name__ for one in found if len(dataclasses.fields(one)) > MOST_FIELDS}
    assert not wide


def child(code: str, *words: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", code, *words], check=False, capture_output=True, text=True, timeout=100
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_importing_the_package_imports_no_torch():
    child("import sys, vitreous, vitreous.cli, vitreous.models; assert not {'torch', 'numpy'} & set(sys.modules)")


def test_the_core_needs_no_extras(tmp_path):
    """As installed without extras: what is optional cannot be imported, and training works all the same."""
    code = """
import sys

extras = "simplejpeg pillow_heif torchvision tensorboard timm transformers datasets scipy sklearn hotcoco"
for name in extras.split():
    sys.modules[name] = None  # importing it fails, as if it were not installed
from vitreous.cli import main
main(["train", "fashion_vit", "--training.steps", "2", "--training.log_every_steps", "1", "--data.train_limit", "200",
      "--data.val_fraction", "0.02", "--out", sys.argv[1]])
"""
    assert "test  accuracy" in child(code, str(tmp_path / "run"))
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3
    assert not (tmp_path / "run" / "tensorboard").exists()
