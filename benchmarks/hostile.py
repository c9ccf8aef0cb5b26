"""Clients that mean harm, and clients that only look like it, before a real service on this machine.

What is asserted (`holds`): in a flood of connections no more descriptors are open than are allowed, an upload under way
is answered, and so is whoever asks during it; one client's crumbs do not slow others down; a request with two ends is
refused, one whose client has closed its half is answered; a service with 64 descriptors neither spins nor fills its
log, and replaces a dead model meanwhile; thin and huge pictures take little memory; SIGHUP loses no accepted request.
All is bounded: NUM_CONNECTS connections, some seconds a case, 127.0.0.1 alone.
"""

import io
import os
import resource
import signal
import socket
import statistics
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from service import Running

NUM_CONNECTS = 3000  # of the flood
ATTACK_S = 6.0
MAX_OPEN = 256 + 40  # connections, and what the service itself needs
FEW_FILES = 64


def measure(model: Path) -> dict[str, Any]:
    """One service for all but the case of few descriptors; it is ended by SIGHUP."""
    running = Running(model)
    found: dict[str, Any] = {
        "flood": flood(running),
        "crumbs": crumbs(running),
        "framing": framing(running),
        "pictures": hostile_pictures(running),
        "sighup": hang_up(running),
    }
    return found | {"few_files": few_files(model)}


def holds(found: dict[str, Any]) -> dict[str, bool]:
    flooded, crumbled, framed = found["flood"], found["crumbs"], found["framing"]
    pictures, few, ended = found["pictures"], found["few_files"], found["sighup"]
    return {
        "a flood takes no more descriptors than allowed": flooded["most_open"] <= MAX_OPEN,
        "a slow upload survives a flood": flooded["upload"] == 200,
        "who asks during a flood is answered": set(flooded["statuses"]) <= {200, 429} and 200 in flooded["statuses"],
        "crumbs of one client slow others by less than 10 times": crumbled["p50_during_ms"] < 10 * crumbled["p50_ms"],
        "crumbs are refused": set(crumbled["statuses"]) == {400},
        "two lengths are refused, and the connection closed": framed["two_lengths"] == [400],
        "a half-closed request is answered": framed["half_closed"] == [200],
        "pictures made to hurt take below 1 GB": max(pictures["memory_mb"].values()) < pictures["before_mb"] + 1000,
        "pictures made to hurt are answered or refused": set(pictures["statuses"].values()) <= {200, 422},
        "few descriptors: no spinning": few["cpu_share"] < 0.5,
        "few descriptors: a short log": few["log_bytes"] < 10_000,
        "few descriptors: a dead model is replaced": few["is_back"],
        "SIGHUP loses nothing, leaves nothing": ended == {"status": 200, "exit_code": 0, "processes_left": 0},
    }


# ---- clients


def head(port: int, *lines: str) -> bytes:
    text = "\r\n".join([f"host: 127.0.0.1:{port}", "content-type: image/png", *lines])
    return f"POST /v1/predict HTTP/1.1\r\n{text}\r\n\r\n".encode()


def statuses(client: socket.socket) -> list[int]:
    """Of all answers that come until the connection is closed, but for interim ones."""
    data = b""
    with suppress(OSError):
        while part := client.recv(65536):
            data += part
    client.close()
    found = [int(each.split(None, 2)[1]) for each in data.split(b"\r\n") if each.startswith(b"HTTP/1.1 ")]
    return [status for status in found if status != 100]


def ask(port: int, data: bytes, *, half_closes: bool = False) -> list[int]:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(
            head(port, f"content-length: {len(data)}", *([] if half_closes else ["connection: close"])) + data
        )
        if half_closes:
            client.shutdown(socket.SHUT_WR)
        return statuses(client)


def png(width: int, height: int) -> bytes:
    """Of one grey, written by hand: a few bytes for any number of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pack, packed, row = zlib.compressobj(9), io.BytesIO(), b"\0" + b"\x80" * width
    for _ in range(height):
        packed.write(pack.compress(row))
    packed.write(pack.flush())
    size = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", packed.getvalue()) + chunk(b"IEND", b"")


@contextmanager
def meanwhile(*workers: Callable[[], None]) -> Iterator[None]:
    threads = [threading.Thread(target=worker) for worker in workers]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def connect_many(port: int, num: int) -> list[socket.socket]:
    """Connections that say nothing; as many as this process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < num + 100:
        soft = num + 100 if hard == resource.RLIM_INFINITY else min(hard, num + 100)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    clients = []
    for _ in range(min(num, soft - 100)):
        clients.append(socket.socket())
        clients[-1].setblocking(False)
        clients[-1].connect_ex(("127.0.0.1", port))
    return clients


# ---- cases


