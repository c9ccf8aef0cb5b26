"""Floods, and a system that has no descriptors left."""

import errno
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from plain_site import MOST, Site, until
from running import Running, png

from vitreous.errors import UserError
from vitreous.serve import listener, server

FILES = 64


class Failing:
    """A listening socket of a system that has run out of something."""

    def __init__(self, listening: socket.socket, num: int) -> None:
        self.listening, self.left, self.num_calls = listening, num, 0

    def accept(self):
        self.num_calls += 1
        if self.left:
            self.left -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self.listening.accept()

    def __getattr__(self, name: str):
        return getattr(self.listening, name)


def test_a_failing_system_is_asked_again_after_growing_pauses(monkeypatch):
    pauses = []
    site = Site()
    (one,) = site.server.listeners
    sleep = listener.asyncio.sleep
    monkeypatch.setattr(listener.asyncio, "sleep", lambda seconds: (pauses.append(seconds), sleep(0))[1])
    one.listening = failing = Failing(one.listening, 9)
    assert site.works()
    assert [seconds for seconds in pauses if seconds in listener.PAUSES_S][:9] == [
        *listener.PAUSES_S,
        *[listener.PAUSES_S[-1]] * (9 - len(listener.PAUSES_S)),
    ]
    assert failing.num_calls < 9 + 6
    site.stop()


def test_a_flood_takes_no_more_descriptors_than_there_are_places():
    site = Site()
    (one,) = site.server.listeners
    most, begin = [], one._begin

    async def counted(connection: socket.socket) -> None:
        await begin(connection)
        most.append(len(one.open))

    one._begin = counted
    clients = [socket.socket() for _ in range(100)]
    for client in clients:
        client.setblocking(False)
        client.connect_ex(site.address)
    until(lambda: len(most) >= MOST)
    assert max(most) == MOST == len(one.open) == len(site.connections)
    for client in clients:
        client.close()
    assert site.works()
    assert max(most) == MOST
    site.stop()


def test_a_server_with_few_descriptors_outlives_a_flood_and_the_death_of_its_model(model):
    """A real one with 64: it leaves enough of them to start the model again while the places are all taken."""
    running = Running(model, "--neighbours", 0, files=FILES)
    clients = [socket.socket() for _ in range(200)]
    for client in clients:
        client.setblocking(False)
        client.connect_ex(running.address)
    places = FILES - server.SPARE_FILES
    running.wait_for(lambda: sum(each.startswith("socket:") for each in descriptors(running.process.pid)) >= places)
    (killed,) = running.workers()
    os.kill(killed, signal.SIGKILL)
    running.wait_for(lambda: running.workers() not in ([], [killed]))
    assert len(descriptors(running.process.pid)) < FILES
    for client in clients:
        client.close()
    running.wait_until_ready()
    assert running.predict(png(1)).status_code == 200
    assert running.stop() == 0
    lines = running.errors.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"at most {places} connections instead of 256")


def descriptors(pid: int) -> list[str]:
    """What a process has open."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            found.append(str(path.readlink()))
    return found


def test_too_few_descriptors_to_begin(monkeypatch):
    monkeypatch.setattr(server.platforms, "open_files", lambda wanted: 20)
    with pytest.raises(UserError, match="only 20 files may be open at once"):
        server._connections(256)
