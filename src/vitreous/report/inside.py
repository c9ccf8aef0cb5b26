"""A look inside: attention (the paper's Figure 6), filters, positions and distances (Figure 7), receptive fields."""

from collections.abc import Callable
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from vitreous.data.base import Subset
from vitreous.data.images import Picture
from vitreous.display.thumbnails import enlarged, picture
from vitreous.fitting.after import inspected
from vitreous.fitting.fitted import Fitted
from vitreous.inspection.figures import biases_figure, distances_figure, filters_figure, layers_figure, positions_figure
from vitreous.inspection.findings import Attention, Findings
from vitreous.inspection.pictures import lit, scale
from vitreous.inspection.receptive_figures import receptive_figure
from vitreous.report.figures import inline
from vitreous.report.html import Content, Html, folded, name, paragraph, tag, together
from vitreous.report.judgement import is_barely_trained
from vitreous.report.kinds import kind_of
from vitreous.report.pictures import readable
from vitreous.report.words import caption

SHOWN_PX = 112  # of a picture beside its attention
MOST_TILES = 160  # of the gallery of all heads


def attention(result: Fitted[Any]) -> Html:
    found = result.findings.attention
    if isinstance(found, str):
        return paragraph(f"Nothing to show: {found}.")
    shown = _shown(result, len(found.maps))
    return _with_care(
        result,
        paragraph(
            "Where the model looks to make its prediction: a test picture, and beside it the same picture, at half "
            "brightness where attention is even, and at full brightness where it is at least twice that "
            f"({found.title})."
        ),
        tag.div([_pair(result, found, number, *one) for number, one in enumerate(shown)], class_="cards pairs"),
        _gallery(found, shown[0][1]) if shown else None,
    )


def _gallery(found: Attention, pixels: Picture) -> Html:
    num = sum(heads.shape[1] for heads in found.heads)
    if num > MOST_TILES:
        return paragraph(f"The model's {num} heads are too many for this page: vitreous inspect draws them all.")
    return together(
        tag.h3("Every layer and head, for the first picture"),
        inline(
            partial(layers_figure, pixels, [heads[0] for heads in found.heads], found.layers),
            "Attention of every head in every layer",
            caption="Brighter is more attention; each tile has its own scale.",
            wide=True,
        ),
    )


def _with_care(result: Fitted[Any], *contents: Content) -> Html:
    """Of a model that has learned little, only for those who ask."""
    kind = kind_of(result)
    if not is_barely_trained(result, kind.chance(result), kind.bar(result)):
        return together(*contents)
    return together(
        paragraph(
            tag.b("With care:"),
            " this model has learned little yet, so what is inside it shows chance more than skill.",
        ),
        folded("Details", *contents),
    )


def _shown(result: Fitted[Any], num: int) -> list[tuple[int, Picture]]:
    """The pictures whose attention was kept, by number in the test part, as the model sees them."""
    test = result.splits.test
    assert test is not None
    some = inspected(test, result.recipe)
    assert isinstance(some, Subset)
    prepared = result.recipe.preprocessing
    found: list[tuple[int, Picture]] = []
    for index, pixels in readable(some, range(len(some))):
        if len(found) == num:
            break
        found.append((int(some.indices[index]), prepared.resized(pixels).permute(1, 2, 0).numpy()))
    return found


def _pair(result: Fitted[Any], found: Attention, number: int, index: int, pixels: Picture) -> Html:
    large = enlarged(pixels, SHOWN_PX)
    test, tells = result.splits.test, kind_of(result).told
    assert test is not None and tells is not None
    label, told = test.described(index), tells(result, index)
    seen = lit(large, found.maps[number], covered=found.seen.covered)
    return tag.figure(
        tag.div(
            picture(large, f"test picture of {label or 'no label'}", most_px=SHOWN_PX),
            picture(seen, "what the model looks at", most_px=SHOWN_PX),
            class_="pair",
        ),
        tag.figcaption(
            name(label or "no label"),
            " \N{CHECK MARK}" if told == label else together(" \N{RIGHTWARDS ARROW} ", name(told or "no label")),
            tag.div(scale(found.maps[number]), class_="path"),
            tag.div(name(caption(test.where(index), result.data.where)), class_="path"),
        ),
    )


def figure7(result: Fitted[Any]) -> Html:
    return _with_care(result, drawn(result.findings))


def drawn(found: Findings) -> Html:
    """The paper's Figure 7 of any model, and what its maps depend on."""
    parts: list[tuple[Any, Callable[[Any], Figure], str]] = [
        (found.filters, filters_figure, "Principal components of the first layer's filters"),
        (found.positions, positions_figure, "Similarity of position embeddings")
        if found.biases is None
        else (found.biases, biases_figure, "Position biases of each head"),
        (found.distances, distances_figure, "Mean attention distance by layer"),
    ]
    return together(
        paragraph(
            "What the first layer looks for in the picture, which places the model takes to be near each other, and "
            "how far each head looks. In a well trained model filters are smooth, positions know rows and columns, and "
            "heads of the first layers differ in reach."
        ),
        tag.div(
            [inline(partial(draw, part), words) for part, draw, words in parts if not isinstance(part, str)],
            class_="figures",
        ),
        [paragraph(f"Not drawn: {part}.") for part, _, _ in parts if isinstance(part, str)],
        tag.h3("Receptive field"),
        _receptive(found),
    )


def _receptive(found: Findings) -> Html:
    if isinstance(found.receptive, str):
        return paragraph(f"Nothing to show: {found.receptive}.")
    return inline(
        partial(receptive_figure, {"": found.receptive}),
        "Effective receptive fields along the way",
        caption="Early maps depend on little of the picture, late ones on more. Each tile has its own scale.",
    )
