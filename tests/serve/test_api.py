"""The endpoints, over real sockets."""

import asyncio
import base64
import io
import json
import re

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from running import CLASSES, png, unpacked

from vitreous.inspection.attention import attention
from vitreous.inspection.layout import layout
from vitreous.inspection.positions import position_similarity
from vitreous.inspection.rollout import rollout
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.serve.api import build_app
from vitreous.serve.service import Service
from vitreous.serve.settings import ServeSettings
from vitreous.serve.supervisor import Reply


@pytest.fixture(scope="module")
def predictor(run):
    return TorchPredictor.load(run)


def probabilities(result: dict) -> dict[str, float]:
    return {each["label"]: each["probability"] for each in result["top"]}


# ---- predict


def test_three_kinds_of_bodies_have_one_answer(server, predictor):
    data = png(1)
    bodies = (
        {"files": [("pictures", ("a.png", data))]},
        {"json": {"pictures": [base64.b64encode(data).decode()]}},
        {"content": data, "headers": {"content-type": "image/png"}},
    )
    expected = predictor(data)
    for body in bodies:
        answer = server.client.post("/v1/predict", params={"top": 4}, **body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == "coloured"
        (result,) = answer.json()["results"]
        assert result["label"] == expected.best
        assert [each["label"] for each in result["top"]] == [label for label, _ in expected.top(4)]
        assert list(probabilities(result).values()) == pytest.approx([value for _, value in expected.top(4)], abs=1e-5)


def test_options(server, predictor):
    data = png(2)
    (result,) = server.predict(data, top=1, coverage=0.9, abstain=1).json()["results"]
    expected = predictor(data)
    assert len(result["top"]) == 1
    assert result["label"] is None
    assert tuple(result["set"]) == expected.prediction_set(0.9)
    assert server.predict(data, abstain=0).json()["results"][0]["label"] == expected.best
    for wrong in ({"coverage": 0.5}, {"coverage": 2}, {"top": 0}, {"top": "x"}, {"abstain": -1}):
        refused = server.predict(data, **wrong)
        assert refused.status_code == 422
        assert refused.json().keys() == {"error"}
    assert "0.9, 0.99" in server.predict(data, coverage=0.5).json()["error"]


@pytest.mark.parametrize(
    ("path", "option", "words"),
    [
        ("detect", "scor", "/v1/detect has no option 'scor'. Did you mean score?"),
        ("predict", "k", "/v1/predict has no option 'k'. It has model, top, coverage, abstain"),
        ("attention", "topp", "Did you mean top?"),
        ("neighbours", "x" * 5000, "It has model, num"),
    ],
)
def test_an_option_that_there_is_not_is_refused(server, path, option, words):
    answer = server.client.post(f"/v1/{path}", params={option: 1, "model": "x"}, content=png(1))
    assert answer.status_code == 400 and words in answer.json()["error"] and len(answer.text) < 200


def test_a_second_model(server, model):
    data = png(3)
    other = TorchPredictor.load(model)(data)
    (result,) = server.predict(data, model="tiny").json()["results"]
    assert result["top"][0]["probability"] == pytest.approx(other.confidence, abs=1e-5)
    for name in ("../tiny", "x" * 5000):
        refused = server.predict(data, model=name)
        assert refused.status_code == 404 and len(refused.text) < 200


def test_a_hundred_clients_get_their_own_answers_whatever_the_batches(server, predictor):
    """Sent at once, so that batches form; log-probabilities times the temperature are logits but for a constant."""
    pictures = [png(1000 + number) for number in range(100)]

    async def ask_all() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as client:
            asked = [
                client.post("/v1/predict", params={"top": 4}, content=data, headers={"content-type": "image/png"})
                for data in pictures
            ]
            return await asyncio.gather(*asked)

    before = server.metric("vitreous_batch_pictures_count")
    answers = asyncio.run(ask_all())
    num_batches = server.metric("vitreous_batch_pictures_count") - before
    assert [answer.status_code for answer in answers] == [200] * 100
    assert num_batches < 100  # some pictures did go through together
    best = set()
    for data, answer in zip(pictures, answers, strict=True):
        (result,) = answer.json()["results"]
        expected = predictor(data)
        assert result["label"] == expected.best
        served = np.log([probabilities(result)[name] for name in CLASSES]) * 1.7
        alone = np.log(expected.probabilities) * 1.7
        np.testing.assert_allclose(served, alone, atol=1e-4)
        best.add(round(expected.confidence, 6))
    assert len(best) == 100  # or else a mix-up could go unseen


def test_several_pictures_keep_their_order_and_bad_ones_their_place(server, predictor):
    pictures = [png(4), b"no picture", png(5)]
    answer = server.predict(*pictures)
    assert answer.status_code == 200
    first, second, third = answer.json()["results"]
    assert first["top"][0]["probability"] == pytest.approx(predictor(pictures[0]).confidence, abs=1e-5)
    assert "known format" in second["error"]
    assert third["top"][0]["probability"] == pytest.approx(predictor(pictures[2]).confidence, abs=1e-5)


def bomb() -> bytes:
    """400 megapixels of nothing, in some kilobytes."""
    stream = io.BytesIO()
    Image.new("1", (20000, 20000)).save(stream, "png")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"hello, this is text", "known format"),
        (png(1)[:-30], ""),
        (png(1)[:20], ""),
        (b"\xff\xd8\xff\xe0", "truncated"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 100, "damaged"),
        (b"GIF89a" + b"\xff" * 50, ""),
        (b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>", "known format"),
        (b"http://127.0.0.1/picture.png", "known format"),
        (bomb(), "20000 x 20000 pixels"),
    ],
)
def test_bad_pictures_are_refused_with_a_reason(server, data, reason):
    for path in ("/v1/predict", "/v1/embed", "/v1/attention", "/v1/neighbours"):
        answer = server.client.post(path, content=data, headers={"content-type": "image/png"})
        assert answer.status_code == 422, answer.text
        assert reason in answer.json()["error"]
    assert len(server.workers()) == 2


