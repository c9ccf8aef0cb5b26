"""Slow and broken clients. The protocol runs here with short deadlines, in a thread, before an app of three lines."""

import asyncio
import socket
import threading
import time

import pytest
import uvicorn

from vitreous.serve import protocol
from vitreous.serve.protocol import PatientProtocol


def until(what) -> None:
    for _ in range(4000):
        if what():
            return
        time.sleep(0.005)
    raise AssertionError("never came true")


class Site:
    def __init__(self) -> None:
        self.hold = threading.Event()
        config = uvicorn.Config(
            self.app, interface="asgi3", http=PatientProtocol, lifespan="off", ws="none", log_level="critical"
        )
        self.server = uvicorn.Server(config)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = self.listening.getsockname()
        self.thread = threading.Thread(target=self.server.run, args=([self.listening],))
        self.thread.start()
        until(lambda: self.server.started)

    async def app(self, scope, receive, send):
        length = 4_000_000 if scope["path"] == "/large" else 2
        if scope["path"] == "/read":
            while (await receive()).get("more_body"):
                pass
        while scope["path"] == "/wait" and not self.hold.is_set():
            await asyncio.sleep(0.01)
        headers = [(b"content-length", str(length).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * length})

    @property
    def connections(self) -> list[PatientProtocol]:
        return list(self.server.server_state.connections)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=20)

    def works(self) -> bool:
        with self.connect() as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            return client.recv(1000).startswith(b"HTTP/1.1 200")

    def stop(self) -> None:
        self.hold.set()
        self.server.should_exit = True
        self.thread.join()


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_S", 0.3)
    monkeypatch.setattr(protocol, "ANSWER_S", 0.3)
    monkeypatch.setattr(protocol, "REQUEST_S", 0.6)
    monkeypatch.setattr(protocol, "LINGER_S", 0.5)
    monkeypatch.setattr(PatientProtocol, "max_connections", 6)
    site = Site()
    yield site
    site.stop()


def small_answer(client: socket.socket) -> None:
    found = b""
    while not found.endswith(b"xx"):
        found += client.recv(1000)


def ended(client: socket.socket) -> bytes:
    """All that comes until the server ends the connection, as it must."""
    found = b""
    try:
        while part := client.recv(65536):
            found += part
    except ConnectionError:
        pass
    client.close()
    return found


def test_small_answers_are_not_held_back(site):
    """Speed is not for tests; that the kernel is told not to wait for more is."""
    with site.connect():
        until(lambda: site.connections)
        (one,) = site.connections
        assert one.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_silence_ends(site):
    assert ended(site.connect()) == b""


def test_a_head_that_trickles_ends(site):
    client = site.connect()
    try:
        for byte in b"GET / HTTP/1.1\r\nhost: " + b"x" * 2000:
            client.sendall(bytes([byte]))
            time.sleep(0.02)
    except ConnectionError:
        client.close()
    else:
        raise AssertionError("it was heard for ever")
    assert site.works()


def test_a_second_head_that_trickles_ends(site):
    client = site.connect()
    client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    small_answer(client)
    client.sendall(b"GET / HT")
    assert ended(client) == b""


def test_a_body_that_never_comes_ends(site):
    client = site.connect()
    client.sendall(b"POST /read HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nfirst")
    assert ended(client) == b""


def test_an_answer_nobody_reads_ends(site):
    client = site.connect()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
    until(lambda: site.connections)
    until(lambda: not site.connections)
    client.close()


def test_the_oldest_that_waits_makes_room(site):
    idle = [site.connect() for _ in range(6)]
    time.sleep(0.05)
    assert site.works()
    assert ended(idle[0]) == b""
    for client in idle[1:]:
        client.close()


def test_those_at_work_are_not_thrown_out(site):
    busy = [site.connect() for _ in range(6)]
    for client in busy:
        client.sendall(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
    until(lambda: sum(each.has_request for each in site.connections) == 6)
    refused = ended(site.connect())
    assert refused.startswith(b"HTTP/1.1 503")
    assert b"retry-after" in refused
    site.hold.set()
    assert all(client.recv(1000).startswith(b"HTTP/1.1 200") for client in busy)
    for client in busy:
        client.close()


def test_an_answer_before_the_body_reaches_a_client_that_still_sends(site):
    """Closing at once would reset the connection, and the client would lose the answer."""
    for _ in range(5):
        client = site.connect()
        client.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 30000000\r\n\r\n")
        client.sendall(b"x" * 3_000_000)
        assert ended(client).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: " + b"x" * 1_000_000,
        b"GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\n bad folding\x00\r\n\r\n",
    ],
)
def test_no_http(site, data):
    client = site.connect()
    client.sendall(data)
    answer = ended(client)
    assert answer.startswith(b"HTTP/1.1 400") or answer == b""
    assert b"Traceback" not in answer
    assert site.works()


def test_chunks_that_are_none(site):
    client = site.connect()
    client.sendall(b"POST /read HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nZZZ\r\n")
    assert ended(client).startswith(b"HTTP/1.1 400")
    assert site.works()


def test_requests_under_way_at_the_end_are_answered(monkeypatch):
    monkeypatch.setattr(protocol, "LEAVE_S", 3.0)
    site = Site()
    busy, late = site.connect(), site.connect()
    for client in (busy, late):
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        small_answer(client)
    busy.sendall(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
    until(lambda: any(each.has_request for each in site.connections))
    site.server.should_exit = True
    until(lambda: all(each.is_leaving for each in site.connections))
    late.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")  # on its way when the server began to stop
    found = ended(late)
    site.hold.set()
    assert found.startswith(b"HTTP/1.1 200")
    assert ended(busy).startswith(b"HTTP/1.1 200")
    site.stop()
