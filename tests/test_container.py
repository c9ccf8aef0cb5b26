"""Dockerfile and compose.yaml: no Docker is needed to see that what they name exists, fits together and is closed.

The last test runs the image's own command as its user, without rights, where nothing can be written.
"""

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image

from vitreous.cli import Parser
from vitreous.data.transforms import Preprocessing
from vitreous.models import ViTSettings
from vitreous.serve.guard import PROBES
from vitreous.serve.server import GRACE_S
from vitreous.tasks.classify import ClassifySettings
from vitreous.verbs import serve
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

ROOT = Path(__file__).parents[1]


def instructions() -> list[tuple[str, str]]:
    """(name, the rest) in order; comments left out, continued lines joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def last_stage() -> list[tuple[str, str]]:
    found = instructions()
    start = max(place for place, (name, _) in enumerate(found) if name == "FROM")
    return found[start:]


def only(name: str) -> str:
    (value,) = [rest for each, rest in last_stage() if each == name]
    return value


def variables() -> dict[str, str]:
    pairs = (word.split("=", 1) for name, rest in last_stage() if name == "ENV" for word in shlex.split(rest))
    return dict(pairs)


def parsed(words: list[str]):
    parser = Parser()
    serve.add(parser)
    return parser.parse_args(words)


def entrypoint() -> list[str]:
    program, verb, *words = json.loads(only("ENTRYPOINT"))
    assert (program, verb) == ("vitreous", "serve")
    return words


@pytest.fixture(scope="module")
def service() -> dict:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: compose.yaml is not read")
    (service,) = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"].values()
    return service


# ---- the image


def test_it_runs_as_nobody_in_particular():
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", only("USER"))
    names = [name for name, _ in last_stage()]
    assert not {"RUN", "COPY", "ADD"} & set(names[names.index("USER") :])  # nothing is made that the user owns
    assert not any("--chown" in rest for name, rest in last_stage())


def test_what_is_copied_exists_and_is_not_left_out():
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied = [
        word for name, rest in instructions() if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]
    ]
    assert {"pyproject.toml", "constraints.txt", "src"} <= set(copied)
    for path in copied:
        assert (ROOT / path).exists(), path
        assert path not in ignored
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["readme"] in copied  # the build reads it


def needed(extras: list[str]) -> set[str]:
    """Everything that an installation of the package takes with it, by the metadata of what is installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = [*project["dependencies"], *(text for extra in extras for text in project["optional-dependencies"][extra])]
    waiting, found = [Requirement(text) for text in own], set()
    while waiting:
        asked = waiting.pop()
        if canonicalize_name(asked.name) in found:
            continue
        found.add(canonicalize_name(asked.name))
        for text in metadata.requires(asked.name) or ():
            other = Requirement(text)
            if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in ("", *asked.extras)):
                waiting.append(other)
    return found


def test_every_version_is_pinned():
    installs = [rest for name, rest in instructions() if name == "RUN" and "pip install" in rest]
    assert installs
    assert all("-c constraints.txt" in rest or "grep '^torch==' constraints.txt" in rest for rest in installs)
    (extras,) = re.findall(r'"\.\[([a-z,]+)\]"', " ".join(installs))
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.split("==")[0]) for line in lines if "==" in line}
    wanted = needed(extras.split(","))
    assert {"torch", "fastapi", "starlette", "onnxruntime"} <= wanted
    assert wanted <= pinned


def test_python_is_one_that_the_package_takes():
    (version,) = {re.search(r"python:3\.(\d+)-", rest)[1] for name, rest in instructions() if name == "FROM"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    least, below = (int(each) for each in re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project["requires-python"]).groups())
    assert least <= int(version) < below


def test_its_command_is_one_of_ours_and_its_ports_agree():
    options = parsed([*entrypoint(), *json.loads(only("CMD"))])
    assert options.address == "0.0.0.0" and options.no_open
    assert options.models == ["/model"]
    assert only("EXPOSE") == str(options.port)
    probe = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", only("HEALTHCHECK"))
    assert probe[1] == str(options.port)
    assert probe[2] in PROBES  # open without a token


# ---- compose.yaml


