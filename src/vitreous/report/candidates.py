"""What was tried, side by side: pixels, the first answer, what training made of it; and what was kept."""

from vitreous.fitting.fit import FitResult
from vitreous.fitting.keep import ON_PIXELS
from vitreous.report.html import Content, Html, paragraph, table, tag, together
from vitreous.report.words import DASH, counted, percent, seconds

MEANINGS = {
    "first answer": "a linear head on frozen features",
    "fine-tuned": "all weights, from the first answer on",
    "trained from scratch": "all weights, from random ones on",
    "mean of both": "the mean of the weights before and after fine-tuning",
    "new head on its features": "a linear head fitted to what was learned",
}


def section(result: FitResult) -> Html:
    first, baseline = result.first, result.baseline
    rows: list[tuple[Content, ...]] = []
    for one in result.candidates:
        tested = percent(result.evaluation.headline.value) if one.is_kept else DASH
        meaning = MEANINGS.get(one.name, "")
        if one.name == ON_PIXELS and baseline is not None:
            tested = percent(baseline.accuracy)
            meaning = f"{baseline.px} px, {counted(baseline.pictures, 'picture')}"
        cells = (one.name, meaning, _score(one.score), tested)
        rows.append(tuple(tag.b(cell) for cell in cells) if one.is_kept else cells)
    height, width = first.picture_px
    of = "features of " if first.digest else ""
    views = f" and {counted(first.views, 'altered view')} of each" if first.views else ""
    return together(
        table(("model", "what it is", "on validation pictures", "on test pictures"), rows, numbers=(2, 3)),
        paragraph(
            f"The first answer was there after {seconds(first.ready_s)}: {first.head} on {of}",
            tag.b(first.start),
            f" at {width} x {height} px, from {counted(first.pictures, 'picture')}{views}. ",
            "What is best on the validation part is kept; only that and the pixels are tested.",
            class_="note",
        ),
        paragraph("sha256 of its weights: ", tag.code(first.digest, class_="hash"), class_="note")
        if first.digest
        else None,
    )


def _score(value: float | None) -> str:
    return DASH if value is None else percent(value)
