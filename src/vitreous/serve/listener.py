"""Accepts connections, one at a time, and only while there is room for them.

asyncio's own server accepts as many as its backlog holds before it handles the first: in a flood that takes thousands
of descriptors, and when descriptors run out it retries without a pause. Here, connections that find no room wait in
the kernel's queue, which is short and costs this process nothing.
"""

import asyncio
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from vitreous import platforms
from vitreous.serve.log import log
from vitreous.serve.protocol import PatientProtocol

BACKLOG = 128  # connections that wait in the kernel
LOOK_AGAIN_S = 0.1  # time between checks whether an open connection can make room
HANDSHAKE_S = 0.05  # for connections that have begun when the server is told to stop
PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # after failures of the system: out of descriptors or memory


class Listener:
    def __init__(self, listening: socket.socket, most: int, make: Callable[[], PatientProtocol]) -> None:
        self.listening, self.most, self.make = listening, most, make
        self.open: set[PatientProtocol] = set()
        self.changed = asyncio.Event()  # set when a connection was closed, or the listener is closing
        self.is_closing = False
        listening.setblocking(False)
        self.accepting = asyncio.create_task(self._accept_all())

    async def close(self) -> None:
        """Accept the connections that are already waiting, as far as there is room, since their requests may be here.
        Accept no more after that."""
        if platforms.admit_no_more(self.listening):
            await asyncio.sleep(HANDSHAKE_S)
        self.is_closing = True
        self.changed.set()
        await self.accepting
        self.listening.close()

    async def _accept_all(self) -> None:
        num_failures = 0
        while await self._has_room():
            try:
                connection, _ = self.listening.accept()
            except BlockingIOError:  # no connection is waiting
                if self.is_closing:
                    return
                await self._next_connection()
            except ConnectionError:  # a client was waiting, and has left
                continue
            except OSError as error:
                log.error("cannot accept connections: %s", error.strerror or error)
                await asyncio.sleep(PAUSES_S[min(num_failures, len(PAUSES_S) - 1)])
                num_failures += 1
            else:
                num_failures = 0
                await self._begin(connection)

    async def _begin(self, connection: socket.socket) -> None:
        protocol = self.make()
        protocol.on_lost = self._forget
        self.open.add(protocol)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connection)
        except OSError as error:
            connection.close()
            self._forget(protocol)
            log.error("cannot handle a connection: %s", error.strerror or error)

    def _forget(self, protocol: PatientProtocol) -> None:
        self.open.discard(protocol)
        self.changed.set()

    async def _has_room(self) -> bool:
        """Wait for room. Returns False if the listener closes before there is any."""
        while len(self.open) >= self.most:
            if self.is_closing:
                return False
            slow = [one for one in self.open if one.can_make_room()]
            if slow:
                min(slow, key=lambda one: one.waiting_since).transport.abort()
            await self._change(LOOK_AGAIN_S)
        return True

    async def _change(self, seconds: float) -> None:
        self.changed.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.changed.wait(), seconds)

    async def _next_connection(self) -> None:
        """Wait until a client wants to connect. At other times nothing watches the socket, which would wake us all the
        time."""
        loop = asyncio.get_running_loop()
        self.changed.clear()
        loop.add_reader(self.listening, self.changed.set)
        try:
            await self.changed.wait()
        finally:
            loop.remove_reader(self.listening)


class BoundedServer(uvicorn.Server):
    """uvicorn's server with a limited number of connections."""

    def __init__(self, config: uvicorn.Config, max_connections: int) -> None:
        super().__init__(config)
        self.max_connections = max_connections
        self.servers = []  # asyncio's own are not used
        self.listeners: list[Listener] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        self.listeners = [Listener(each, self.max_connections, self._protocol) for each in sockets or []]
        self.started = True

    def _protocol(self) -> PatientProtocol:
        return PatientProtocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in self.listeners:
            await listener.close()
        await super().shutdown(sockets)
