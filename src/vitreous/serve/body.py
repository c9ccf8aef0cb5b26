"""Read the body of a request. Pictures: multipart, JSON with base64, or the raw bytes of one. Texts: JSON.

The body is kept in memory and never written to disk. It is parsed with `bytes.split` and `bytes.count`, whose time
depends on its length alone, not on its content.
"""

import asyncio
import base64
import binascii
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request

START_S = 10.0  # time that any body may take
LEAST_BYTES_A_S = 50_000  # rate that a longer body must keep up
TOTAL_BYTES = 256_000_000  # memory that all bodies together may take
MAX_HEAD = 4096  # bytes in the headers of one part of a multipart body
MAX_TEXT_BYTES, MOST_TEXTS = 65_536, 100  # per request
TEXTS = re.compile(rb'\s*\{\s*"texts"\s*:')


class Refused(Exception):  # noqa: N818 - an answer, not a failure of ours
    """A request without a result: the status, and one line for the client."""

    def __init__(self, status: int, reason: str, retry_s: int | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.retry_s = status, reason, retry_s


class Bodies:
    """Limits the size of each body, and the memory that the bodies of all current requests take."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held = 0

    def check(self, request: Request) -> None:
        """Refuse a body whose declared size is too large, before a byte of it is read."""
        declared = request.headers.get("content-length")
        if declared is not None and (len(declared) > 15 or int(declared) > self.max_bytes):  # h11: digits only
            raise self._too_large()

    @contextmanager
    def counted(self) -> Iterator["Body"]:
        """A new body, whose memory counts until its request is answered."""
        body = Body(self)
        try:
            yield body
        finally:
            self.held -= body.size

    def _too_large(self) -> Refused:
        return Refused(413, f"the body is larger than the {self.max_bytes / 1e6:g} MB allowed")


class Body:
    def __init__(self, bodies: Bodies) -> None:
        self.bodies, self.size = bodies, 0

    async def read(self, request: Request) -> bytes:
        parts: list[bytes] = []
        began = time.monotonic()
        while True:
            deadline = began + START_S + self.size / LEAST_BYTES_A_S
            try:
                message = await asyncio.wait_for(request.receive(), deadline - time.monotonic())
            except TimeoutError:
                raise Refused(408, "the body arrived too slowly") from None
            if message["type"] == "http.disconnect":
                raise Gone
            part = message.get("body", b"")
            self.size += len(part)
            self.bodies.held += len(part)
            if self.size > self.bodies.max_bytes:
                raise self.bodies._too_large()
            if self.bodies.held > TOTAL_BYTES:
                raise Refused(503, "too much is being uploaded at once; try again", retry_s=1)
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)


class Gone(Exception):  # noqa: N818
    """The client has disconnected."""


# ---- the content


def pictures_in(body: bytes, content_type: str, max_pictures: int) -> list[bytes]:
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        pictures = _from_multipart(body, content_type, max_pictures)
    elif kind == "application/json":
        pictures = _from_json(body, max_pictures)
    elif kind.startswith("image/") or kind == "application/octet-stream":
        pictures = [body]
    else:
        raise Refused(
            415, "send multipart/form-data with `pictures`, application/json with base64, or image/* with one picture"
        )
    if not pictures:
        raise Refused(422, "the request has no pictures: send them in the field `pictures`")
    if len(pictures) > max_pictures:
        raise _too_many(max_pictures)
    return pictures


def texts_in(body: bytes, content_type: str) -> list[str] | None:
    """The texts of {"texts": [...]}; None if the body is anything else."""
    if content_type.partition(";")[0].strip().lower() != "application/json" or not TEXTS.match(body):
        return None
    if len(body) > MAX_TEXT_BYTES:
        raise Refused(413, f"the texts of one request may have at most {MAX_TEXT_BYTES:,} bytes together")
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not valid JSON") from None
    texts = given["texts"] if len(given) == 1 else None
    if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
        raise Refused(422, 'the JSON must be {"texts": [...]} with non-empty texts, and nothing else')
    if not 1 <= len(texts) <= MOST_TEXTS:
        raise Refused(422, f"{len(texts)} texts: a request may have 1 to {MOST_TEXTS}")
    return [text.encode("utf-8", "replace").decode() for text in texts]  # JSON may contain lone surrogates


def _from_multipart(body: bytes, content_type: str, max_pictures: int) -> list[bytes]:
    """The parts called `pictures` (RFC 7578); others are ignored."""
    found = re.search(r'boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))', content_type, re.IGNORECASE)
    if found is None:
        raise Refused(400, "the multipart body has no boundary")
    delimiter = b"\r\n--" + (found[1] or found[2]).encode("latin-1")
    parts = (b"\r\n" + body).split(delimiter, 2 * max_pictures + 8)
    if len(parts) < 2 or not parts[-1].startswith(b"--"):
        raise Refused(400, "the multipart body is cut off, has too many parts, or does not use its boundary")
    pictures = []
    for part in parts[1:-1]:
        head, separator, content = part.partition(b"\r\n\r\n")
        if not separator or len(head) > MAX_HEAD:
            raise Refused(400, "a part of the multipart body has no headers, or very long ones")
        if re.search(rb'^content-disposition:[^\r\n]*[;\s]name="?pictures(\[\])?"?\s*(;|\r|$)', head, re.I | re.M):
            pictures.append(content)
    return pictures


def _from_json(body: bytes, max_pictures: int) -> list[bytes]:
    # Base64 contains none of these characters, so one object with one list cannot have more of them. A body of a
    # million brackets is refused before it becomes a million lists.
    if body.count(b"{") > 1 or body.count(b"[") > 1 or body.count(b":") > 1:
        raise Refused(422, 'the JSON must be {"pictures": [...]} with base64 strings, and nothing else')
    if body.count(b",") >= max_pictures:
        raise _too_many(max_pictures)
    try:
        given = json.loads(body)
    except ValueError:
        raise Refused(400, "the body is not valid JSON") from None
    texts = given.get("pictures") if isinstance(given, dict) and len(given) == 1 else None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise Refused(422, 'the JSON must be {"pictures": [...]} with base64 strings, and nothing else')
    try:
        return [base64.b64decode(text, validate=True) for text in texts]
    except (binascii.Error, ValueError) as error:
        raise Refused(422, f"a picture is not valid base64: {error}") from None


def _too_many(max_pictures: int) -> Refused:
    return Refused(413, f"a request may have at most {max_pictures} pictures")
