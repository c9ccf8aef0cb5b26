"""The server in a thread of the test, before an app of a few lines."""

import asyncio
import socket
import threading
import time

import uvicorn

from vitreous.serve.listener import BoundedServer
from vitreous.serve.protocol import PatientProtocol

MOST = 6  # connections


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
        self.server = BoundedServer(config, MOST)
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
