import base64
import json

import pytest
from running import png

from vitreous.serve.body import Refused, pictures_in

FORM = 'multipart/form-data; boundary="a b"'


def part(content: bytes, name: str = 'name="pictures"', more: str = "") -> bytes:
    head = f"--a b\r\nContent-Disposition: form-data; {name}; filename=x\r\n{more}\r\n"
    return head.encode() + content + b"\r\n"


def test_multipart():
    for content in (png(1), b"", b"\r\n", b"x--a b", b"\r\n--a", b"\r\n\r\n"):
        body = part(content) + part(b"other", 'name="other"') + part(b"2", "NAME=pictures") + b"--a b--\r\n"
        assert pictures_in(body, FORM, 4) == [content, b"2"]
    body = b"preamble\r\n" + part(b"1", 'filename="pictures"; name="pictures[]"', "Content-Type: image/png\r\n")
    assert pictures_in(body + b"--a b--", 'Multipart/Form-Data; charset=x; BOUNDARY="a b"', 4) == [b"1"]


def test_json():
    pictures = [b"", b"a", png(1)]
    body = json.dumps({"pictures": [base64.b64encode(each).decode() for each in pictures]}).encode()
    assert pictures_in(body, "application/json; charset=utf-8", 3) == pictures


def test_plain_bytes():
    assert pictures_in(b"x", "image/png", 1) == [b"x"]
    assert pictures_in(b"x", "application/octet-stream", 1) == [b"x"]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"x", "", 415),
        (b"x", "text/plain", 415),
        (b"a=b", "application/x-www-form-urlencoded", 415),
        (b"", "multipart/form-data", 400),
        (b"", FORM, 400),
        (part(b"1"), FORM, 400),  # no end
        (part(b"1") + b"--a b--", "multipart/form-data; boundary=other", 400),
        (b"--a b\r\nno head\r\n--a b--", FORM, 400),
        (b"--a b\r\n" + b"x" * 5000 + b"\r\n\r\n1\r\n--a b--", FORM, 400),
        (b"--a b--", FORM, 422),
        (part(b"1", 'name="picture"') + b"--a b--", FORM, 422),
        (part(b"1", 'filename="pictures"') + b"--a b--", FORM, 422),
        (part(b"1") * 3 + b"--a b--", FORM, 413),
        (part(b"1") * 100_000 + b"--a b--", FORM, 400),
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"[]", "application/json", 422),
        (b"{}", "application/json", 422),
        (b"1", "application/json", 422),
        (b"9" * 5000, "application/json", 400),
        (b'{"pictures": null}', "application/json", 422),
        (b'{"pictures": "AAAA"}', "application/json", 422),
        (b'{"pictures": [1]}', "application/json", 422),
        (b'{"pictures": []}', "application/json", 422),
        (b'{"pictures": ["AAA"]}', "application/json", 422),
        (b'{"pictures": ["AA A="]}', "application/json", 422),
        ('{"pictures": ["\u00e4"]}'.encode(), "application/json", 422),
        (b'{"pictures": ["", "", ""]}', "application/json", 413),
        (b'{"pictures": ["http://127.0.0.1/a.png"]}', "application/json", 422),
        (b"[" * 1_000_000, "application/json", 422),
        (b'{"pictures": [' + b"{}," * 1_000_000, "application/json", 422),
        (b'{"pictures": [' + b"0," * 1_000_000, "application/json", 413),
    ],
)
def test_refusals(body, kind, status):
    with pytest.raises(Refused) as refused:
        pictures_in(body, kind, 2)
    assert refused.value.status == status
    assert "\n" not in refused.value.reason
