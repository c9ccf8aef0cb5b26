"""Frames between the HTTP process and a model's process: a JSON header and some bytes, each preceded by its length."""

import asyncio
import json
import socket
import struct
from typing import Any

Header = dict[str, Any]
_LENGTHS = struct.Struct("<II")


def pack(header: Header, blob: bytes = b"") -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(text), len(blob)) + text + blob


async def read(stream: asyncio.StreamReader) -> tuple[Header, bytes]:
    """The next frame. Raises asyncio.IncompleteReadError or an OSError if the other side has gone."""
    num_text, num_blob = _LENGTHS.unpack(await stream.readexactly(_LENGTHS.size))
    header = json.loads(await stream.readexactly(num_text))
    return header, await stream.readexactly(num_blob)


def receive(connection: socket.socket) -> tuple[Header, bytes] | None:
    """The same for a thread that may block. Returns None if the other side has gone."""
    lengths = _exactly(connection, _LENGTHS.size)
    if lengths is None:
        return None
    num_text, num_blob = _LENGTHS.unpack(lengths)
    text, blob = _exactly(connection, num_text), _exactly(connection, num_blob)
    return None if text is None or blob is None else (json.loads(text), blob)


def _exactly(connection: socket.socket, num: int) -> bytes | None:
    parts: list[bytes] = []
    while num:
        try:
            part = connection.recv(min(num, 2**20))
        except ConnectionError:
            return None
        if not part:
            return None
        parts.append(part)
        num -= len(part)
    return b"".join(parts)