# ---- embed, attention, neighbours


def test_embed(server, predictor):
    data = png(6)
    answer = server.client.post("/v1/embed", content=data, headers={"content-type": "image/png"}).json()
    with torch.inference_mode():
        expected = predictor.task.encoder(predictor.inputs(data)).pooled[0]
    assert answer["width"] == 32
    np.testing.assert_allclose(answer["results"][0]["embedding"], expected, atol=1e-5)


def test_attention(server, predictor):
    data = png(7)
    answer = server.client.post("/v1/attention", content=data, headers={"content-type": "image/png"}, params={"top": 2})
    header, arrays = unpacked(answer.content)
    encoder, images = predictor.task.encoder, predictor.inputs(data)
    num = layout(encoder).num_tokens
    expected = torch.stack(attention(encoder, images, rows=range(num)).weights, dim=1)[0]  # (layers, heads, N, N)
    sent = [arrays[f"weights_{n}"][:, 0] / 255 * arrays[f"scale_{n}"][:, 0, :, None] for n in (1, 2)]
    found = np.stack(sent)
    assert found.shape == expected.shape == (2, 2, 21, 21)
    np.testing.assert_allclose(found, expected, atol=float(expected.max()) / 500)
    np.testing.assert_allclose(
        (arrays["rollout"] / 255 * arrays["rollout_scale"][:, None])[0], rollout(encoder, images)[0], atol=0.004
    )
    assert header["prediction"]["label"] == predictor(data).best
    assert len(header["prediction"]["top"]) == 2
    place = {"grid": [4, 5], "prefix": 1, "patch_px": [8, 8], "pool": "class"}
    assert header["layers"][1] == {"name": "layer 2", "heads": 2, "grouped": "", "looking": place, "seen": place}
    seen = Image.open(io.BytesIO(base64.b64decode(header["seen"].partition(",")[2])))
    assert seen.size == (40, 32)
    several = [("pictures", ("a.png", data)), ("pictures", ("b.png", data))]
    assert server.client.post("/v1/attention", files=several).status_code == 413


def test_neighbours(server, run):
    server.wait_for(lambda: neighbours(server, png(1))["indexed"] == neighbours(server, png(1))["total"] > 10)
    trained_on = run / "data" / "green" / "3.png"
    others = [run / "data" / "green" / f"{index}.png" for index in (0, 1, 2, 4)]
    found = [neighbours(server, path.read_bytes(), num=3)["neighbours"] for path in (trained_on, *others)]
    assert all(len(each) == 3 for each in found)
    # Most of the pictures are training pictures, and the nearest to such a one is itself.
    itself = [each[0] for each in found if each[0]["similarity"] == pytest.approx(1, abs=1e-4)]
    assert len(itself) >= 2
    assert {each["label"] for each in itself} == {"green"}
    assert all(each["picture"].startswith("data:image/png;base64,") for each in found[0])
    assert (
        "does not say"
        in server.client.post(
            "/v1/neighbours?model=tiny", content=png(1), headers={"content-type": "image/png"}
        ).json()["error"]
    )