def test_compose_closes_what_it_can(service):
    assert service["read_only"] is True
    assert service["user"] == only("USER")
    assert service["cap_drop"] == ["ALL"] and "cap_add" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "network_mode", "pid", "ipc", "devices", "tmpfs"} & set(service)
    assert all(volume["read_only"] for volume in service["volumes"])
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["pids_limit"] and service["mem_limit"]


def test_compose_gives_the_server_what_it_asks_for(service):
    options = parsed([*entrypoint(), *service["command"]])
    assert options.models == [volume["target"] for volume in service["volumes"]]
    assert options.token_file.removeprefix("/run/secrets/") in service["secrets"]
    assert options.threads == service["cpus"]  # more threads than cores would wait for each other
    assert [port.split(":")[-1] for port in service["ports"]] == [str(options.port)]
    assert int(service["stop_grace_period"].removesuffix("s")) > GRACE_S


# ---- where nothing can be written

# Everything read-only, in a name space of its own; then the image's user. He may read everything, since this Python may
# lie in somebody's home; that is the one right he has.
CLOSED = """
mount --make-rprivate / || exit 1
for place in $(findmnt -rno TARGET | sort -u | grep -v -e '^/proc' -e '^/sys' -e '^/dev'); do
    mount -o remount,bind,ro "$place" || exit 1
done
exec setpriv --reuid "${OWNER%:*}" --regid "${OWNER#*:}" --clear-groups --no-new-privs \
    --bounding-set=-all,+dac_read_search --inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search "$@"
"""
TOKEN = "a-token-of-many-letters"


def closed(*words: str) -> subprocess.Popen:
    environment = variables() | {"PATH": os.environ["PATH"], "OWNER": only("USER"), "VITREOUS_TOKEN": TOKEN}
    return subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", CLOSED, "sh", sys.executable, *words],
        env=environment | {"OMP_NUM_THREADS": "1"},
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def save_model(folder: Path) -> None:
    torch.manual_seed(0)
    model = ViTSettings(picture_px=(16, 16), patch=8, width=16, depth=1, heads=2)
    task = ClassifySettings().build(model.build(), ("cat", "dog"))
    card = Card(
        model=model, task=ClassifySettings(), classes=("cat", "dog"), preprocessing=Preprocessing(size_px=(16, 16))
    )
    Trained(card, task.state_dict(), "here").save(folder)


def answer(address: str, path: str, body: bytes | None = None) -> bytes:
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/octet-stream"}
    with urllib.request.urlopen(urllib.request.Request(address + path, body, headers), timeout=60) as answered:
        return answered.read()


def wait_until_ready(address: str) -> None:
    for _ in range(600):
        try:
            return answer(address, "/readyz")
        except urllib.error.HTTPError:  # 503, until the model has started
            time.sleep(0.1)
    raise AssertionError("never ready")


def test_it_serves_where_nothing_can_be_written(tmp_path):
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "findmnt"))):
        pytest.skip("needs root, unshare, setpriv and findmnt to take all rights away")
    _, said = closed("-c", "open('/tmp/written', 'w')").communicate(timeout=60)
    if "Read-only file system" not in said:
        pytest.skip(f"no read-only file system can be made here: {said[-200:]}")
    save_model(tmp_path / "model")
    picture = io.BytesIO()
    Image.new("RGB", (20, 30), "red").save(picture, "png")
    server = closed("-m", "vitreous", "serve", *entrypoint(), "--port", "0", str(tmp_path / "model"))
    try:
        line = server.stdout.readline()
        assert "http://" in line, line + server.stderr.read()
        address = "http://127.0.0.1:" + re.search(r":(\d+)/", line)[1]
        wait_until_ready(address)
        assert b"<title>" in answer(address, "/")
        (result,) = json.loads(answer(address, "/v1/predict", picture.getvalue()))["results"]
        assert result["label"] in ("cat", "dog")
        user, group = (
            re.search(rf"{kind}:\s+(\d+)", Path(f"/proc/{server.pid}/status").read_text())[1] for kind in ("Uid", "Gid")
        )
        assert f"{user}:{group}" == only("USER")
    finally:
        server.send_signal(signal.SIGTERM)
        _, said = server.communicate(timeout=60)
    assert (server.returncode, said) == (0, "")
