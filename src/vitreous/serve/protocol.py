"""The part of uvicorn that deals with one connection, taught to lose patience.

uvicorn waits for ever for a request's head, and for a client that does not read its answer. Here every wait on a
client has an end, and where too many connections are open, the one that waited longest on its client makes room.
"""

import asyncio
import json
import socket
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0  # for a request's head to arrive
ANSWER_S = 60.0  # for an answer to be taken
REQUEST_S = 150.0  # for everything from the head to the answer: more than the deadlines of its parts
LINGER_S = 2.0  # for a client to notice that its body is not wanted
LEAVE_S = 0.2  # for requests that were on their way when the server began to stop


def _raw(status: str, reason: str) -> bytes:
    body = json.dumps({"error": reason})
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nretry-after: 1\r\n"
    return f"{head}connection: close\r\n\r\n{body}".encode()


class PatientProtocol(H11Protocol):
    """Patient up to a point."""

    max_connections = 256  # whoever starts the server sets it

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self.deadline: asyncio.TimerHandle | None = None
        self.waiting_since = 0.0
        self.is_discarding = False  # what still comes is not read
        self.is_leaving = False  # the server is about to stop

    def _give(self, seconds: float) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
        self.waiting_since = self.loop.time()
        self.deadline = self.loop.call_later(seconds, self.transport.abort)

    @property
    def has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def waits_on_client(self) -> bool:
        """For a request, for the rest of one, or for its answer to be taken."""
        return not self.has_request or self.cycle.more_body or self.flow.write_paused

    # ---- a connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # An answer is written in two parts: without this the second waits until the client has confirmed the first,
        # some 40 ms. (asyncio sets it too, but not where the listening socket was made by socket.create_server.)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._give(HEAD_S)
        if len(self.connections) <= self.max_connections:
            return
        others = [
            one
            for one in self.connections
            if isinstance(one, PatientProtocol) and one is not self and one.waits_on_client
        ]
        if others:
            min(others, key=lambda one: one.waiting_since).transport.abort()
        else:
            transport.write(_raw("503 Service Unavailable", "too many connections are open"))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
        super().connection_lost(exc)

    # ---- a request

    def data_received(self, data: bytes) -> None:
        if self.is_discarding:
            return
        if self.timeout_keep_alive_task is not None:  # the first bytes of another request
            self._give(HEAD_S)
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before and self.has_request:
            self._give(REQUEST_S)
            if self.is_leaving:
                self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        self._give(ANSWER_S)
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            # Answered before its body came. Closing at once would reset the connection, and the answer with it: so
            # only our half is closed, and what the client still sends is thrown away for a moment.
            self.is_discarding = True
            with suppress(OSError):  # the client may be gone already
                self.transport.write_eof()
            self._give(LINGER_S)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        if not self.has_request or not self.cycle.response_started:
            self.transport.write(_raw("400 Bad Request", "this is no valid HTTP request"))
        self.transport.close()

    # ---- the end of the server

    def shutdown(self) -> None:
        self.is_leaving = True
        if self.has_request:
            self.cycle.keep_alive = False
        else:
            self.loop.call_later(LEAVE_S, self._leave)

    def _leave(self) -> None:
        if not self.has_request and not self.transport.is_closing():
            self.transport.close()
