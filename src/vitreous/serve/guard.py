"""Access: Host, Origin, Sec-Fetch-Site and token are checked before anything else of a request.

A page of another site can make a browser send requests here. It cannot forge Host (if a name is rebound to this
address, Host still has the foreign name) or Origin, so both must be ours. No CORS header is ever sent.
"""

import hmac
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PROBES = ("/healthz", "/readyz")
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_ENCODED = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


class Doors:
    """The names under which this service may be reached, and the token that it requires."""

    def __init__(self, address: str, port: int, host_names: tuple[str, ...] = (), token: str | None = None) -> None:
        own = ["127.0.0.1", "localhost", "[::1]"]
        if not ipaddress.ip_address(address).is_unspecified:
            own.append(f"[{address}]" if ":" in address else address)
        self.hosts = {f"{name}:{port}" for name in (*own, *host_names)} | set(host_names)
        if port == 80:  # browsers leave it out
            self.hosts |= set(own)
        self.hosts = {host.lower() for host in self.hosts}
        self.token = None if token is None else token.encode()

    def refusal(self, scope: Scope, is_public: bool) -> tuple[int, str] | None:
        """Status and reason, or None for a request that may pass."""
        found: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            found.setdefault(name, []).append(value)
        hosts = found.get(b"host", [])
        if len(hosts) != 1 or hosts[0].decode("latin-1").lower() not in self.hosts:
            return 403, "this Host is not served here: allow it with --host-name"
        if any(not self._is_ours(origin) for origin in found.get(b"origin", [])):
            return 403, "requests from other sites are refused (Origin)"
        if is_public:
            return None
        if any(site not in (b"same-origin", b"none") for site in found.get(b"sec-fetch-site", [])):
            return 403, "requests from other sites are refused (Sec-Fetch-Site)"
        if self.token is not None and not self._is_shown(found.get(b"authorization", [])):
            return 401, "a token is required: send the header Authorization: Bearer TOKEN"
        return None

    def _is_ours(self, origin: bytes) -> bool:
        scheme, separator, host = origin.decode("latin-1").lower().partition("://")
        return separator == "://" and scheme in ("http", "https") and host in self.hosts

    def _is_shown(self, authorization: list[bytes]) -> bool:
        if len(authorization) != 1 or self.token is None:
            return False
        scheme, _, shown = authorization[0].partition(b" ")
        # In constant time: the time for a wrong token must not tell how much of it is right.
        return hmac.compare_digest(shown.strip(), self.token) and scheme.lower() == b"bearer"


class Guard:
    """Refuses the requests that `Doors` refuses, and adds security headers to every response."""

    def __init__(
        self,
        app: App,
        doors: Doors,
        public: frozenset[str],
        count: Callable[[Scope, int], None],
        is_stopping: Callable[[], bool],
    ) -> None:
        self.app, self.doors, self.public, self.count, self.is_stopping = app, doors, public, count, is_stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_ENCODED]
                if self.is_stopping():  # or clients would reuse a connection that is about to close
                    message["headers"].append((b"connection", b"close"))
                self.count(scope, message["status"])
            await send(message)

        is_public = scope["path"] in self.public and scope["method"] in ("GET", "HEAD")
        refusal = self.doors.refusal(scope, is_public)
        if refusal is None:
            await self.app(scope, receive, sending)
        else:
            await refuse(sending, *refusal)


async def refuse(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
