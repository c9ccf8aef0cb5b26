"""Where the service refuses to start, and what it says."""

import argparse
import socket
import subprocess
import sys

import pytest

from vitreous.errors import UserError
from vitreous.serve.server import serve
from vitreous.serve.settings import ServeSettings
from vitreous.verbs import serve as verb


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    verb.add(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_addresses_need_a_token(address, monkeypatch):
    monkeypatch.delenv("VITREOUS_TOKEN", raising=False)
    with pytest.raises(UserError, match="--token-file"):
        verb.run(options("model", "--address", address, "--port", "0"))


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port}: .*in use"):
            serve(ServeSettings(models=("model",), port=port))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"models": ("a", "b", "c")}, "one, or two"),
        ({"queue": 0}, "queue is 0"),
        ({"max_batch": 0}, "max_batch is 0"),
        ({"port": 70000}, "port is 70000"),
        ({"max_body_mb": 0}, "max_body_mb"),
        ({"threads": 0}, "threads is 0"),
        ({"token": "short"}, "at least 16"),
        ({"token": "with spaces in it, long"}, "without spaces"),
    ],
)
def test_settings_out_of_range(wrong, message):
    with pytest.raises(UserError, match=message):
        ServeSettings(**{"models": ("model",)} | wrong)


def test_tokens_come_from_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_TOKEN", "from the environment")
    (tmp_path / "token").write_text("from-a-file-of-text\n")
    assert verb.token(None) == "from the environment"
    assert verb.token(str(tmp_path / "token")) == "from-a-file-of-text"
    with pytest.raises(UserError, match="No such file"):
        verb.token(str(tmp_path / "none"))


def test_a_model_that_is_none(tmp_path):
    """It gets no address: nobody can use it."""
    command = [sys.executable, "-m", "vitreous", "serve", tmp_path / "nothing", "--no-open", "--port", "0"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == f"vitreous: {tmp_path / 'nothing'}: no such run, file or folder of weights\n"
