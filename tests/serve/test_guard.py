"""Who may ask: names, origins and tokens; and paths, which lead nowhere."""

import socket

import pytest
from running import Running, png

from vitreous.serve.guard import SECURITY_HEADERS, Doors

TOKEN = "a-token-of-some-length"


def scope(*headers: tuple[str, str]) -> dict:
    return {"headers": [(name.encode(), value.encode("latin-1")) for name, value in headers]}


HOSTS = [
    ("127.0.0.1:8000", True),
    ("localhost:8000", True),
    ("LOCALHOST:8000", True),
    ("[::1]:8000", True),
    ("vit.example", True),
    ("vit.example:8000", True),
    ("Vit.Example", True),
    ("127.0.0.1", False),
    ("127.0.0.1:8001", False),
    ("localhost", False),
    ("localhost.:8000", False),
    ("attacker.example", False),
    ("attacker.example:8000", False),
    ("127.0.0.1.attacker.example:8000", False),
    ("localhost:8000.attacker.example", False),
    ("localhost:8000@attacker.example", False),
    ("attacker.example#localhost:8000", False),
    ("0.0.0.0:8000", False),
    ("127.1:8000", False),
    ("2130706433:8000", False),
    ("0x7f000001:8000", False),
    ("[::ffff:127.0.0.1]:8000", False),
    ("169.254.169.254", False),
    ("localhost:8000, attacker.example", False),
    (" localhost:8000", False),
    ("localhost:8000/", False),
    ("vit.example.attacker.example", False),
    ("", False),
]
ORIGINS = [
    ("http://127.0.0.1:8000", True),
    ("http://localhost:8000", True),
    ("http://[::1]:8000", True),
    ("https://vit.example", True),
    ("null", False),
    ("", False),
    ("http://attacker.example", False),
    ("http://attacker.example:8000", False),
    ("http://127.0.0.1", False),
    ("http://127.0.0.1:8001", False),
    ("http://127.0.0.1:8000.attacker.example", False),
    ("http://127.0.0.1:8000@attacker.example", False),
    ("http://localhost:8000/", False),
    ("file://", False),
    ("file://localhost:8000", False),
    ("data:text/html,hello", False),
    ("chrome-extension://localhost:8000", False),
    ("blob:http://localhost:8000", False),
    ("ws://localhost:8000", False),
    ("javascript:alert(1)", False),
    ("localhost:8000", False),
    ("http:/localhost:8000", False),
    ("http://localhost:8000 http://attacker.example", False),
    ("https://vit.example.attacker.example", False),
    ("http://xn--lcalhost-6bf:8000", False),
]
TOKENS = [
    (f"Bearer {TOKEN}", True),
    (f"bearer {TOKEN}", True),
    (TOKEN, False),
    (f"Basic {TOKEN}", False),
    ("Bearer ", False),
    ("Bearer", False),
    (f"Bearer {TOKEN[:-1]}", False),
    (f"Bearer {TOKEN}x", False),
    (f"Bearer {TOKEN.upper()}", False),
    (f"Bearer {TOKEN} {TOKEN}", False),
    ("Bearer null", False),
    ("", False),
]


@pytest.mark.parametrize(("host", "passes"), HOSTS)
def test_hosts(host, passes):
    doors = Doors("127.0.0.1", 8000, ("vit.example",))
    for is_public in (True, False):
        refusal = doors.refusal(scope(("host", host)), is_public)
        assert (refusal is None) == passes
        assert passes or refusal[0] == 403


@pytest.mark.parametrize(("origin", "passes"), ORIGINS)
def test_origins(origin, passes):
    doors = Doors("127.0.0.1", 8000, ("vit.example",))
    for is_public in (True, False):
        refusal = doors.refusal(scope(("host", "localhost:8000"), ("origin", origin)), is_public)
        assert (refusal is None) == passes
        assert passes or refusal[0] == 403


