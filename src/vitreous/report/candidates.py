"""What was tried, side by side: pixels, the first model, what training made of it; and what was kept."""

from collections.abc import Sequence
from typing import Any

from vitreous.display.words import counted
from vitreous.fitting.candidates import AHEAD, Candidate
from vitreous.fitting.first import ON_PIXELS, FirstModel
from vitreous.fitting.fitted import Fitted
from vitreous.report.html import Content, Html, paragraph, table, tag, together
from vitreous.report.kinds import kind_of
from vitreous.report.words import DASH, percent, seconds

MEANINGS = {
    "first model": "a small head on frozen features",
    "fine-tuned": "all weights, starting from pre-trained ones",
    "trained from scratch": "all weights, starting from random ones",
    "mean of both": "the mean of the weights before and after fine-tuning",
    "new head on its features": "a linear head fitted to what was learned",
    "student": "all weights, from labels and from pictures that its teacher labelled",
}


def section(result: Fitted[Any]) -> Html:
    bar, first_models = kind_of(result).bar(result), {one.name: one for one in result.first_models}
    rows: list[tuple[Content, ...]] = []
    for one in result.candidates:
        tested = percent(result.evaluation.headline.value) if one.is_kept else DASH
        meaning = MEANINGS.get(one.name, "")
        if one.name == ON_PIXELS and bar is not None:
            tested = percent(bar)
        if one.name == ON_PIXELS:
            pixels = first_models[ON_PIXELS]
            meaning = f"{pixels.picture_px[0]} px, {counted(pixels.pictures, 'picture')}"
        cells = (one.name, meaning, _score(one.score), tested)
        rows.append(tuple(tag.b(cell) for cell in cells) if one.is_kept else cells)
    rule = f"What is best on the validation part is kept{_unless(result.candidates)}"
    tested = "; only that and the pixels are tested." if bar is not None else "; only that is tested."
    return together(
        table(("model", "what it is", "on validation pictures", "on test pictures"), rows, numbers=(2, 3)),
        paragraph(*_made_first(result.first), rule, tested, class_="note"),
        paragraph(
            "sha256 of the weights of that encoder, at this size: ",
            tag.code(result.first.digest, class_="hash"),
            class_="note",
        )
        if result.first is not None and result.first.digest
        else None,
    )


def _unless(candidates: Sequence[Candidate]) -> str:
    """Why another has the better score, if one has."""
    scores = [one.score for one in candidates if one.score is not None]
    kept = next(one for one in candidates if one.is_kept)
    if kept.score is None or kept.score == max(scores):
        return ""
    return f", but a trained model only if it leads one made at once by {AHEAD} pictures: fewer may be chance"


def _made_first(first: FirstModel | None) -> tuple[Content, ...]:
    if first is None:
        return ()
    height, width = first.picture_px
    of = "features of " if first.digest else ""
    views = f" and {counted(first.views, 'altered view')} of each" if first.views else ""
    return (
        f"The first model was there after {seconds(first.ready_s)}: {first.head} on {of}",
        tag.b(first.start),
        f" at {width} x {height} px, from {counted(first.pictures, 'picture')}{views}. ",
    )


def _score(value: float | None) -> str:
    return DASH if value is None else percent(value)
