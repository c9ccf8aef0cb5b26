import argparse
import json
import re
import shlex
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from odd_names import HOSTILE, ODD_FILE
from parsed_page import Element, read

from vitreous.evaluation.metrics import Estimate
from vitreous.evaluation.pixels import Baseline
from vitreous.fitting.first import ON_PIXELS
from vitreous.report import cost, inside, opening, provenance, report
from vitreous.report.candidates import section as candidates_section
from vitreous.report.few_shot import few_shot
from vitreous.report.figures import loss_curve, rate_curve
from vitreous.report.html import tag
from vitreous.report.judgement import Fall, fall
from vitreous.report.opening import account
from vitreous.weights.trained import Trained

SECTIONS = [
    *(
        "headline",
        "account",
        "candidates",
        "results",
        "confusion",
        "mistakes",
        "data",
        "training",
        "calibration",
        "sets",
    ),
    *("abstention", "attention", "figure7", "few-shot", "cost", "use", "provenance"),
]
TEXT = {"title", "p", "h1", "h2", "h3", "b", "bdi", "span", "code", "pre"}
BLOCKS = {
    "html",
    "head",
    "meta",
    "style",
    "body",
    "nav",
    "main",
    "header",
    "section",
    "div",
    "ul",
    "ol",
    "li",
    "a",
    "dl",
}
BLOCKS |= {"dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "figure", "figcaption", "img"}
DRAWN = {"svg", "g", "defs", "path", "use", "text", "image", "clippath", "rect"}


@pytest.fixture(scope="module")
def page(reported) -> Element:
    return read(reported.markup)


def plain(element: Element) -> str:
    return re.sub(r"\s+", " ", element.text)


# ---- Safe


def test_nothing_is_fetched_and_nothing_runs(page):
    kinds = {one.kind for one in page.all()}
    assert not kinds & {"script", "link", "iframe", "object", "embed", "base", "form", "input", "audio", "video"}
    (policy,) = [one for one in page.all("meta") if one.attributes.get("http-equiv") == "Content-Security-Policy"]
    assert policy.attributes["content"] == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    for one in page.all():
        for name, value in one.attributes.items():
            assert not name.startswith("on"), f"<{one.kind} {name}>"
            if name in ("src", "href", "xlink:href", "action", "srcset"):
                assert re.match(r"#|data:image/(png|jpeg);base64,", value), f"<{one.kind} {name}={value[:60]}>"
            elif name not in ("title", "alt"):
                assert "://" not in (value or ""), f"<{one.kind} {name}={value[:60]}>"


def test_there_are_no_elements_but_our_own(page):
    assert {one.kind for one in page.all()} - {"document"} <= TEXT | BLOCKS | DRAWN
    assert all(one.attributes["src"].startswith("data:image/") for one in page.all("img")), "not x"


@pytest.mark.parametrize("label", HOSTILE)
def test_every_class_name_is_shown_as_it_is(page, label):
    shown = [one.text for one in page.all("bdi")]
    assert shown.count(label) >= 4, "balance, contact sheet, results, attention or confusions"
    ticks = [one.text for one in page.by_id("confusion").all("text")]
    short = " ".join(label.split())
    assert any(tick == short or (tick.endswith("…") and short.startswith(tick[:-1])) for tick in ticks), ticks


def test_file_names_are_text_too(page):
    assert ODD_FILE in page.by_id("data").text


def test_names_of_parts_are_not_shared(page):
    ids = [one.attributes["id"] for one in page.all() if "id" in one.attributes]
    assert len(ids) == len(set(ids))
    targets = {one.attributes.get("xlink:href", one.attributes.get("href")) for one in page.all("use") + page.all("a")}
    assert {target.removeprefix("#") for target in targets} <= set(ids)


# ---- True


def test_all_sections_are_there_and_in_the_contents(page):
    named = [one.attributes["id"] for one in page.all("header") + page.all("section")]
    assert named == SECTIONS
    assert [one.attributes["href"] for one in page.all("nav")[0].all("a")] == [f"#{name}" for name in SECTIONS]
    for name in SECTIONS:
        assert len(plain(page.by_id(name))) > 50, name


def test_the_headline_is_the_result(page, reported):
    top1 = reported.result.evaluation.scores.top1
    always = np.mean(reported.result.account.test.labels.numpy() == 0)
    words = plain(page.by_id("headline"))
    for value in (top1.value, top1.high, always, reported.result.account.baseline.score):
        assert f"{100 * value:.1f} %" in words
    assert f"{100 * top1.low:.1f} to" in words
    assert f"of {len(reported.result.account.test)} test pictures" in words and HOSTILE[0] in words


def test_the_numbers_are_those_of_the_evaluation(page, reported):
    found = reported.result.evaluation
    results = plain(page.by_id("results"))
    for one in (found.scores.top1, found.scores.top5, found.scores.balanced):
        assert f"{100 * one.value:.1f} % ({100 * one.low:.1f} to {100 * one.high:.1f} %)" in results
    rows = [[plain(cell) for cell in row.all("td")] for row in page.by_id("results").all("tr")]
    for one in found.scores.per_class:
        (row,) = [row for row in rows if row and row[0] == plain(Element("", {}, [one.name])) and len(row) == 5]
        assert row[1] == str(one.pictures) and row[2].startswith(f"{100 * one.recall.value:.1f} (")
    calibration = plain(page.by_id("calibration"))
    for one in (found.before.ece, found.after.ece):
        assert f"{100 * one.value:.1f} %" in calibration
    assert f"{found.temperature:.3f}" in calibration
    for one in found.sets:
        assert f"{100 * one.measured.value:.1f} %" in plain(page.by_id("sets"))
    for one in reported.result.account.few_shot:
        assert f"{100 * one.mean:.1f} %" in plain(page.by_id("few-shot"))
    assert f"{reported.result.results['parameters']:,}" in page.by_id("cost").text


def test_problems_of_the_data_are_told(page, reported):
    data, account = plain(page.by_id("data")), plain(page.by_id("account"))
    assert f"Pictures in two parts: {len(reported.result.data.leaks)}" in data and ODD_FILE in data
    assert "Unreadable files: 1" in data and "1-20.png" in data
    assert "Pictures under two classes: 1" in data
    for caution in ("Leaks.", "Contradictory labels.", "Unequal classes.", "Unreadable files.", "Confidence."):
        assert caution in account
    for choice in reported.result.plan.choices:
        assert choice.reason in account and choice.value in account


def test_mistakes_are_shown_as_pictures(page, reported):
    wrong = int((~reported.result.account.test.right()).sum())
    assert len(page.by_id("mistakes").all("img")) == min(wrong, 12) > 0
    assert len(page.by_id("attention").all("img")) == 16, "8 pictures, each with its attention"
    assert len(page.by_id("data").all("img")) == 8 * len(HOSTILE)


def test_provenance_is_complete(page, reported):
    where = page.by_id("provenance")
    recipe = json.loads((reported.result.out / "recipe.json").read_text())
    assert any(json.loads(one.text) == recipe for one in where.all("pre"))
    manifest = json.loads((reported.result.out / "model" / "manifest.json").read_text())
    assert manifest["files"]["model.safetensors"]["sha256"] in where.text
    environment = json.loads((reported.result.out / "environment.json").read_text())[-1]
    assert environment["versions"]["torch"] in where.text and environment["platform"] in where.text


@pytest.mark.parametrize("verb", ["predict", "evaluate", "finetune", "export", "serve", "inspect", "train"])
def test_commands_are_what_the_verbs_take(page, reported, verb):
    commands = [shlex.split(one.text) for one in page.all("pre") if one.text.startswith("vitreous ")]
    (words,) = [words[2:] for words in commands if words[1] == verb]
    parser = argparse.ArgumentParser(exit_on_error=False)
    import_module(f"vitreous.verbs.{verb}").add(parser)
    given = parser.parse_args(words)
    assert str(reported.result.out) in str(given)


def test_the_python_snippet_runs(page, reported, capsys):
    (snippet,) = [one.text for one in page.by_id("use").all("pre") if one.text.startswith("from vitreous")]
    picture = reported.result.splits.test.where(0)
    exec(compile(snippet.replace('"picture.jpg"', repr(picture)), "snippet", "exec"), {})
    assert any(label in capsys.readouterr().out for label in HOSTILE)


def test_it_is_small(reported):
    assert reported.path.stat().st_size < 5e6


# ---- What there may not be


def test_a_network_without_attention_and_without_validation_part(reported):
    bare = replace(
        reported.result,
        findings=replace(
            reported.result.findings, attention="it has none", distances="it has none", receptive="no slope"
        ),
        account=replace(reported.result.account, few_shot=(), baseline=None, val=None),
        evaluation=replace(reported.result.evaluation, validation_pictures=0, sets=(), silences=(), temperature=1.0),
    )
    page = read(report(bare).markup)
    assert page.by_id("attention").text.endswith("Nothing to show: it has none.")
    figure7 = page.by_id("figure7").text
    assert "Not drawn: it has none." in figure7 and "Nothing to show: no slope." in figure7
    assert "Mean attention distance" not in figure7  # no empty axes
    assert "Mean attention distance" in read(reported.markup).by_id("figure7").text
    assert "Not calibrated." in page.by_id("account").text
    assert "no validation part" in page.by_id("calibration").text
    assert "regression on the pixels" not in page.text


def test_a_model_of_pixels_is_told_apart_from_what_was_trained(reported):
    """Its parameters are its own, the work of training is not, and the recipe makes another model."""
    result = reported.result
    (first,) = [one for one in result.first_models if one.name == ON_PIXELS]
    card = Trained.load(result.out / first.folder).card
    candidates = tuple(
        replace(one, is_kept=one.name == ON_PIXELS, score=0.5 + (one.name != ON_PIXELS)) for one in result.candidates
    )
    pixels = replace(result, card=card, candidates=candidates)
    spent = read(cost.section(pixels).markup).text
    side, num = card.model.picture_px[0], len(card.classes)
    assert f"{(3 * side**2 + 1) * num:,}" in spent and "0 FLOPs for" not in spent
    assert "the same weights again, those of \N{LEFT DOUBLE QUOTATION MARK}trained from scratch" in told(pixels)
    assert "the same weights again, on" in told(result)
    assert "only if it leads one made at once by 2 pictures" in read(candidates_section(pixels).markup).text
    untrained = told(replace(pixels, results={**result.results, "steps": 0}))
    assert "recipe.json" not in untrained and "Nothing was trained" in untrained


def told(result):
    return read(provenance.section(result).markup).text


# ---- What the numbers amount to


def changed(reported, **changes):
    """The words of the account after some numbers of the evaluation have changed."""
    found = replace(reported.result, evaluation=replace(reported.result.evaluation, **changes))
    return plain(read(account(found).markup))


@pytest.mark.parametrize(
    ("confidence", "ece", "words"),
    [
        (0.9, 0.4, "too sure of itself"),
        (0.1, 0.4, "not sure enough:"),
        (0.5, 0.29, "too sure of some predictions and not sure enough of others"),
        (0.5, 0.02, "about as sure as it was right"),
    ],
)
def test_it_is_called_sure_of_itself_only_where_it_is(reported, confidence, ece, words):
    before = replace(
        reported.result.evaluation.before,
        confidence=confidence,
        ece=Estimate(ece, ece, ece),
        accuracy=Estimate(0.5, 0.45, 0.55),
    )
    assert words in changed(reported, before=before, after=before)
    assert ("Do not treat its confidence as a probability" in changed(reported, after=before)) == (ece > 0.1)


@pytest.mark.parametrize(("wrong", "is_so"), [((3, 1), True), ((2, 2), False), ((1, 0), False), ((2, 1, 1), False)])
def test_mostly_means_more_than_half_of_several(reported, wrong, is_so):
    scores = reported.result.evaluation.scores
    weakest = replace(scores.per_class[0], recall=Estimate(0.0, 0.0, 0.1), pictures=sum(wrong))
    confusion = tuple((0, 1 + place, num) for place, num in enumerate(wrong) if num)
    weaker = replace(
        scores, top1=Estimate(0.9, 0.8, 0.95), per_class=(weakest, *scores.per_class[1:]), confusion=confusion
    )
    assert ("the others are mostly taken for" in changed(reported, scores=weaker)) == is_so


def test_a_barely_trained_model_keeps_its_insides_folded(reported):
    result = reported.result
    scores = result.evaluation.scores
    weak = replace(result, account=replace(result.account, baseline=Baseline(scores.top1.value, 1e-3)))
    strong = replace(
        result,
        account=replace(result.account, baseline=Baseline(0.1, 1e-3)),
        evaluation=replace(result.evaluation, scores=replace(scores, top1=Estimate(0.95, 0.93, 0.97))),
    )
    for found, is_folded in ((weak, True), (strong, False)):
        for draw in (inside.attention, inside.figure7):
            section = read(draw(found).markup)
            assert bool(section.all("details")) == is_folded == ("With care:" in section.text)
            assert section.all("svg"), "there for those who open it"


def test_a_run_that_is_still_learning_is_told_apart():
    def rows(*losses: float) -> list[dict[str, float]]:
        return [{"epoch": epoch, "val/log_loss": loss} for epoch, loss in enumerate(losses, start=1)]

    assert fall(rows(1.4, 1.3, 1.2, 1.1, 1.0, 0.9)) == Fall(1.1, 0.9)
    assert fall(rows(1.4, 1.1, 1.0, 0.9, 0.895, 0.89)) is None, "hardly"
    assert fall(rows(1.4, 1.1, 0.9, 0.9, 1.0, 1.1)) is None, "overfitting"
    assert fall(rows(1.4)) is None and fall([]) is None


def test_captions_name_the_folder(page, reported):
    shown = [one.text for one in page.by_id("mistakes").all("figcaption")]
    assert shown and all("pictures/" in text for text in shown), "beside the CSV lies a folder of that name"


def test_what_was_tried_stands_side_by_side(page, reported):
    result, words = reported.result, plain(page.by_id("candidates"))
    for one in result.candidates:
        assert one.name in words and f"{100 * one.score:.1f} %" in words
    assert "logistic regression on pixels" in words and f"{100 * result.account.baseline.score:.1f} %" in words
    assert result.first.start in words


def test_options_in_cautions_do_not_break(reported, monkeypatch):
    monkeypatch.setattr(
        opening, "_cautions", lambda _: [("Short.", "Give --data.val_fraction, or --minutes.", tag.b("--x"))]
    )
    shown = read(account(reported.result).markup).all("ul")[0]
    assert [one.text for one in shown.all("code")] == ["--data.val_fraction", "--minutes"]
    assert plain(shown) == "Short. Give --data.val_fraction, or --minutes.--x"


def test_features_that_were_not_trained_are_not_said_to_be(reported):
    for kept, words in (("first model", "as they were before"), ("fine-tuned", "trained on the same classes")):
        candidates = tuple(replace(one, name=kept) if one.is_kept else one for one in reported.result.candidates)
        found = few_shot(replace(reported.result, candidates=candidates))
        assert words in plain(read(found.markup))


def test_a_curve_of_one_point_is_seen():
    rows = [{"epoch": 0.2, "loss": 0.5, "rate_factor": 1.0}]
    for drawn in (loss_curve(rows), rate_curve(rows, 0.1)):
        assert drawn.axes[0].lines[0].get_marker() == "o"
    assert loss_curve([*rows, rows[0] | {"epoch": 0.4}]).axes[0].lines[0].get_marker() == ""