@pytest.mark.parametrize(("authorization", "passes"), TOKENS)
def test_tokens(authorization, passes):
    doors = Doors("0.0.0.0", 8000, token=TOKEN)
    headers = [("host", "localhost:8000"), ("authorization", authorization)]
    refusal = doors.refusal(scope(*headers), is_public=False)
    assert (refusal is None) == passes
    assert passes or refusal[0] == 401
    assert doors.refusal(scope(*headers), is_public=True) is None


def test_oddities():
    doors = Doors("127.0.0.1", 8000, token=TOKEN)
    host, shown = ("host", "localhost:8000"), ("authorization", f"Bearer {TOKEN}")
    assert doors.refusal(scope(host, shown), False) is None
    assert doors.refusal(scope(shown), False)[0] == 403  # no host at all
    assert doors.refusal(scope(host, ("host", "attacker.example"), shown), False)[0] == 403
    assert doors.refusal(scope(host, shown, ("authorization", "Bearer other")), False)[0] == 401
    own = ("origin", "http://localhost:8000")
    assert doors.refusal(scope(host, shown, own, ("origin", "null")), False)[0] == 403
    for site, passes in (("same-origin", True), ("none", True), ("cross-site", False), ("same-site", False)):
        assert (doors.refusal(scope(host, shown, ("sec-fetch-site", site)), False) is None) == passes
        assert (
            doors.refusal(scope(host, ("sec-fetch-site", site)), True) is None
        )  # a link to the page may stand anywhere
    assert Doors("127.0.0.1", 80).refusal(scope(("host", "localhost")), False) is None
    assert Doors("192.0.2.7", 8000).refusal(scope(("host", "192.0.2.7:8000")), False) is None


# ---- over the wire


def ask(address, method: str, path: str, *headers: tuple[str, str], body: bytes = b"") -> tuple[int, str, bytes]:
    """Status, head and body of one request written by hand, which no library tidies up."""
    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
    with socket.create_connection(address, timeout=20) as client:
        client.sendall(f"{method} {path} HTTP/1.1\r\n{head}connection: close\r\n\r\n".encode("latin-1") + body)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    top, _, rest = answer.partition(b"\r\n\r\n")
    return int(top.split()[1]) if top else 0, top.decode().lower(), rest


PATHS = ["/", "/v1/model", "/v1/examples", "/metrics", "/openapi.json", "/healthz", "/readyz", "/v1/predict"]


@pytest.mark.parametrize("path", PATHS)
def test_every_path_is_behind_the_door(server, path):
    method = "POST" if path == "/v1/predict" else "GET"
    own = ("host", f"127.0.0.1:{server.port}")
    for wrong in (
        [("host", "attacker.example")],
        [own, ("origin", "http://attacker.example")],
        [own, ("origin", "null")],
    ):
        status, head, body = ask(server.address, method, path, *wrong)
        assert status == 403
        assert b'{"error"' in body
        assert "access-control-" not in head
    assert ask(server.address, method, path, own)[0] in (200, 404, 415)


