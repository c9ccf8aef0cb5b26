"""A model of pictures and words, and an index that it made, served: names, texts, search, and the page."""

import base64
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from person import visit
from PIL import Image
from running import Running

from browser import chromium, chromium_page  # noqa: F401 - fixtures
from captions import PX, draw_captions, pairs, shrunk_words
from vitreous.cli import main
from vitreous.data.images import read_picture
from vitreous.inspection.windows import windows
from vitreous.jobs.train import train
from vitreous.models.base import Grid
from vitreous.prediction.naming import TEMPLATES
from vitreous.prediction.zero_shot import zero_shot
from vitreous.recipes.words import rendered_clip
from vitreous.serve.words import Words
from vitreous.weights.trained import Trained


def png(number: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pairs().picture(number, PX)).save(stream, "png")
    return stream.getvalue()


@pytest.fixture(scope="module")
def towers(tmp_path_factory):
    """Barely trained: a run of a model of pictures and words."""
    folder = tmp_path_factory.mktemp("towers")
    train(shrunk_words(rendered_clip(), draw_captions(folder / "data"), steps=3), folder / "run", read_test=False)
    return folder / "run"


@pytest.fixture(scope="module")
def index(towers):
    """Half of the pictures as files, the others in a tar file."""
    folder = towers.parent
    main(["index", str(folder / "data"), "--model", str(towers), "--out", str(folder / "index"), "--quiet"])
    return folder / "index"


@pytest.fixture(scope="module")
def server(index):
    running = Running(index)
    yield running
    assert running.stop() == 0
    assert running.errors == ""


def asked(server, path: str, data: bytes | None = None, texts: list[str] | None = None, **options):
    how = {"json": {"texts": texts}} if data is None else {"content": data, "headers": {"content-type": "image/png"}}
    return server.client.post(path, params=options, **how)


def embedded(towers, pictures=(), texts=()) -> np.ndarray:
    trained = Trained.load(towers)
    model, tokenizer, resize = trained.task(), trained.tokenizer(), trained.card.preprocessing
    with torch.no_grad():
        if texts:
            return model.embed_texts(torch.from_numpy(tokenizer(list(texts)))).numpy()
        seen = torch.stack([resize.resized(read_picture(data)) for data in pictures])
        return model.embed_pictures(resize.normalised(seen)).numpy()


def test_what_it_can_is_said(server):
    (about,) = server.client.get("/v1/model").json()["models"]
    assert about["can"] == ["embed", "zero-shot", "search", "attention"]
    assert about["searched"] == 80 and about["width"] == 16


def test_pictures_and_texts_are_embedded_into_one_space(server, towers):
    found = asked(server, "/v1/embed", png(3)).json()["results"]
    np.testing.assert_allclose(found[0]["embedding"], embedded(towers, [png(3)])[0], atol=1e-5)
    texts = ["a red circle", "\N{GRINNING FACE} [{:", "x" * 900]
    found = asked(server, "/v1/embed", texts=texts).json()
    np.testing.assert_allclose([one["embedding"] for one in found["results"]], embedded(towers, texts=texts), atol=1e-5)
    assert found["width"] == 16
    halves = {"content": b'{"texts": ["\\ud83d"]}', "headers": {"content-type": "application/json"}}
    assert server.client.post("/v1/embed", **halves).status_code == 200


@pytest.mark.parametrize(
    ("templates", "expected"), [(None, TEMPLATES), ("none", ("{}",)), ("a {}; {}!", ("a {}", "{}!"))]
)
def test_names_are_told_apart_as_their_classifier_does(server, towers, templates, expected):
    options = {} if templates is None else {"templates": templates}
    names = ["red circle", "blue square", "a [{: green, star"]
    options["classes"] = [", ".join(names[:2]), f'"{names[2]}"']
    (said,) = asked(server, "/v1/zero-shot", png(5), **options).json()["results"]
    trained = Trained.load(towers)
    classifier, resize = zero_shot(trained, names, expected).task(), trained.card.preprocessing
    with torch.no_grad():
        logits = classifier.predict(resize.normalised(resize.resized(read_picture(png(5)))[None])).logits[0]
    shares = dict(zip(names, logits.softmax(dim=0).tolist(), strict=True))
    assert {one["label"]: one["probability"] for one in said["top"]} == pytest.approx(shares, abs=1e-5)
    assert said["label"] == max(shares, key=shares.get) and "places" not in said


