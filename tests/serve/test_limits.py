"""What a client may send to the real server, and what the document says of it."""

import socket

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from running import png
from schemathesis import GenerationMode


def head(server, *lines: str) -> bytes:
    return "\r\n".join(["POST /v1/predict HTTP/1.1", f"host: 127.0.0.1:{server.port}", *lines, "", ""]).encode()


def answer_to(server, *parts: bytes) -> bytes:
    with socket.create_connection(server.address, timeout=30) as client:
        for part in parts:
            client.sendall(part)
        return client.recv(10_000)


def test_a_body_over_the_limit_is_refused_unread(server):
    """The head alone brings the answer."""
    found = answer_to(server, head(server, "content-type: image/png", "content-length: 2000001"))
    assert found.startswith(b"HTTP/1.1 413")
    huge = answer_to(server, head(server, "content-type: image/png", f"content-length: {10**19}"))
    assert huge.startswith(b"HTTP/1.1 413")
    found = answer_to(server, head(server, "content-length: 9999999", "expect: 100-continue"))
    assert found.startswith(b"HTTP/1.1 413")  # and not 100
    whole = server.client.post("/v1/predict", content=b"x" * 2_000_001, headers={"content-type": "image/png"})
    assert whole.status_code == 413  # also for a client that sends first and reads then


def test_a_body_of_unknown_length_is_refused_at_the_limit(server):
    chunk = b"%x\r\n" % 100_000 + b"x" * 100_000 + b"\r\n"
    found = answer_to(server, head(server, "content-type: image/png", "transfer-encoding: chunked"), *[chunk] * 21)
    assert found.startswith(b"HTTP/1.1 413")


def test_a_body_in_small_chunks_is_read(server):
    data = png(1)
    chunks = [b"%x\r\n" % len(data[at : at + 99]) + data[at : at + 99] + b"\r\n" for at in range(0, len(data), 99)]
    found = answer_to(
        server, head(server, "content-type: image/png", "transfer-encoding: chunked"), *chunks, b"0\r\n\r\n"
    )
    assert found.startswith(b"HTTP/1.1 200")


def test_clients_that_break_off_leave_nothing_behind(server):
    for number in range(50):
        with socket.create_connection(server.address, timeout=30) as client:
            client.sendall(head(server, "content-type: image/png", "content-length: 500000") + b"x" * number * 1000)
    server.wait_for(lambda: server.metric("vitreous_queue_pictures") == 0)
    assert server.predict(png(1)).status_code == 200


def test_too_many_pictures(server):
    assert server.predict(*[png(seed) for seed in range(16)]).status_code == 200
    refused = server.predict(*[png(seed) for seed in range(17)])
    assert refused.status_code == 413
    assert "16 pictures" in refused.json()["error"]


# ---- the OpenAPI document


QUIET = list(HealthCheck)
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_requests_made_from_the_document_find_no_failure(server, mode):
    """schemathesis draws requests, good and bad, from /openapi.json."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    schemathesis.checks.load_all_checks()
    checks = schemathesis.checks.CHECKS.get_by_names(CHECKS)
    codes = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue  # what takes nothing cannot be given anything wrong
        cases = operation.as_strategy(generation_mode=mode)

        @settings(max_examples=12, deadline=None, derandomize=True, database=None, suppress_health_check=QUIET)
        @given(case=cases)
        def ask(case):
            response = case.call()
            codes.add(response.status_code)
            case.validate_response(response, checks=checks)

        ask()
    assert codes
