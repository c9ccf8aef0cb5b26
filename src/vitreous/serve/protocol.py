"""The part of uvicorn that deals with one connection, taught to lose patience.

uvicorn waits for ever for a request's head, and for a client that does not read its answer. Here every wait on a
client has an end, what a client sends in crumbs is read in larger pieces, and what proxies could read in two ways is
refused.
"""

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0  # for a request's head to arrive
ANSWER_S = 60.0  # for an answer to be taken
LINGER_S = 2.0  # for a client to notice that its body is not wanted
LEAVE_S = 0.2  # for requests that were on their way when the server began to stop
IDLE_S, STALL_S = 1.0, 5.0  # without a request, or within one: what a client may wait where others want its place
PROBE_S = 0.5  # between looks whether a client that has closed its half is still there

FREE_CHUNKS, LEAST_CHUNK = 128, 512  # chunks of any size; beyond them, bytes that each must have on average
CRUMB, REST_S = 1024, 0.02  # bytes of a body that come alone; the pause in which the kernel gathers more


class StrictConnection(h11.Connection):
    """Refuses what h11 would read, but others may read otherwise, or what costs far more to read than to send."""

    refusal = "this is no valid HTTP request"
    num_chunks = num_bytes = 0  # of the request under way

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
        """One way to tell where a body ends (RFC 9112, 6.1 and 6.3): or a proxy may see another end than we do."""
        names = {name for name, _ in request.headers}
        if b"transfer-encoding" in names and b"content-length" in names:
            raise self._refused("Content-Length and Transfer-Encoding exclude each other")
        if b"transfer-encoding" in names and request.http_version < b"1.1":
            raise self._refused("HTTP/1.0 has no Transfer-Encoding")

    def _refused(self, reason: str) -> h11.RemoteProtocolError:
        self.refusal = reason
        return h11.RemoteProtocolError(reason)


class PatientProtocol(H11Protocol):
    """Patient up to a point."""

    request_s = 150.0  # from a head to the answer: more than all its parts may take; whoever starts the server sets it

    conn: StrictConnection

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self.conn = StrictConnection(h11.SERVER)
        self.on_lost: Callable[[PatientProtocol], None] = lambda _: None
        self.deadline: asyncio.TimerHandle | None = None
        self.waiting_since = 0.0
        self.is_discarding = False  # what still comes is not read
        self.is_half_closed = False  # nothing more will come, but the answer is awaited
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
        """Whether its client has let us wait for so long that another may have its place. One that sends its body, or
        takes its answer, however slowly, keeps it."""
        waits_on_client = not self.has_request or self.cycle.more_body or self.flow.write_paused
        patience_s = STALL_S if self.has_request else IDLE_S
        return waits_on_client and self.loop.time() - self.waiting_since >= patience_s

    # ---- a connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # An answer is written in two parts: without this the second waits until the client has confirmed the first,
        # some 40 ms. (asyncio sets it too, but not where the listening socket was made by socket.create_server.)
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
        """A client that has sent its request may close its half and still await the answer (RFC 9112, 9.6)."""
        if not self.has_request or self.cycle.more_body:
            return False  # nothing to answer: close
        self.is_half_closed = True
        self.loop.call_later(PROBE_S, self._probe)
        return True

    def _probe(self) -> None:
        """One that has left altogether looks the same, until something is written: then its machine refuses it, and
        the next write fails. A client that is there passes over any number of interim answers (RFC 9110, 15.2)."""
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
            self._close_gently()  # answered before its body came
        super().on_response_complete()
        if self.is_half_closed and not self.has_request:
            self.transport.close()

    def _close_gently(self) -> None:
        """Closing at once would reset the connection, and our answer with it, where the client still sends: so only
        our half is closed, and what comes is thrown away for a moment."""
        self.is_discarding = True
        with suppress(OSError):  # the client may be gone already
            self.transport.write_eof()
        self._give(LINGER_S)
        self.transport.resume_reading()

    def send_400_response(self, msg: str) -> None:
        if self.has_request and self.cycle.response_started:
            self.transport.close()  # there is no room left for another answer
            return
        if self.has_request:
            self.cycle.disconnected = True  # so that the app asks for no more
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
