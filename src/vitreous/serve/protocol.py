"""uvicorn's handling of one connection, with limits.

uvicorn waits indefinitely for a request's head, and for a client that does not read its response. Here every wait for
a client has a limit, small pieces of a body are read together, and requests that proxies could interpret in two ways
are refused.
"""

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0  # time for a request's head to arrive
ANSWER_S = 60.0  # time for a client to read a response
LINGER_S = 2.0  # time for a client to notice that its body is refused
LEAVE_S = 0.2  # time for requests that were in transit when the server began to stop
IDLE_S, STALL_S = 1.0, 5.0  # idle time, without a request and within one, after which a connection can make room
PROBE_S = 0.5  # time between checks whether a client that has closed its half is still there

FREE_CHUNKS, LEAST_CHUNK = 128, 512  # chunks that may have any size; average bytes that further chunks must have
CRUMB, REST_S = 1024, 0.02  # a piece of a body with fewer bytes is followed by a pause, so that the kernel gathers more


class StrictConnection(h11.Connection):
    """Refuses requests that h11 accepts but others may interpret differently, or that cost far more to read than to
    send."""

    refusal = "this is not a valid HTTP request"
    num_chunks = num_bytes = 0  # of the current request

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.num_chunks = self.num_bytes = 0
            self._check_framing(event)
        elif isinstance(event, h11.Data):
            self.num_chunks += event.chunk_start
            self.num_bytes += len(event.data)
            if self.num_chunks > FREE_CHUNKS + self.num_bytes // LEAST_CHUNK:
                raise self._refused("the body comes in too many small chunks")
        return event

    def _check_framing(self, request: h11.Request) -> None:
        """There must be only one way to tell where a body ends (RFC 9112, 6.1 and 6.3), or a proxy may see another end
        than we do."""
        names = {name for name, _ in request.headers}
        if b"transfer-encoding" in names and b"content-length" in names:
            raise self._refused("Content-Length and Transfer-Encoding cannot be used together")
        if b"transfer-encoding" in names and request.http_version < b"1.1":
            raise self._refused("Transfer-Encoding cannot be used with HTTP/1.0")

    def _refused(self, reason: str) -> h11.RemoteProtocolError:
        self.refusal = reason
        return h11.RemoteProtocolError(reason)


class PatientProtocol(H11Protocol):
    """A connection whose every wait has a limit."""

    request_s = 150.0  # from head to response: more than all parts together may take; set when the server starts

    conn: StrictConnection

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self.conn = StrictConnection(h11.SERVER)
        self.on_lost: Callable[[PatientProtocol], None] = lambda _: None
        self.deadline: asyncio.TimerHandle | None = None
        self.waiting_since = 0.0
        self.is_discarding = False  # whatever still arrives is ignored
        self.is_half_closed = False  # the client sends nothing more, but waits for the response
        self.is_leaving = False  # the server is about to stop

    def _give(self, seconds: float) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
        self.waiting_since = self.loop.time()
        self.deadline = self.loop.call_later(seconds, self.transport.abort)

    @property
    def has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def can_make_room(self) -> bool:
        """Whether its client has kept us waiting so long that another may take its place. A client that keeps sending
        its body, or reading its response, however slowly, keeps its place."""
        waits_on_client = not self.has_request or self.cycle.more_body or self.flow.write_paused
        patience_s = STALL_S if self.has_request else IDLE_S
        return waits_on_client and self.loop.time() - self.waiting_since >= patience_s

    # ---- a connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # A response is written in two parts: without this, the second waits until the client acknowledges the first,
        # some 40 ms. (asyncio sets it too, but not if the listening socket was made by socket.create_server.)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._give(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
        super().connection_lost(exc)
        self.on_lost(self)

    # ---- a request

    def data_received(self, data: bytes) -> None:
        if self.is_discarding:
            return
        if self.timeout_keep_alive_task is not None:  # the first bytes of another request
            self._give(HEAD_S)
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before and self.has_request:
            self._give(self.request_s)
            if self.is_leaving:
                self.cycle.keep_alive = False
        elif self.has_request:
            self.waiting_since = self.loop.time()
        if len(data) < CRUMB and self.conn.their_state is h11.SEND_BODY:
            self.transport.pause_reading()
            self.loop.call_later(REST_S, self._read_on)

    def _read_on(self) -> None:
        if not self.flow.read_paused:
            self.transport.resume_reading()

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that has sent its request may close its half and still wait for the response (RFC 9112, 9.6)."""
        if not self.has_request or self.cycle.more_body:
            return False  # nothing to answer: close
        self.is_half_closed = True
        self.loop.call_later(PROBE_S, self._probe)
        return True

    def _probe(self) -> None:
        """Find out whether the client has left altogether, by writing to it: its machine then refuses the data, and the
        next write fails. A client that is still there ignores any number of interim responses (RFC 9110, 15.2)."""
        can_write = self.has_request and not self.cycle.response_started and not self.transport.is_closing()
        if can_write and self.conn.their_http_version == b"1.1":
            self.transport.write(self.conn.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            self.loop.call_later(PROBE_S, self._probe)

    def pause_writing(self) -> None:
        self.waiting_since = self.loop.time()
        super().pause_writing()

    def on_response_complete(self) -> None:
        self._give(ANSWER_S)
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._close_gently()  # the response came before the end of the body
        super().on_response_complete()
        if self.is_half_closed and not self.has_request:
            self.transport.close()

    def _close_gently(self) -> None:
        """Close only our half, and discard what arrives for a moment. If the client is still sending, closing at once
        would reset the connection, and the client would lose our response."""
        self.is_discarding = True
        with suppress(OSError):  # the client may be gone already
            self.transport.write_eof()
        self._give(LINGER_S)
        self.transport.resume_reading()

    def send_400_response(self, msg: str) -> None:
        if self.has_request and self.cycle.response_started:
            self.transport.close()  # a second response cannot be sent
            return
        if self.has_request:
            self.cycle.disconnected = True  # so that the app does not wait for more of the body
            self.cycle.message_event.set()
        self.transport.write(_raw("400 Bad Request", self.conn.refusal))
        self._close_gently()

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


def _raw(status: str, reason: str) -> bytes:
    body = json.dumps({"error": reason})
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}connection: close\r\n\r\n{body}".encode()
