"""Slow and broken clients, at a site with short deadlines."""

import socket
import time

import pytest
from plain_site import MOST, Site, until

from vitreous.serve import protocol
from vitreous.serve.protocol import FREE_CHUNKS, PatientProtocol


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_S", 0.3)
    monkeypatch.setattr(protocol, "ANSWER_S", 0.3)
    monkeypatch.setattr(PatientProtocol, "request_s", 0.6)
    monkeypatch.setattr(protocol, "LINGER_S", 0.5)
    site = Site()
    yield site
    site.stop()


@pytest.fixture
def patient_site():
    """With its own deadlines."""
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


# ---- too many at once


def test_the_oldest_that_waits_makes_room(patient_site, monkeypatch):
    monkeypatch.setattr(protocol, "IDLE_S", 0.05)
    idle = [patient_site.connect() for _ in range(MOST)]
    until(lambda: len(patient_site.connections) == MOST)
    oldest = min(patient_site.connections, key=lambda one: one.waiting_since)
    assert patient_site.works()
    assert oldest not in patient_site.connections
    for client in idle:
        client.close()


def test_whoever_finds_no_room_waits(patient_site):
    """Those at work are not thrown out, and nobody is turned away: the next is answered when there is room."""
    busy = [patient_site.connect() for _ in range(MOST)]
    for client in busy:
        client.sendall(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
    until(lambda: sum(each.has_request for each in patient_site.connections) == MOST)
    late = [patient_site.connect() for _ in range(3 * MOST)]
    for client in late:
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert len(patient_site.connections) == MOST
    patient_site.hold.set()
    assert all(client.recv(1000).startswith(b"HTTP/1.1 200") for client in busy)
    for client in busy:
        client.close()
    assert all(ended(client).startswith(b"HTTP/1.1 200") for client in late)


def test_a_slow_upload_keeps_its_place_in_a_flood(patient_site, monkeypatch):
    monkeypatch.setattr(protocol, "IDLE_S", 0.0)
    honest = patient_site.connect()
    honest.sendall(b"POST /read HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n")
    until(lambda: any(each.has_request for each in patient_site.connections))
    for byte in b"slow!":
        for _ in range(3 * MOST):  # each takes the place of an older one that says nothing
            patient_site.connect().close()
        assert patient_site.works()
        honest.sendall(bytes([byte]))
    assert honest.recv(1000).startswith(b"HTTP/1.1 200")
    honest.close()


def test_an_upload_that_stands_still_makes_room(patient_site, monkeypatch):
    monkeypatch.setattr(protocol, "STALL_S", 0.1)
    still = [patient_site.connect() for _ in range(MOST)]
    for client in still:
        client.sendall(b"POST /read HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n")
    assert patient_site.works()
    for client in still:
        client.close()


# ---- bodies


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


def chunked(*chunks: bytes) -> bytes:
    head = b"POST /read HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


def test_a_body_of_crumbs_is_refused_before_it_costs_much(site):
    client = site.connect()
    until(lambda: site.connections)
    (one,) = site.connections
    client.sendall(chunked(*[b"x"] * 20_000))
    found = ended(client)
    assert found.startswith(b"HTTP/1.1 400")
    assert b"too many small chunks" in found
    assert one.conn.num_chunks == FREE_CHUNKS + 1
    assert site.works()


def test_a_body_of_many_chunks_of_a_fair_size_is_read(patient_site):
    client = patient_site.connect()
    client.sendall(chunked(*[b"x" * 600] * 4 * FREE_CHUNKS, *[b"x"] * FREE_CHUNKS))
    assert client.recv(1000).startswith(b"HTTP/1.1 200")
    client.close()


def test_crumbs_are_gathered(patient_site, monkeypatch):
    """After a few bytes of a body nothing is read for a while, so that one client cannot keep the server busy."""
    monkeypatch.setattr(protocol, "REST_S", 0.3)
    client = patient_site.connect()
    client.sendall(b"POST /read HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n")
    until(lambda: any(each.has_request for each in patient_site.connections))
    (one,) = patient_site.connections
    until(one.transport.is_reading)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(50):
        client.sendall(b"x")
    until(lambda: not one.transport.is_reading())
    assert 0 < one.conn.num_bytes < 50
    assert client.recv(1000).startswith(b"HTTP/1.1 200")
    client.close()


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_body_has_one_end(site, version):
    """With two lengths a proxy in front may see another end than we do, and pass on what hides behind it."""
    lengths = "content-length: 4\r\n" if version == "1.1" else ""
    head = f"POST /read HTTP/{version}\r\nhost: x\r\n{lengths}transfer-encoding: chunked\r\n\r\n"
    client = site.connect()
    client.sendall(head.encode() + b"0\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n")
    found = ended(client)
    assert found.startswith(b"HTTP/1.1 400")
    assert found.count(b"HTTP/1.1") == 1
    assert b"Transfer-Encoding" in found


# ---- the end of a connection


def test_a_client_that_has_closed_its_half_is_answered(site):
    request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    for num in (1, 3):  # one, and several at once
        client = site.connect()
        client.sendall(num * request)
        client.shutdown(socket.SHUT_WR)
        assert ended(client).count(b"HTTP/1.1 200") == num


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_and_so_where_the_answer_takes_long(patient_site, monkeypatch, version):
    monkeypatch.setattr(protocol, "PROBE_S", 0.05)
    client = patient_site.connect()
    client.sendall(f"GET /wait HTTP/{version}\r\nhost: x\r\n\r\n".encode())
    client.shutdown(socket.SHUT_WR)
    until(lambda: any(each.is_half_closed for each in patient_site.connections))
    time.sleep(0.15)  # some probes
    patient_site.hold.set()
    *interim, answer = ended(client).split(b"\r\n\r\n")[:-1]
    assert answer.startswith(b"HTTP/1.1 200")
    assert all(each.startswith(b"HTTP/1.1 100") for each in interim)
    assert bool(interim) == (version == "1.1")


def test_a_client_that_has_left_is_noticed(patient_site, monkeypatch):
    monkeypatch.setattr(protocol, "PROBE_S", 0.05)
    client = patient_site.connect()
    client.sendall(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
    until(lambda: any(each.has_request for each in patient_site.connections))
    client.close()
    until(lambda: not patient_site.connections)


def test_half_a_request_is_not_answered(site):
    for part in (b"GET / HTT", b"POST /read HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nab"):
        client = site.connect()
        client.sendall(part)
        client.shutdown(socket.SHUT_WR)
        assert ended(client) == b""


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
