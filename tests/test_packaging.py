"""What users install: a wheel and an sdist, into an environment that knows nothing of the source tree."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

import vitreous
from vitreous.verbs import VERBS

ROOT = Path(__file__).parents[1]


def tracked(*under):
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", *under], check=True, capture_output=True, text=True)
    return listed.stdout.split("\n")[:-1]


def test_one_version_and_the_changelog_knows_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "vitreous.__version__"}
    headings = re.findall(r"^## \[?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == vitreous.__version__
    assert headings == sorted(headings, key=lambda one: [int(part) for part in one.split(".")], reverse=True)


def test_whatever_lies_beside_the_code_is_packed_with_it():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["vitreous"]
    package = ROOT / "src/vitreous"
    packed = {path.relative_to(ROOT).as_posix() for pattern in patterns for path in package.glob(pattern)}
    assert not {name for name in tracked("src") if not name.endswith(".py")} - packed


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel, made from the sdist, made from what is tracked."""
    pytest.importorskip("build")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--outdir", out, source]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=clean())
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def home(built, tmp_path_factory):
    """An empty folder beside a fresh environment with the wheel and what it needs, no extras."""
    folder = tmp_path_factory.mktemp("home")
    venv.create(folder / "env", with_pip=True)
    install(folder, built[0])
    return folder


def clean():
    """Without what makes the source tree visible."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def install(home, what):
    words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt", what]
    ended = subprocess.run([home / "env/bin/python", *words], check=False, capture_output=True, text=True, env=clean())
    assert ended.returncode == 0, ended.stderr


def run(home, *words, timeout=300):
    command = [home / "env/bin" / words[0], *words[1:]]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=clean(), cwd=home, timeout=timeout)
    assert ended.returncode == 0, f"{words}: {ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.mark.slow
def test_every_file_is_in_the_wheel(built):
    wheel, sdist = built
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert {name.removeprefix("src/") for name in tracked("src")} <= packed
    assert any(name.endswith("licenses/LICENSE") for name in packed)
    with tarfile.open(sdist) as archive:
        listed = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", *tracked("src")} <= listed


@pytest.mark.slow
def test_it_runs_without_the_source_tree(home):
    where, version = run(home, "python", "-c", "import vitreous as v; print(v.__file__, v.__version__)").split()
    assert Path(where).is_relative_to(home / "env") and version == vitreous.__version__
    assert run(home, "vitreous", "--version") == f"vitreous {version}\n"
    for verb in VERBS:
        assert run(home, "vitreous", verb, "--help").startswith(f"usage: vitreous {verb}")
    assert "fashion_vit" in run(home, "vitreous", "list")


@pytest.mark.slow
def test_the_demonstration(home):
    told = run(home, "vitreous", "demo", timeout=3600)
    (made,) = {path.parent for path in home.glob("runs/demo/**/report.html")}
    assert str(made.relative_to(home)) in told and (made / "model/model.json").is_file()


@pytest.mark.slow
def test_the_service(home, built):
    short = ("--model.width", "16", "--model.depth", "1", "--model.heads", "2", "--training.steps", "4")
    run(home, "vitreous", "train", "fashion_vit", *short, "--out", "runs/short", "--device", "cpu", "--quiet")
    command = [home / "env/bin/vitreous", "serve", "runs/short", "--port", "0", "--no-open"]
    refused = subprocess.run(command, check=False, capture_output=True, text=True, env=clean(), cwd=home, timeout=300)
    assert refused.returncode == 2 and "pip install 'vitreous[serve]'" in refused.stderr  # an extra, and it says so
    install(home, f"{built[0]}[serve]")
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean(), cwd=home)
    try:
        url = re.search(r"http://\S+/", server.stdout.readline())[0]
        wait_until_ready(url)
        with urllib.request.urlopen(url) as page, urllib.request.urlopen(f"{url}v1/model") as models:
            assert b"<html" in page.read().lower()
            assert json.load(models)["models"]
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
        server.stdout.close()


def wait_until_ready(url):
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{url}readyz"):
                return
        except urllib.error.HTTPError as error:
            error.close()
            time.sleep(0.2)
    raise AssertionError("never ready")