def flood(running: Running) -> dict[str, Any]:
    picture, port = png(200, 150), running.port
    padded = picture + b"\0" * (400_000 - len(picture))  # what follows the end of a PNG is not read
    uploaded: list[int] = []
    asked: list[int] = []
    most_open = 0

    def upload() -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(head(port, f"content-length: {len(padded)}", "connection: close"))
            for start in range(0, len(padded), 20_000):  # 80 kB a second
                client.sendall(padded[start : start + 20_000])
                time.sleep(0.25)
            uploaded.extend(statuses(client))

    def others() -> None:
        time.sleep(1)  # in the midst of it
        for _ in range(5):
            with suppress(OSError):
                asked.extend(ask(port, picture) or [0])

    with meanwhile(upload, others):
        clients = connect_many(port, NUM_CONNECTS)
        end = time.monotonic() + ATTACK_S
        while time.monotonic() < end:
            most_open = max(most_open, running.num_open())
            time.sleep(0.02)
        for client in clients:
            client.close()
    return {"connects": len(clients), "most_open": most_open, "upload": (uploaded or [0])[0], "statuses": asked}


def crumbs(running: Running) -> dict[str, Any]:
    """One client sends bodies of one-byte chunks, again and again; another looks how soon it is answered."""
    port, is_over = running.port, threading.Event()
    body = head(port, "transfer-encoding: chunked") + b"1\r\nx\r\n" * 50_000
    refused: list[int] = []

    def attack() -> None:
        while not is_over.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=20) as client:
                with suppress(OSError):
                    client.sendall(body)
                refused.extend(statuses(client))

    before = latencies(port, ATTACK_S / 2)
    with meanwhile(attack):
        during = latencies(port, ATTACK_S)
        is_over.set()
    return {
        "p50_ms": round(1000 * statistics.median(before), 2),
        "p50_during_ms": round(1000 * statistics.median(during), 2),
        "bodies": len(refused),
        "statuses": sorted(set(refused)),
    }


def latencies(port: int, seconds: float) -> list[float]:
    found, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            client.sendall(f"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n".encode())
            statuses(client)
        found.append(time.monotonic() - began)
        time.sleep(0.02)
    return found


def framing(running: Running) -> dict[str, Any]:
    port, picture = running.port, png(200, 150)
    hidden = f"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(head(port, "content-length: 5", "transfer-encoding: chunked") + b"0\r\n\r\n" + hidden)
        two_lengths = statuses(client)
    return {"two_lengths": two_lengths, "half_closed": ask(port, picture, half_closes=True)}


def hostile_pictures(running: Running) -> dict[str, Any]:
    sizes = {"wide": (20_000, 1), "tall": (1, 20_000), "line": (49_000_000, 1), "bomb": (60_000, 60_000)}
    pictures = {name: png(width, min(height, 20_000)) for name, (width, height) in sizes.items()}
    pictures["bomb"] = pictures["bomb"].replace(struct.pack(">II", 60_000, 20_000), struct.pack(">II", 60_000, 60_000))
    before = running.memory_mb()
    found: dict[str, int] = {}
    memory: dict[str, float] = {}
    for name, data in pictures.items():
        answered: list[int] = []
        with meanwhile(lambda answered=answered, data=data: answered.extend(ask(running.port, data))):  # type: ignore[misc]
            memory[name] = 0.0
            while not answered and running.process.poll() is None:
                memory[name] = max(memory[name], round(running.memory_mb()))
                time.sleep(0.01)
        found[name] = answered[0]
    return {"before_mb": round(before), "memory_mb": memory, "statuses": found}


def hang_up(running: Running) -> dict[str, Any]:
    """While a request is on its way."""
    found: list[int] = []
    processes, picture = running.processes(), png(4000, 3000)
    with meanwhile(lambda: found.extend(ask(running.port, picture))):
        while running.metric("vitreous_queue_pictures") == 0 and not found:
            time.sleep(0.002)
        running.process.send_signal(signal.SIGHUP)
    code = running.process.wait(60)
    left = sum(Path(f"/proc/{pid}").exists() for pid in processes)
    return {"status": found[0], "exit_code": code, "processes_left": left}


def few_files(model: Path) -> dict[str, Any]:
    running = Running(model, files=FEW_FILES)
    _, worker = running.processes()
    clients = connect_many(running.port, 300)
    time.sleep(0.5)
    began, cpu = time.monotonic(), running.cpu_s()[0]
    time.sleep(ATTACK_S / 2)
    share = (running.cpu_s()[0] - cpu) / (time.monotonic() - began)
    os.kill(worker, signal.SIGKILL)
    is_back = False
    for _ in range(200):
        alive = running.processes()
        is_back = len(alive) == 2 and alive[1] != worker
        if is_back:
            break
        time.sleep(0.05)
    for client in clients:
        client.close()
    running.wait_until_ready()
    running.process.terminate()
    running.process.wait(60)
    return {"cpu_share": round(share, 3), "log_bytes": running.log_bytes(), "is_back": is_back}