def test_preflights_and_other_methods_get_nothing(server):
    own = ("host", f"127.0.0.1:{server.port}")
    asked = ("access-control-request-method", "POST")
    assert ask(server.address, "OPTIONS", "/v1/predict", own, ("origin", "http://attacker.example"), asked)[0] == 403
    status, head, _ = ask(server.address, "OPTIONS", "/v1/predict", own, asked)
    assert status == 405
    assert "access-control-" not in head
    for method in ("TRACE", "CONNECT", "PUT", "DELETE", "PATCH"):
        assert ask(server.address, method, "/v1/predict", own)[0] == 405
    upgrade = [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")]
    assert ask(server.address, "GET", "/v1/predict", own, *upgrade, ("sec-websocket-key", "x" * 22 + "=="))[0] == 405


def test_headers_of_every_answer(server):
    for path in ("/healthz", "/v1/model", "/nothing", "/v1/predict"):
        answer = server.client.get(path)
        assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        assert "server" not in answer.headers
    policy = SECURITY_HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert "*" not in policy


def test_a_token_opens_the_door(model):
    running = Running(model, "--address", "0.0.0.0", "--neighbours", 0, token=TOKEN)
    try:
        own = ("host", f"localhost:{running.port}")
        assert running.predict(png(1)).status_code == 200
        for path in ("/v1/model", "/metrics", "/openapi.json", "/v1/examples"):
            status, head, _ = ask(running.address, "GET", path, own)
            assert status == 401
            assert "www-authenticate: bearer" in head
        assert ask(running.address, "GET", "/readyz", own)[0] == 200
        assert ask(running.address, "GET", "/v1/model", own, ("authorization", "Bearer wrong-wrong-wrong"))[0] == 401
        assert ask(running.address, "GET", f"/v1/model?token={TOKEN}", own)[0] == 401  # in a header only
    finally:
        assert running.stop() == 0


# ---- paths


def traversals() -> list[str]:
    """500 ways that have led out of a folder somewhere."""
    ups = [
        "../", "..\\", "..%2f", "%2e%2e/", "%2e%2e%2f", "..%5c", "%2e%2e%5c", "..%252f", "%252e%252e%252f", "....//",
        "..;/", "..%c0%af", "%c0%ae%c0%ae/", "..%ef%bc%8f", "..%u2215", ".%2e/", "%2e./", "..//", "../.\\", "..%00/",
    ]  # fmt: skip
    targets = ["etc/passwd", "etc%2fpasswd", "proc/self/environ", "model.json", "pyproject.toml"]
    found = [up * depth + target for up in ups for depth in (1, 2, 3, 6, 12) for target in targets]
    others = [
        "/etc/passwd", "//etc/passwd", "%2fetc%2fpasswd", "file:///etc/passwd", "C:\\windows\\win.ini", "%00", "~root",
        "$HOME", "http://127.0.0.1/", "index.html%00.png", "static/../../served.py", "page/../api.py",
    ]  # fmt: skip
    return found[:488] + others


class Wire:
    """One connection for many requests, written by hand: a library would tidy the paths up."""

    def __init__(self, address) -> None:
        self.host = f"127.0.0.1:{address[1]}"
        self.socket = socket.create_connection(address, timeout=60)
        self.stream = self.socket.makefile("rb")

    def get(self, path: str) -> tuple[int, bytes]:
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nhost: {self.host}\r\n\r\n".encode("latin-1"))
        status = int(self.stream.readline().split()[1])
        length = 0
        while (line := self.stream.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            length = int(value) if name == b"content-length" else length
        return status, self.stream.read(length)

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


def test_no_path_leads_to_the_disk(server, run):
    found = traversals()
    assert len(set(found)) == 500
    secrets = [b"root:", b"import ", b"model_type", str(run).encode(), b"PATH=", b'"weights"']
    wire = Wire(server.address)
    for text in found:
        for path in (f"/{text}", f"/v1/{text}", f"/v1/examples?model={text.replace(' ', '%20')}"):
            status, body = wire.get(path)
            assert status == 404, path
            assert not any(secret in body for secret in secrets)
    wire.close()
    for start in range(0, 500, 16):
        # Names of files go nowhere either.
        files = [("pictures", (text, png(1))) for text in found[start : start + 16]]
        assert server.client.post("/v1/predict?top=1", files=files).status_code == 200
    for text in found[::25]:
        assert server.client.post("/v1/predict", params={"model": text}, content=png(1)).status_code == 404
        assert server.client.post("/v1/predict", files=[(text, png(1))]).status_code == 422
        assert server.client.post("/v1/predict", json={"pictures": [text]}).status_code == 422
        as_text = server.client.post("/v1/predict", content=text.encode(), headers={"content-type": "image/png"})
        assert as_text.status_code == 422  # a path, or an address, is no picture: nothing is fetched