def test_places_are_what_is_said_of_the_windows_around_them(server, towers):
    options = {"classes": "red circle", "places": True, "templates": "none"}
    (said,) = asked(server, "/v1/zero-shot", png(5), **options).json()["results"]
    (one,), place = said["top"], said["places"]
    levels = np.frombuffer(base64.b64decode(one["places"]), np.uint8).reshape(place["rows"], place["columns"])
    cosines = place["least"] + levels / 255 * (place["most"] - place["least"])
    model, resize = Trained.load(towers).task(), Trained.load(towers).card.preprocessing
    expected = np.zeros((4, 4))  # a third of a grid of 4 x 4 is one cell
    with torch.no_grad():
        tokens, grid = model.encoder.embed(resize.normalised(resize.resized(read_picture(png(5)))[None]))
        for cell in range(16):
            encoded = model.encoder.encode(tokens[:, [cell]], grid, at=torch.tensor([[cell]]))
            seen = model.projection(model.encoder.pooled(encoded))
            alike = torch.nn.functional.normalize(seen, dim=1)[0].numpy() @ embedded(towers, texts=["red circle"])[0]
            expected[cell // 4, cell % 4] = alike
    np.testing.assert_allclose(cosines, expected, atol=0.01 * (place["most"] - place["least"]) + 1e-5)


def test_one_name_alone_is_compared_with_nothing(server):
    (said,) = asked(server, "/v1/zero-shot", png(5), classes="red circle").json()["results"]
    assert said["label"] is None and said["top"][0]["probability"] is None and -1 <= said["top"][0]["similarity"] <= 1
    assert "match" not in said["top"][0]


def test_a_model_of_pairs_says_whether_each_name_matches_by_itself(towers):
    """SigLIP's bias counts, and the other names do not."""
    trained = Trained.load(towers)
    pairwise = replace(trained.card.task, loss="sigmoid", start_bias=-2.0)
    model = pairwise.build(trained.encoder(), ()).eval()
    words, (picture,) = Words(model, trained.tokenizer(), torch.device("cpu")), torch.eye(16)[:1]
    with torch.inference_mode():
        said = [
            words.said(picture, None, {"classes": names, "templates": ("{}",)}) for names in (["red"], ["red", "b"])
        ]
    alone, among = (next(one for one in each["top"] if one["label"] == "red") for each in said)
    odds = model.log_scale.exp().item() * alone["similarity"] - 2.0
    assert alone["match"] == pytest.approx(1 / (1 + math.exp(-odds)), abs=1e-5) and among["match"] == alone["match"]
    assert alone["probability"] is None and 0 < among["probability"] < 1


def test_windows_cover_every_place_and_none_twice_in_one():
    for grid in (Grid(1, 1), Grid(4, 4), Grid(8, 8), Grid(14, 10), Grid(24, 37)):
        at, cover = windows(grid)
        assert len(at) <= 36 and all(len(set(one)) == len(one) for one in at.tolist())
        torch.testing.assert_close(cover.sum(dim=1), torch.ones(grid.cells))
    at, cover = windows(Grid(14, 10))  # 5 x 3 cells each
    assert at.shape == (36, 15) and at[0].tolist() == [0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32, 40, 41, 42]
    assert cover[0, 0] > cover[0, 1] == cover[0, -1] > 0  # it is in one window alone


def test_search_finds_by_words_and_by_picture(server, index, capsys):
    main(["search", str(index), "a red circle", "--top", "5", "--json"])
    expected = json.loads(capsys.readouterr().out)
    found = asked(server, "/v1/search", texts=["a red circle"], num=5).json()
    assert found["total"] == 80
    assert [one["name"] for one in found["results"]] == [one["picture"].rpartition("/")[2] for one in expected]
    assert [one["score"] for one in found["results"]] == pytest.approx([one["score"] for one in expected], abs=1e-5)
    first = asked(server, "/v1/search", png(7)).json()["results"][0]
    assert first["name"] == "7.png" and first["score"] == pytest.approx(1, abs=1e-5)
    shown = Image.open(io.BytesIO(base64.b64decode(first["picture"].partition(",")[2])))
    np.testing.assert_array_equal(np.asarray(shown), pairs().picture(7, PX))


@pytest.mark.parametrize(
    ("path", "body", "options", "status", "words"),
    [
        ("zero-shot", png(1), {}, 422, "classes"),
        ("zero-shot", png(1), {"clases": "a,b"}, 400, "Did you mean classes"),
        ("zero-shot", png(1), {"classes": " , "}, 422, "at least 1"),
        ("zero-shot", png(1), {"classes": "a,a"}, 422, "twice"),
        ("zero-shot", png(1), {"classes": "a", "templates": "no"}, 422, "needs {}"),
        ("zero-shot", png(1), {"classes": ",".join(map(str, range(101)))}, 422, "at most 100"),
        ("zero-shot", png(1), {"classes": "a,b", "templates": ";".join(["{}"] * 501)}, 422, "at most 1000"),
        ("zero-shot", b"no picture", {"classes": "a"}, 422, ""),
        ("zero-shot", {"texts": ["a"]}, {"classes": "a"}, 422, "pictures"),
        ("embed", {"texts": []}, {}, 422, "1 to 100"),
        ("embed", {"texts": [" "]}, {}, 422, "non-empty"),
        ("embed", {"texts": ["a"], "pictures": []}, {}, 422, "nothing else"),
        ("embed", b'{"texts": ' + b"[" * 50_000, {}, 400, "not valid JSON"),
        ("embed", b'{"texts": ["' + b"a" * 70_000 + b'"]}', {}, 413, "65,536"),
        ("search", {"texts": ["a", "b"]}, {}, 422, "one text"),
    ],
)
def test_bad_questions_get_one_line(server, path, body, options, status, words):
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    kind = "application/json" if body.startswith(b"{") else "image/png"
    answer = server.client.post(f"/v1/{path}", params=options, content=body, headers={"content-type": kind})
    assert answer.status_code == status and words in answer.json()["error"]


def test_the_page_names_and_finds(chromium_page, server):  # noqa: F811
    """Typed names get the scores that the server says, two of them stand side by side, and words find pictures."""
    person = visit(chromium_page, server)
    assert person.page.locator("#examples button").count() == 12  # of the index
    person.part("found").locator("img").first.wait_for()
    assert "The most like your picture, of 80 pictures." in person.text("found-is")

    with person.page.expect_response("**/v1/zero-shot?**classes=blue**"):
        person.part("typed").fill('red circle\nblue square, "green" <b>')
    scores = person.part("scores").locator("li")
    scores.nth(2).wait_for()
    with person.page.expect_response("**/v1/zero-shot?**") as answered:
        person.wait_for_attention(lambda: person.drop("a.png", png(5)))
    said = {one["label"]: one["probability"] for one in answered.value.json()["results"][0]["top"]}
    names = ["red circle", "blue square", '"green" <b>']
    assert scores.locator(".name").all_text_contents() == names
    shares = scores.locator("i").evaluate_all("all => all.map(one => +one.style.getPropertyValue('--share'))")
    assert shares == pytest.approx([said[name] for name in names], abs=1e-6)

    scores.nth(0).locator("button").click()
    scores.nth(2).locator("button").click()
    figures = [person.part(name) for name in ("one", "other")]
    assert [figure.locator("b").text_content() for figure in figures] == [names[0], names[2]]
    drawn = [figure.locator("canvas").evaluate("one => one.toDataURL()") for figure in figures]
    assert drawn[0] != drawn[1]
    figures[0].locator("canvas").hover(position={"x": 9, "y": 9})
    assert all("here" in figure.locator("span").text_content() for figure in figures)

    # A problem lasts until the next question; what can only fail again is not offered again.
    person.part("typed").fill(",".join(map(str, range(101))))
    person.page.locator("#problem-text").get_by_text("at most 100 are allowed").wait_for()
    assert not person.page.locator("#again").is_visible()
    person.part("typed").fill("red circle")
    person.page.locator("#problem").wait_for(state="hidden")
    person.part("named-is").get_by_text("One name alone").wait_for()
    assert not figures[1].is_visible()
    person.part("wanted").fill("a red circle")
    person.part("go").click()
    person.part("found-is").get_by_text("a red circle").wait_for()
    found = asked(server, "/v1/search", texts=["a red circle"]).json()["results"]
    assert person.part("found").locator("span:not(.share)").all_text_contents() == [one["name"] for one in found]
    (refused,) = person.opened.problems
    assert "422" in refused and not person.opened.scrolls_sideways