def test_neighbours_wait_for_the_index(model, monkeypatch):
    """Asked while nothing is indexed yet: no 503, no empty list, but an answer as soon as there is one."""
    service = Service(ServeSettings(models=(str(model),), neighbours=3), ["tiny"])
    (process,) = service.models.values()
    process.is_ready, process.description, process.queue = True, {"can": ["embed"]}, 1
    unit = np.ones(4, np.float32)

    async def embed(kind, pictures, options):
        return [Reply(None, unit.tobytes())]

    monkeypatch.setattr(process, "ask", embed)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=build_app(service, {}))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            headers = {"content-type": "image/png"}
            asked = asyncio.create_task(client.post("/v1/neighbours", content=png(1), headers=headers))
            await asyncio.sleep(0.1)
            process._handle({"to_index": 3}, b"")
            for number in range(3):
                assert not asked.done()
                process._handle({"indexed": number, "label": "red", "picture": "data:"}, unit.tobytes())
                await asyncio.sleep(0.1)
            return await asked

    answer = asyncio.run(ask())
    assert (answer.status_code, answer.json()["indexed"], len(answer.json()["neighbours"])) == (200, 3, 3)


def neighbours(server, data: bytes, **options) -> dict:
    answer = server.client.post("/v1/neighbours", content=data, headers={"content-type": "image/png"}, params=options)
    assert answer.status_code == 200, answer.text
    return answer.json()


# ---- facts


def test_model(server, run, predictor):
    first, second = server.client.get("/v1/model").json()["models"]
    assert (first["name"], second["name"]) == ("coloured", "tiny")
    assert first["classes"] == list(CLASSES)
    assert set(first["can"]) == {"predict", "embed", "attention"}
    assert first["tokens"] == {
        "grid": [4, 5],
        "prefix": 1,
        "patch_px": [8, 8],
        "layers": 2,
        "heads": 2,
        "pool": "class",
    }
    assert first["coverages"] == [0.9, 0.99]
    assert first["positions"]["learned"] and first["calibrated"]
    levels = np.frombuffer(base64.b64decode(first["positions"]["similarity"]), np.uint8).reshape(4, 5, 4, 5)
    np.testing.assert_allclose(levels / 127.5 - 1, position_similarity(predictor.task.encoder), atol=0.005)
    assert str(run.parent) not in json.dumps(first)


def test_examples(server):
    server.wait_for(lambda: server.client.get("/v1/examples").json()["examples"])
    examples = server.client.get("/v1/examples").json()["examples"]
    assert {each["label"] for each in examples} == {"red", "green", "blue"}
    data = base64.b64decode(examples[0]["picture"].partition(",")[2])
    assert server.predict(data).status_code == 200
    photographs = server.client.get("/v1/examples?model=tiny").json()["examples"]  # it has no data of its own
    assert [each["label"] for each in photographs] == ["cat", "coffee", "rocket", "astronaut"]


def test_probes_and_metrics(server):
    assert server.client.get("/healthz").json() == {"status": "alive"}
    assert server.client.get("/readyz").json() == {"status": "ready"}
    server.client.get("/" + "x" * 50)
    endpoints = [path for path in server.client.get("/openapi.json").json()["paths"] if path.startswith("/v1/")]
    for path in endpoints:
        server.client.post(path)
    families = {family.name: family for family in text_string_to_metric_families(server.client.get("/metrics").text)}
    assert {sample.labels["code"] for sample in families["vitreous_requests"].samples} >= {"200"}
    paths = {sample.labels["path"] for sample in families["vitreous_requests"].samples}
    assert {"other", "/healthz", *endpoints} <= paths
    assert "/" + "x" * 50 not in paths
    assert {"vitreous_queue_pictures", "vitreous_batch_pictures", "vitreous_request_seconds"} <= families.keys()
    assert sum(sample.value for sample in families["vitreous_queue_pictures"].samples) == 0


def test_errors_are_json_everywhere(server):
    for method, path, status in (("GET", "/nothing", 404), ("PUT", "/v1/predict", 405), ("GET", "/v1/predict", 405)):
        answer = server.client.request(method, path)
        assert answer.status_code == status
        assert answer.json().keys() == {"error"}


# ---- the page's files


def test_the_page(server):
    page = server.client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert server.client.get("/index.html").content == page.content
    assert server.client.head("/").content == b""
    again = server.client.get("/", headers={"if-none-match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert server.client.post("/").status_code == 405
    named = set(re.findall(r'(?:src|href)="(/?[^":#]+)"', page.text))
    assert named
    for name in named:
        assert server.client.get("/" + name.lstrip("/")).status_code == 200, name
